//! Ministral 3: Llama with YaRN positions and queries that grow with theirs. mlx-lm 0.32.2,
//! `ministral3.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    AttentionShape, Decoder, DecoderSpec, LayerSpec, QueryScale, Rope, RopeOptions,
};
use crate::model::{ModelConfig, layer_windows};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let parameters = config.section("rope_parameters")?;
    let parameters = parameters.ok_or_else(|| config.missing("rope_parameters"))?;
    let query_scale = Some(QueryScale {
        beta: parameters.number("llama_4_scaling_beta")?,
        trained_tokens: parameters.count("original_max_position_embeddings")?,
    });
    let rope = Rope::new(&RopeOptions {
        base: parameters.precise_number("rope_theta")?,
        traditional: false,
        scaling: Some(parameters),
        ..RopeOptions::of_config(config, shape.head_dimension, None)?
    })?;
    let layer = |window| LayerSpec { window, query_scale, ..LayerSpec::full(rope.clone()) };
    let layers = layer_windows(config)?.into_iter().map(layer).collect();
    DecoderSpec::of_config(config, layers, true)?.load(config, weights)
}
