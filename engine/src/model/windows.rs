//! Which layers slide over a window.

use serde_json::Value;

use super::ModelConfig;
use crate::cache::Window;
use crate::error::Result;

/// The window of each layer: `sliding_window` tokens where `layer_types` says so. A kind that is not
/// known is refused: running it as another would give other text.
///
/// # Errors
/// `BadModel` when the entries do not fit the layers, or a window is missing.
pub fn layer_windows(config: &ModelConfig) -> Result<Vec<Option<Window>>> {
    let layers = config.count("num_hidden_layers")?.unsigned_abs() as usize;
    let Some(types) = config.get("layer_types") else {
        return Ok(vec![None; layers]);
    };
    let wrong = || {
        config.wrong("layer_types", types).with_hint(format!(
            "{layers} layers need as many entries, each `full_attention` or `sliding_attention`"
        ))
    };
    let kinds = types.as_array().filter(|kinds| kinds.len() == layers).ok_or_else(wrong)?;
    let window = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Window::new(config.count("sliding_window")?, 0).map(Some),
        _ => Err(wrong()),
    };
    kinds.iter().map(window).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Code;

    fn of(fields: &Value) -> Result<Vec<Option<Window>>> {
        layer_windows(&ModelConfig::from_fields(fields.as_object().unwrap().clone()))
    }

    #[test]
    fn layers_slide_where_the_config_says_so() {
        let window = Window::new(8, 0).unwrap();
        let types = ["sliding_attention", "full_attention"];
        let config = json!({ "num_hidden_layers": 2, "layer_types": types, "sliding_window": 8 });
        assert_eq!(of(&config).unwrap(), [Some(window), None]);
        let config = json!({ "num_hidden_layers": 2, "sliding_window": 8 });
        assert_eq!(of(&config).unwrap(), [None, None], "a window alone makes no layer slide");
    }

    #[test]
    fn layer_types_that_do_not_fit_are_refused_by_name() {
        let sliding = "sliding_attention";
        let cases = [
            (json!({ "layer_types": [sliding], "sliding_window": 8 }), "layer_types"),
            (json!({ "layer_types": [sliding, "chunked"], "sliding_window": 8 }), "layer_types"),
            (json!({ "layer_types": "full_attention" }), "layer_types"),
            (json!({ "layer_types": [sliding, sliding] }), "sliding_window"),
            (json!({ "layer_types": [sliding, sliding], "sliding_window": -1 }), "sliding_window"),
        ];
        for (mut config, field) in cases {
            config["num_hidden_layers"] = json!(2);
            let error = of(&config).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(field), "{error}");
        }
    }
}
