//! Ministral 3: Llama with YaRN positions and queries that grow with theirs. mlx-lm 0.32.2,
//! `ministral3.py`.

use super::layers;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionOptions, AttentionShape, Decoder, DecoderSpec, LayerSpec, QueryScale, Rope,
    RopeOptions,
};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let parameters = config.section("rope_parameters")?;
    let parameters = parameters.ok_or_else(|| config.missing("rope_parameters"))?;
    let options = RopeOptions::of_config(config, shape.head_dimension, None)?;
    let query_scale = QueryScale {
        beta: parameters.number("llama_4_scaling_beta")?,
        trained_tokens: parameters.number("original_max_position_embeddings")?,
    };
    let options = RopeOptions {
        base: parameters.precise_number("rope_theta")?,
        traditional: false,
        scaling: Some(parameters),
        ..options
    };
    let attention = AttentionOptions::plain(shape, Some(Rope::new(&options)?));
    let layer = |window| LayerSpec { window, attention: attention.clone() };
    let layers = layers::windows(config, |_| false)?.into_iter().map(layer).collect();
    let spec = DecoderSpec::of_config(config, layers, true)?;
    Decoder::load(config, weights, &DecoderSpec { query_scale: Some(query_scale), ..spec })
}
