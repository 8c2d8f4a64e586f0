//! Phi-3 and Phi-4-mini: Llama with fused projections, heads that turn in part, and LongRoPE. mlx-lm
//! 0.32.2, `phi3.py`; its `sliding_window` is ignored there and here.

use crate::error::{Code, Error, Result};
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionShape, BASE_DEFAULT, Decoder, DecoderSpec, Gating, LayerSpec, Projections, Rope,
    RopeOptions, rope_kind,
};

/// Tokens that a model saw at once before it was stretched, where the config does not say.
const TRAINED_TOKENS: f64 = 4096.0;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let rope = rope(config, shape.head_dimension)?;
    let layer = LayerSpec { projections: Projections::Fused, ..LayerSpec::full(rope) };
    let layers = vec![layer; config.count("num_hidden_layers")?.unsigned_abs() as usize];
    let spec = DecoderSpec::of_config(config, layers, false)?;
    DecoderSpec { gating: Gating::Fused, ..spec }.load(config, weights)
}

fn rope(config: &ModelConfig, head_dimension: i32) -> Result<Rope> {
    let part = config.optional_precise_number("partial_rotary_factor")?.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&part) {
        return Err(config.wrong("partial_rotary_factor", &part.into()));
    }
    let dimensions = (f64::from(head_dimension) * part) as i32;
    let options = RopeOptions::of_config(config, dimensions, Some(BASE_DEFAULT))?;
    let Some(scaling) = &options.scaling else { return Rope::new(&options) };
    match rope_kind(scaling)? {
        "default" | "linear" => Rope::new(&options),
        "longrope" | "su" => {
            let trained = config.optional_precise_number("original_max_position_embeddings")?;
            Rope::long(&options, scaling, trained.unwrap_or(TRAINED_TOKENS))
        }
        other => {
            let message = format!("rope type `{other}` is not supported in phi3");
            Err(Error::new(Code::BadModel, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn ropes_that_the_oracle_would_drop_are_refused_by_name() {
        let of = |fields: &Value| {
            rope(&ModelConfig::from_fields(fields.as_object().unwrap().clone()), 8)
        };
        let cases = [
            (json!({ "rope_scaling": { "type": "yarn", "factor": 2.0 } }), "yarn"),
            (json!({ "rope_scaling": { "type": "longrope" } }), "long_factor"),
            (json!({ "partial_rotary_factor": 1.5 }), "partial_rotary_factor"),
            (json!({ "partial_rotary_factor": 0.1 }), "0 dimensions"),
        ];
        for (mut fields, named) in cases {
            fields["max_position_embeddings"] = json!(64);
            let error = of(&fields).unwrap_err();
            assert!(error.message().contains(named), "{error}");
        }
    }
}
