//! How far the positions of a config reach.

use super::ModelConfig;
use crate::error::Result;

/// The kind that `scaling` names.
///
/// # Errors
/// `BadModel` when its name is no string.
pub(crate) fn kind(scaling: &ModelConfig) -> Result<&str> {
    for name in ["type", "rope_type"] {
        if let Some(value) = scaling.get(name) {
            return value.as_str().ok_or_else(|| scaling.wrong(name, value));
        }
    }
    Ok("default")
}

/// Tokens that the positions of `config` reach: those of training, and with a dynamic base `factor`
/// times as many.
///
/// # Errors
/// `BadModel` when a field is missing or of another kind.
pub(super) fn context_tokens(config: &ModelConfig) -> Result<i32> {
    let trained = config.count("max_position_embeddings")?;
    match config.section("rope_scaling")?.or(config.section("rope_parameters")?) {
        Some(scaling) if kind(&scaling)? == "dynamic" => {
            Ok((f64::from(trained) * positive(&scaling, "factor")?) as i32)
        }
        _ => Ok(trained),
    }
}

/// A number above 0 that must be there.
///
/// # Errors
/// `BadModel` when it is missing or not above 0.
pub(super) fn positive(scaling: &ModelConfig, name: &str) -> Result<f64> {
    let number = scaling.precise_number(name)?;
    match number > 0.0 {
        true => Ok(number),
        false => Err(scaling.wrong(name, &number.into())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_dynamic_base_reaches_further_than_training() {
        let of = |scaling: &Value| {
            let fields = json!({ "max_position_embeddings": 64, "rope_scaling": scaling });
            context_tokens(&ModelConfig::from_fields(fields.as_object().unwrap().clone()))
        };
        assert_eq!(of(&json!({ "type": "dynamic", "factor": 2.5 })).unwrap(), 160);
        assert_eq!(of(&json!({ "type": "linear", "factor": 2.5 })).unwrap(), 64);
        assert_eq!(of(&Value::Null).unwrap(), 64);
    }
}
