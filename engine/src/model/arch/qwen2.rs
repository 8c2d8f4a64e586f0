//! Qwen2 and Qwen2.5: Llama with biases in queries, keys and values. mlx-lm 0.32.2, `qwen2.py`.

use super::layers;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionOptions, AttentionShape, Decoder, DecoderSpec, LayerSpec, Rope, RopeOptions,
};

const BASE: f64 = 1_000_000.0;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    config.count("num_key_value_heads")?;
    let shape = AttentionShape::of_config(config)?;
    let rope = Rope::new(&RopeOptions::of_config(config, shape.head_dimension, Some(BASE))?)?;
    let attention = AttentionOptions::plain(shape, Some(rope));
    let layer = LayerSpec { window: None, attention };
    let layers = vec![layer; layers::all_full(config)?];
    Decoder::load(config, weights, &DecoderSpec::of_config(config, layers, true)?)
}
