//! Qwen3, dense: Llama with a norm on every query and key head. mlx-lm 0.32.2, `qwen3.py`.
//!
//! Qwen3-Embedding is the same model; its tensors are named without `model.` in front.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    AttentionShape, Decoder, DecoderSpec, LayerSpec, NormSpan, Rope, RopeOptions,
};
use crate::model::{ModelConfig, full_layers};

/// Gives tensors of an embedding model the names of a language model's.
///
/// # Errors
/// `BadModel` when two tensors have one name.
pub fn arrange(_: &ModelConfig, weights: &mut Weights) -> Result<()> {
    const PREFIX: &str = "model.";
    if weights.iter().any(|(name, _)| name.starts_with(PREFIX)) {
        return Ok(());
    }
    weights.rename(|name| match name.starts_with("lm_head.") {
        true => Some(name.to_owned()),
        false => Some(format!("{PREFIX}{name}")),
    })
}

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
