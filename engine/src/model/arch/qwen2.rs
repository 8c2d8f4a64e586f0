//! Qwen2 and Qwen2.5: Llama with biases in queries, keys and values. mlx-lm 0.32.2, `qwen2.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{AttentionShape, Decoder, DecoderSpec, LayerSpec, Rope, RopeOptions};
use crate::model::{ModelConfig, full_layers};

const BASE: f64 = 1_000_000.0;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    config.count("num_key_value_heads")?;
    let shape = AttentionShape::of_config(config)?;
    let rope = Rope::new(&RopeOptions::of_config(config, shape.head_dimension, Some(BASE))?)?;
    let layers = vec![LayerSpec::full(rope); full_layers(config)?];
    check_biases(weights, layers.len())?;
    DecoderSpec::of_config(config, layers, true)?.load(config, weights)
}

/// Linear layers take a bias where there is one; here there must be.
fn check_biases(weights: &Weights, layers: usize) -> Result<()> {
    let names = |layer: usize| {
        ["q", "k", "v"].map(|name| format!("model.layers.{layer}.self_attn.{name}_proj.bias"))
    };
    weights.require((0..layers).flat_map(names))
}
