//! Gemma (Gemma Team 2024): Llama's shape with GELU in the gate, norm weights stored around 1, an
//! embedding that is the head too, and its vectors times the root of their width. Layer math as mlx-lm
//! 0.32.2's `gemma.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    Activation, AttentionShape, Decoder, DecoderSpec, HeadSource, LayerSpec, NormWeights, Rope,
};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let layer = LayerSpec::full(Rope::of_config(config, shape.head_dimension)?);
    spec(config, alike(config, layer)?)?.load(config, weights)
}

/// Gemma with these layers.
///
/// # Errors
/// As [`DecoderSpec::of_config`].
pub(super) fn spec(config: &ModelConfig, layers: Vec<LayerSpec>) -> Result<DecoderSpec> {
    let spec = DecoderSpec::of_config(config, layers, true)?;
    let hidden = spec.sizes.attention.hidden as f32;
    Ok(DecoderSpec {
        norm_weights: NormWeights::AroundOne,
        activation: Activation::Gelu,
        head: HeadSource::Embedding,
        embedding_factor: Some(hidden.sqrt()),
        ..spec
    })
}

/// As many of `layer` as the config has layers.
///
/// # Errors
/// `BadModel` when the config does not say.
pub(super) fn alike(config: &ModelConfig, layer: LayerSpec) -> Result<Vec<LayerSpec>> {
    let layers = config.count("num_hidden_layers")?.unsigned_abs() as usize;
    Ok(vec![layer; layers])
}
