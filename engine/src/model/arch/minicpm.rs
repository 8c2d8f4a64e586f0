//! MiniCPM (Hu et al. 2024): Llama with a scaled embedding, branches scaled by the depth, and a head
//! whose input is scaled down to the width of the model that was tuned. mlx-lm 0.32.2, `minicpm.py`;
//! a checkpoint without a head uses the embedding in the same way.

use super::layers;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionOptions, AttentionShape, Decoder, DecoderSpec, Factors, HeadSource, LayerSpec, Rope,
    RopeOptions,
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
    let depth = layers::count(config)?;
    let layers = vec![LayerSpec { window: None, attention }; depth];
    let narrow = f64::from(config.count("dim_model_base")?);
    let branch = config.precise_number("scale_depth")? / (depth as f64).powf(0.5);
    let factors = Factors {
        embedding: config.number("scale_emb")?,
        branch: branch as f32,
        head_input_divisor: (f64::from(shape.hidden) / narrow) as f32,
        ..Factors::NONE
    };
    let spec = DecoderSpec::of_config(config, layers, false)?;
    let head = match spec.head {
        HeadSource::Own => HeadSource::OwnIfPresent,
        tied => tied,
    };
    Decoder::load(config, weights, &DecoderSpec { factors, head, ..spec })
}
