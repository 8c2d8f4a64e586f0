//! MiniCPM (Hu et al. 2024): Llama with a scaled embedding, branches scaled by the depth, and a head
//! whose input is scaled down to the width of the model that was tuned. mlx-lm 0.32.2, `minicpm.py`;
//! a checkpoint without a head uses the embedding in the same way.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionShape, Decoder, DecoderSpec, HeadSource, LayerSpec, LogitScale, Residual, Rope,
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
    let depth = config.count("num_hidden_layers")?;
    let layers = vec![LayerSpec::full(rope); depth.unsigned_abs() as usize];
    let branch = config.precise_number("scale_depth")? / f64::from(depth).powf(0.5);
    let narrowing = f64::from(shape.hidden) / f64::from(config.count("dim_model_base")?);
    let spec = DecoderSpec::of_config(config, layers, false)?;
    let head = match spec.head {
        HeadSource::Own => HeadSource::OwnIfPresent,
        tied => tied,
    };
    let spec = DecoderSpec {
        embedding_factor: Some(config.number("scale_emb")?),
        residual: Residual::Scaled(branch as f32),
        logit_scale: LogitScale::OfDividedInput(narrowing as f32),
        head,
        ..spec
    };
    spec.load(config, weights)
}
