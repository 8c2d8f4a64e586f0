//! GLM-4 (GLM Team 2024): heads that turn in part, pair by pair of neighbours, fused gates, and norms on
//! both sides of each block. mlx-lm 0.32.2, `glm4.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    AttentionShape, Decoder, DecoderSpec, Gating, HeadSource, LayerSpec, NormPlacement, Rope,
    RopeOptions, rope_kind,
};
use crate::model::{ModelConfig, full_layers};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    for name in ["num_key_value_heads", "head_dim"] {
        config.count(name)?;
    }
    let layer = LayerSpec::full(rope(config)?);
    let layers = vec![layer; full_layers(config)?];
    check_biases(config, weights, layers.len())?;
    let spec = DecoderSpec::of_config(config, layers, false)?;
    let spec = DecoderSpec {
        norms: NormPlacement::Sandwich,
        gating: Gating::Fused,
        head: HeadSource::Own,
        ..spec
    };
    spec.load(config, weights)
}

fn rope(config: &ModelConfig) -> Result<Rope> {
    let shape = AttentionShape::of_config(config)?;
    let part = config.precise_number("partial_rotary_factor")?;
    if !(0.0..=1.0).contains(&part) {
        return Err(config.wrong("partial_rotary_factor", &part.into()));
    }
    let dimensions = (f64::from(shape.head_dimension) * part) as i32;
    let options = RopeOptions::of_config(config, dimensions, None)?;
    if let Some(kind) = options.scaling.as_ref().map(rope_kind).transpose()?
        && kind != "default"
    {
        let hint = "this family is proven without a stretched rope only";
        return Err(config.wrong("rope_scaling", &kind.into()).with_hint(hint));
    }
    let traditional = config.flag("rope_traditional", true)?;
    Rope::new(&RopeOptions { traditional, ..options })
}

/// Linear layers take a bias where there is one; here the config says whether there must be.
fn check_biases(config: &ModelConfig, weights: &Weights, layers: usize) -> Result<()> {
    config.get("attention_bias").ok_or_else(|| config.missing("attention_bias"))?;
    if !config.flag("attention_bias", false)? {
        return Ok(());
    }
    let names = |layer: usize| {
        ["q", "k", "v"].map(|name| format!("model.layers.{layer}.self_attn.{name}_proj.bias"))
    };
    weights.require((0..layers).flat_map(names))
}
