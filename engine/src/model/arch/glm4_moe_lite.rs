//! GLM-4.7-Flash: latent attention over everything, experts from the second layer on. mlx-lm 0.32.2,
//! `glm4_moe_lite.py`. Its prediction layer is left aside, as there.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    LatentAttentionSpec, LatentDecoder, LatentDecoderSpec, LatentLayerSpec, LatentShape, Rope,
    RopeOptions, latent_scale,
};

/// Theta, where the config names none.
const BASE: f64 = 1_000_000.0;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<LatentDecoder> {
    let shape = LatentShape::of_config(config)?;
    let epsilon = config.number("rms_norm_eps")?;
    let rope = RopeOptions::of_config(config, shape.turned, Some(BASE))?;
    let attention = LatentAttentionSpec {
        shape,
        epsilon,
        scale: latent_scale(rope.scaling.as_ref(), shape.query())?,
        rope: Rope::new(&RopeOptions { traditional: true, ..rope })?,
    };
    let intermediate = config.count("intermediate_size")?;
    let layer = LatentLayerSpec { indexer: None, intermediate };
    let layers = vec![layer; config.count("num_hidden_layers")?.unsigned_abs() as usize];
    let vocabulary = config.count("vocab_size")?;
    LatentDecoderSpec { attention, layers, prediction: None, vocabulary, epsilon }
        .load(config, weights)
}
