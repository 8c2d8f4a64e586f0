//! Which layers slide over a window.

use serde_json::Value;

use super::ModelConfig;
use crate::cache::Window;
use crate::error::Result;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The window of each layer: `sliding_window` tokens where `layer_types` says so; without types every
/// layer sees everything.
///
/// # Errors
/// As [`layer_windows_or`].
pub fn layer_windows(config: &ModelConfig) -> Result<Vec<Option<Window>>> {
    layer_windows_or(config, |_| false)
}

/// The same, except that without types layers slide where `slides` says so. A kind that is not known is refused: running it as another would give
/// other text.
///
/// # Errors
/// `BadModel` when the types do not fit or a window is missing.
pub fn layer_windows_or(
    config: &ModelConfig,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<Window>>> {
    let layers = config.count("num_hidden_layers")?.unsigned_abs() as usize;
    let sliding = || Window::new(config.count("sliding_window")?, 0).map(Some);
    let Some(types) = config.get("layer_types") else {
        return (0..layers).map(|index| if slides(index) { sliding() } else { Ok(None) }).collect();
    };
    let wrong = || {
        config.wrong("layer_types", types).with_hint(format!(
            "{layers} layers need as many entries, each `{FULL}` or `{SLIDING}`"
        ))
    };
    let kinds = types.as_array().filter(|kinds| kinds.len() == layers).ok_or_else(wrong)?;
    let window = |kind: &Value| match kind.as_str() {
        Some(FULL) => Ok(None),
        Some(SLIDING) => sliding(),
        _ => Err(wrong()),
    };
    kinds.iter().map(window).collect()
}

/// How many layers there are in a family that is proven with full attention only.
///
/// # Errors
/// `BadModel` when the config asks for sliding layers.
pub fn full_layers(config: &ModelConfig) -> Result<usize> {
    let layers = config.count("num_hidden_layers")?.unsigned_abs() as usize;
    let hint = "this family is proven with full attention in every layer only";
    if let Some(slides) = config.get("use_sliding_window").filter(|slides| **slides != false) {
        return Err(config.wrong("use_sliding_window", slides).with_hint(hint));
    }
    let full = |types: &Value| {
        types.as_array().is_some_and(|types| types.iter().all(|kind| *kind == FULL))
    };
    match config.get("layer_types").filter(|types| !full(types)) {
        Some(types) => Err(config.wrong("layer_types", types).with_hint(hint)),
        None => Ok(layers),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Code;

    fn config(fields: &Value) -> ModelConfig {
        ModelConfig::from_fields(fields.as_object().unwrap().clone())
    }

    fn of(fields: &Value) -> Result<Vec<Option<Window>>> {
        layer_windows(&config(fields))
    }

    #[test]
    fn layers_slide_where_the_config_says_so() {
        let window = Window::new(8, 0).unwrap();
        let types = [SLIDING, FULL];
        let fields = json!({ "num_hidden_layers": 2, "layer_types": types, "sliding_window": 8 });
        assert_eq!(of(&fields).unwrap(), [Some(window), None]);
        let fields = json!({ "num_hidden_layers": 2, "sliding_window": 8 });
        assert_eq!(of(&fields).unwrap(), [None, None], "a window alone makes no layer slide");
        let slides = layer_windows_or(&config(&fields), |index| index == 1).unwrap();
        assert_eq!(slides, [None, Some(window)]);
    }

    #[test]
    fn layer_types_that_do_not_fit_are_refused_by_name() {
        let cases = [
            (json!({ "layer_types": [SLIDING], "sliding_window": 8 }), "layer_types"),
            (json!({ "layer_types": [SLIDING, "chunked"], "sliding_window": 8 }), "layer_types"),
            (json!({ "layer_types": FULL }), "layer_types"),
            (json!({ "layer_types": [SLIDING, SLIDING] }), "sliding_window"),
            (json!({ "layer_types": [SLIDING, SLIDING], "sliding_window": -1 }), "sliding_window"),
        ];
        for (mut fields, field) in cases {
            fields["num_hidden_layers"] = json!(2);
            let error = of(&fields).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(field), "{error}");
        }
    }

    #[test]
    fn sliding_layers_are_refused_where_they_are_not_proven() {
        let accepted = [
            json!({}),
            json!({ "use_sliding_window": false, "sliding_window": 8 }),
            json!({ "layer_types": [FULL, FULL] }),
        ];
        let refused = [
            (json!({ "use_sliding_window": true, "sliding_window": 8 }), "use_sliding_window"),
            (json!({ "layer_types": [FULL, SLIDING], "sliding_window": 8 }), "layer_types"),
        ];
        let of = |mut fields: Value| {
            fields["num_hidden_layers"] = json!(2);
            full_layers(&config(&fields))
        };
        for fields in accepted {
            assert_eq!(of(fields).unwrap(), 2);
        }
        for (fields, field) in refused {
            assert!(of(fields).unwrap_err().message().contains(field));
        }
    }
}
