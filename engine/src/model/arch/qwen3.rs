//! Qwen3, dense: Llama with a norm on every query and key head. mlx-lm 0.32.2, `qwen3.py`.

use super::layers;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionOptions, AttentionShape, Decoder, DecoderSpec, HeadNorms, LayerSpec, Rope, RopeOptions,
};

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
    let head_norms = HeadNorms::EachHead { epsilon: config.number("rms_norm_eps")? };
    let attention = AttentionOptions { head_norms, ..AttentionOptions::plain(shape, Some(rope)) };
    let layer = LayerSpec { window: None, attention };
    let layers = vec![layer; layers::all_full(config)?];
    Decoder::load(config, weights, &DecoderSpec::of_config(config, layers, true)?)
}
