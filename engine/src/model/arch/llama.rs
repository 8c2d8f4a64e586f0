//! Llama (Touvron et al. 2023) and what shares its shape, Mistral among it: grouped-query attention,
//! rotary positions, SwiGLU, norms before each block, head tied or not, layers that slide where the
//! config says so. mlx-lm 0.32.2, `llama.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{AttentionShape, Decoder, DecoderSpec, LayerSpec, Rope};
use crate::model::{ModelConfig, layer_windows};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let rope = Rope::of_config(config, shape.head_dimension)?;
    let layer = |window| LayerSpec { window, ..LayerSpec::full(rope.clone()) };
    let layers = layer_windows(config)?.into_iter().map(layer).collect();
    DecoderSpec::of_config(config, layers, true)?.load(config, weights)
}
