//! Granite 3: Llama with factors for the embedding, attention, the branches and the logits. mlx-lm
//! 0.32.2, `granite.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionShape, Decoder, DecoderSpec, LayerSpec, LogitScale, Residual, Rope, RopeOptions,
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
    let scale = Some(config.number("attention_multiplier")?);
    let layer = LayerSpec { scale, ..LayerSpec::full(rope) };
    let layers = vec![layer; config.count("num_hidden_layers")?.unsigned_abs() as usize];
    let spec = DecoderSpec {
        embedding_factor: Some(config.number("embedding_multiplier")?),
        residual: Residual::Scaled(config.number("residual_multiplier")?),
        logit_scale: LogitScale::Divided(config.number("logits_scaling")?),
        ..DecoderSpec::of_config(config, layers, true)?
    };
    spec.load(config, weights)
}
