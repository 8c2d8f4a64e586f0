//! SmolLM3: Llama in which some layers have no positions. mlx-lm 0.32.2, `smollm3.py`.

use serde_json::Value;

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{AttentionShape, Decoder, DecoderSpec, LayerSpec, Rope};
use crate::model::{ModelConfig, full_layers};

/// Every so many layers one has no positions, where the config does not say.
const INTERVAL: i32 = 4;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let rope = Rope::of_config(config, shape.head_dimension)?;
    let layer = |turns| LayerSpec::full(if turns { rope.clone() } else { Rope::none() });
    let layers = turning(config, full_layers(config)?)?.into_iter().map(layer).collect();
    DecoderSpec::of_config(config, layers, true)?.load(config, weights)
}

/// Which layers have positions: `no_rope_layers` holds 0 for those that have none, in spite of its
/// name.
fn turning(config: &ModelConfig, layers: usize) -> Result<Vec<bool>> {
    let Some(entries) = config.get("no_rope_layers") else {
        let interval = config.optional_count("no_rope_layer_interval")?.unwrap_or(INTERVAL);
        let interval = interval.unsigned_abs() as usize;
        return Ok((1..=layers).map(|place| place % interval != 0).collect());
    };
    let wrong = || config.wrong("no_rope_layers", entries);
    let turns = |entry: &Value| match entry.as_i64() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(wrong()),
    };
    let entries = entries.as_array().filter(|entries| entries.len() == layers);
    entries.ok_or_else(wrong)?.iter().map(turns).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(fields: &Value) -> Result<Vec<bool>> {
        turning(&ModelConfig::from_fields(fields.as_object().unwrap().clone()), 4)
    }

    #[test]
    fn layers_have_positions_where_the_config_says_so() {
        assert_eq!(of(&json!({})).unwrap(), [true, true, true, false]);
        let every_other = json!({ "no_rope_layer_interval": 2 });
        assert_eq!(of(&every_other).unwrap(), [true, false, true, false]);
        let listed = json!({ "no_rope_layers": [0, 1, 1, 0], "no_rope_layer_interval": 2 });
        assert_eq!(of(&listed).unwrap(), [false, true, true, false]);
        for entries in [json!([1, 1]), json!([1, 1, 1, 2]), json!("1110"), json!([1, 1, 1, true])] {
            let error = of(&json!({ "no_rope_layers": entries })).unwrap_err();
            assert!(error.message().contains("no_rope_layers"), "{error}");
        }
    }
}
