//! The text part of Gemma 3 (Gemma Team 2025): Gemma 2's norms without its caps, norms of each head's
//! queries and keys, and most layers sliding over a window with a rotary base of their own. Layer math
//! as mlx-lm 0.32.2's `gemma3_text.py`.

use half::bf16;

use super::gemma;
use crate::cache::Window;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    Activation, AttentionShape, Decoder, DecoderSpec, HeadSource, LayerSpec, NormPlacement,
    NormSpan, Residual, Rope,
};
use crate::model::{ModelConfig, layer_windows_or};

/// Every so many layers one sees everything, where the config does not say.
const PATTERN_DEFAULT: i32 = 6;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let pattern = config.optional_count("sliding_window_pattern")?.unwrap_or(PATTERN_DEFAULT);
    let pattern = pattern.unsigned_abs() as usize;
    let windows = layer_windows_or(config, |index| !(index + 1).is_multiple_of(pattern))?;
    let scale = Some(attention_scale(config)?);
    let layer = |window| -> Result<LayerSpec> {
        let plain = LayerSpec::full(rope(config, window, shape)?);
        Ok(LayerSpec { window, scale, head_norms: Some(NormSpan::EachHead), ..plain })
    };
    let layers = windows.into_iter().map(layer).collect::<Result<_>>()?;
    let spec = DecoderSpec {
        norms: NormPlacement::Around,
        activation: Activation::GeluTanh,
        head: HeadSource::OwnIfPresent,
        // Rounded so in every type, as the model was trained.
        embedding_factor: Some(bf16::from_f32((shape.hidden as f32).sqrt()).to_f32()),
        residual: Residual::Finite,
        ..gemma::spec(config, layers)?
    };
    spec.load(config, weights)
}

/// Layers that slide have their own base and are never stretched.
fn rope(config: &ModelConfig, window: Option<Window>, shape: AttentionShape) -> Result<Rope> {
    let base = |name: &str, default: f32| -> Result<f32> {
        Ok(config.optional_number(name)?.unwrap_or(default))
    };
    match window {
        Some(_) => Ok(Rope::plain(base("rope_local_base_freq", 10_000.0)?, shape.head_dimension)),
        None => Rope::with_base(config, base("rope_theta", 1_000_000.0)?, shape.head_dimension),
    }
}

fn attention_scale(config: &ModelConfig) -> Result<f32> {
    let scalar = config.optional_number("query_pre_attn_scalar")?.unwrap_or(256.0);
    Ok(scalar.powf(-0.5))
}
