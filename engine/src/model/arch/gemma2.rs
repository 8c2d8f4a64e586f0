//! Gemma 2 (Gemma Team 2024): Gemma with norms after each block too, and soft caps on attention's
//! scores and on the logits. Layer math as mlx-lm 0.32.2's `gemma2.py`, where every layer sees every
//! token.

use super::gemma;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    Activation, AttentionShape, Decoder, DecoderSpec, LayerSpec, NormPlacement, Rope,
};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let number = |name: &str, default: f32| -> Result<f32> {
        Ok(config.optional_number(name)?.unwrap_or(default))
    };
    let layer = LayerSpec {
        scale: Some(number("query_pre_attn_scalar", 144.0)?.powf(-0.5)),
        score_cap: Some(number("attn_logit_softcapping", 50.0)?),
        ..LayerSpec::full(Rope::of_config(config, shape.head_dimension)?)
    };
    let spec = DecoderSpec {
        norms: NormPlacement::Around,
        activation: Activation::GeluTanh,
        logit_cap: Some(number("final_logit_softcapping", 30.0)?),
        ..gemma::spec(config, gemma::alike(config, layer)?)?
    };
    spec.load(config, weights)
}
