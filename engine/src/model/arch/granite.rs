//! Granite 3: Llama with factors for the embedding, attention, the branches and the logits. mlx-lm
//! 0.32.2, `granite.py`.

use super::layers;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionOptions, AttentionShape, Decoder, DecoderSpec, Factors, LayerSpec, Rope, RopeOptions,
};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    config.count("num_key_value_heads")?;
    let shape = AttentionShape::of_config(config)?;
    let options = RopeOptions::of_config(config, shape.head_dimension, None)?;
    let rope = Rope::new(&RopeOptions { traditional: false, ..options })?;
    let attention = AttentionOptions {
        scale: config.number("attention_multiplier")?,
        ..AttentionOptions::plain(shape, Some(rope))
    };
    let layers = vec![LayerSpec { window: None, attention }; layers::count(config)?];
    let factors = Factors {
        embedding: config.number("embedding_multiplier")?,
        branch: config.number("residual_multiplier")?,
        logits_divisor: config.number("logits_scaling")?,
        ..Factors::NONE
    };
    let spec = DecoderSpec::of_config(config, layers, true)?;
    Decoder::load(config, weights, &DecoderSpec { factors, ..spec })
}
