//! Llama (Touvron et al. 2023) and what shares its shape, Mistral among it: grouped-query attention,
//! rotary positions, SwiGLU, norms before each block, head tied or not, layers that slide where the
//! config says so. mlx-lm 0.32.2, `llama.py`.

use super::layers;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionOptions, AttentionShape, Decoder, DecoderSpec, LayerSpec, Rope, RopeOptions,
};

/// The base of configs that name none.
pub(super) const BASE: f64 = 10_000.0;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let rope = Rope::new(&RopeOptions::of_config(config, shape.head_dimension, Some(BASE))?)?;
    let attention = AttentionOptions::plain(shape, Some(rope));
    let layer = |window| LayerSpec { window, attention: attention.clone() };
    let layers = layers::windows(config, |_| false)?.into_iter().map(layer).collect();
    Decoder::load(config, weights, &DecoderSpec::of_config(config, layers, true)?)
}
