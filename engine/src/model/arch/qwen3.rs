//! Qwen3, dense: Llama with a norm on every query and key head. mlx-lm 0.32.2, `qwen3.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    AttentionShape, Decoder, DecoderSpec, LayerSpec, NormSpan, Rope, RopeOptions,
};
use crate::model::{ModelConfig, full_layers};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    for name in ["num_key_value_heads", "head_dim"] {
        config.count(name)?;
    }
    let shape = AttentionShape::of_config(config)?;
    let options = RopeOptions::of_config(config, shape.head_dimension, None)?;
    let rope = Rope::new(&RopeOptions { traditional: false, ..options })?;
    let layer = LayerSpec { head_norms: Some(NormSpan::EachHead), ..LayerSpec::full(rope) };
    let layers = vec![layer; full_layers(config)?];
    DecoderSpec::of_config(config, layers, true)?.load(config, weights)
}
