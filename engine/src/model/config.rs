//! `config.json`: the fields that the families share, read strictly where a wrong guess would give
//! wrong text.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};

/// How a checkpoint wants to be decoded: a file beside `config.json`, and then a section of it.
pub const GENERATION: &str = "generation_config";

/// Counts by kind, and the greatest of each that makes sense: far more than any published model has, and so few that
/// lists of them fit in memory and no product of two overflows.
const GREATEST: [(i64, &[&str]); 6] = [
    (1 << 6, &["n_shared_experts"]),
    (1 << 10, &["num_hidden_layers"]),
    (
        1 << 12,
        &[
            "index_n_heads",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "num_attention_heads",
            "num_global_key_value_heads",
            "num_key_value_heads",
        ],
    ),
    (
        1 << 14,
        &[
            "global_head_dim",
            "head_dim",
            "index_head_dim",
            "linear_conv_kernel_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        ],
    ),
    (
        1 << 20,
        &[
            "hidden_size",
            "hidden_size_per_layer_input",
            "kv_lora_rank",
            "moe_intermediate_size",
            "n_routed_experts",
            "num_experts",
            "num_experts_per_tok",
            "num_local_experts",
            "q_lora_rank",
            "top_k_experts",
        ],
    ),
    (
        1 << 24,
        &[
            "intermediate_size",
            "shared_expert_intermediate_size",
            "vocab_size",
            "vocab_size_per_layer_input",
        ],
    ),
];

/// A parsed `config.json`.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    fields: Map<String, Value>,
    path: String,
}

impl ModelConfig {
    /// Reads `directory/config.json`.
    ///
    /// # Errors
    /// `BadModel` when it is missing or no JSON object.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join("config.json");
        Ok(Self { fields: read_object(&path)?, path: path.display().to_string() })
    }

    /// The same with what `directory/generation_config.json` says, if there is one, as the section
    /// [`GENERATION`].
    ///
    /// # Errors
    /// `BadModel` when it is no JSON object.
    pub fn with_generation(mut self, directory: &Path) -> Result<Self> {
        let path = directory.join(format!("{GENERATION}.json"));
        if path.is_file() {
            let fields = read_object(&path)?;
            self.fields.insert(GENERATION.to_owned(), Value::Object(fields));
        }
        Ok(self)
    }

    /// The same with `fields` in place of those of their names.
    #[must_use]
    pub fn with_fields<'a>(&self, fields: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let mut changed = self.clone();
        changed.fields.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        changed
    }

    /// A configuration from fields that are at hand.
    pub fn from_fields(fields: Map<String, Value>) -> Self {
        Self { fields, path: "config".to_owned() }
    }

    /// The architecture's name.
    ///
    /// # Errors
    /// `BadModel` when there is none.
    pub fn model_type(&self) -> Result<&str> {
        self.get("model_type").and_then(Value::as_str).ok_or_else(|| self.missing("model_type"))
    }

    /// A field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// A positive whole number that must be there.
    ///
    /// # Errors
    /// `BadModel` when it is missing or not a positive number below 2^31.
    pub fn count(&self, name: &str) -> Result<i32> {
        self.optional_count(name)?.ok_or_else(|| self.missing(name))
    }

    /// A positive whole number that may be absent.
    ///
    /// # Errors
    /// `BadModel` when it is there and not a positive number below 2^31.
    pub fn optional_count(&self, name: &str) -> Result<Option<i32>> {
        self.get(name).map(|value| self.as_count(name, value)).transpose()
    }

    /// Refuses another value of a field than the one that its family is proven with; the field may be
    /// absent.
    ///
    /// # Errors
    /// `BadModel` when it is there and of another value.
    pub fn check_only(&self, name: &str, proven: &Value) -> Result<()> {
        let same = |value: &Value| {
            value == proven || value.as_f64().is_some_and(|number| proven.as_f64() == Some(number))
        };
        match self.get(name) {
            Some(value) if !same(value) => {
                Err(self.wrong(name, value).with_hint(format!("only {proven} is supported")))
            }
            _ => Ok(()),
        }
    }

    /// A number that must be there.
    ///
    /// # Errors
    /// `BadModel` when it is missing or no number.
    pub fn number(&self, name: &str) -> Result<f32> {
        self.optional_number(name)?.ok_or_else(|| self.missing(name))
    }

    /// A number that may be absent.
    ///
    /// # Errors
    /// `BadModel` when it is there and no number.
    pub fn optional_number(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.optional_precise_number(name)?.map(|number| number as f32))
    }

    /// A number that must be there, with all its digits: for what the oracle computes in f64.
    ///
    /// # Errors
    /// `BadModel` when it is missing or no number.
    pub fn precise_number(&self, name: &str) -> Result<f64> {
        self.optional_precise_number(name)?.ok_or_else(|| self.missing(name))
    }

    /// The same for one that may be absent.
    ///
    /// # Errors
    /// `BadModel` when it is there and no number.
    pub fn optional_precise_number(&self, name: &str) -> Result<Option<f64>> {
        let number = |value: &Value| value.as_f64().ok_or_else(|| self.wrong(name, value));
        self.get(name).map(number).transpose()
    }

    /// A switch, `default` when absent.
    ///
    /// # Errors
    /// `BadModel` when it is there and no boolean.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(name, value)),
        }
    }

    /// A nested object.
    ///
    /// # Errors
    /// `BadModel` when it is there and no object.
    pub fn section(&self, name: &str) -> Result<Option<Self>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(fields)) => {
                Ok(Some(Self { fields: fields.clone(), path: format!("{}: {name}", self.path) }))
            }
            Some(value) => Err(self.wrong(name, value)),
        }
    }

    /// What the config says of the language model: `text_config` where there is one, as in models that
    /// see or hear too, quantized and decoded as the whole is, with its `vocab_size` where the part has none.
    ///
    /// # Errors
    /// `BadModel` when it is there and no object.
    pub fn text_part(self) -> Result<Self> {
        let Some(mut text) = self.section("text_config")? else { return Ok(self) };
        for name in ["quantization", "quantization_config", GENERATION, "canvas_length"] {
            if let Some(value) = self.get(name) {
                text.fields.insert(name.to_owned(), value.clone());
            }
        }
        if let (None, Some(vocabulary)) = (text.get("vocab_size"), self.get("vocab_size")) {
            text.fields.insert("vocab_size".to_owned(), vocabulary.clone());
        }
        Ok(text)
    }

    /// Holds that no field asks for more of anything than any model has.
    ///
    /// # Errors
    /// `BadModel` naming the field.
    pub fn check_bounds(&self) -> Result<()> {
        let counts = GREATEST.iter().flat_map(|(greatest, names)| {
            names.iter().filter_map(|name| Some((*greatest, *name, self.get(name)?)))
        });
        for (greatest, name, value) in counts {
            if value.as_f64().is_some_and(|count| count > greatest as f64) {
                let hint = format!("at most {greatest} is supported");
                return Err(self.wrong(name, value).with_hint(hint));
            }
        }
        Ok(())
    }

    /// Whether a field is there and says null, which for some is another thing than silence.
    pub fn is_null(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(Value::is_null)
    }

    /// A whole number from 0 on that must be there.
    ///
    /// # Errors
    /// `BadModel` when it is missing or not a number from 0 to below 2^31.
    pub fn whole(&self, name: &str) -> Result<i32> {
        self.optional_whole(name)?.ok_or_else(|| self.missing(name))
    }

    /// A whole number from 0 on that may be absent.
    ///
    /// # Errors
    /// `BadModel` when it is there and not a number from 0 to below 2^31.
    pub fn optional_whole(&self, name: &str) -> Result<Option<i32>> {
        match self.get(name) {
            Some(value) if *value == 0 => Ok(Some(0)),
            _ => self.optional_count(name),
        }
    }

    /// The error of a field with a value that cannot be used.
    pub fn wrong(&self, name: &str, value: &Value) -> Error {
        Error::new(Code::BadModel, format!("`{}` has a bad `{name}`: {value}", self.path))
    }

    /// The error of a field that must be there and is not.
    pub fn missing(&self, name: &str) -> Error {
        Error::new(Code::BadModel, format!("`{}` has no `{name}`", self.path))
    }

    fn as_count(&self, name: &str, value: &Value) -> Result<i32> {
        let count = value.as_i64().and_then(|count| i32::try_from(count).ok());
        count.filter(|count| *count > 0).ok_or_else(|| self.wrong(name, value))
    }
}

fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let bad = |what: String| {
        Error::new(Code::BadModel, format!("failed to read `{}`: {what}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(bad("not a JSON object".to_owned())),
        Err(error) => Err(bad(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(fields: &Value) -> ModelConfig {
        ModelConfig::from_fields(fields.as_object().unwrap().clone())
    }

    #[test]
    fn the_text_part_is_a_config_of_its_own_with_what_the_whole_says_of_all_parts() {
        let quantization = json!({ "bits": 4 });
        let text = json!({ "model_type": "inner", "hidden_size": 8, "quantization": 3 });
        let whole = json!({
            "model_type": "outer", "text_config": text, "hidden_size": 9, "vocab_size": 288,
            "quantization": quantization,
        });
        let text = config(&whole).text_part().unwrap();
        assert_eq!(text.model_type().unwrap(), "inner");
        assert_eq!(text.count("hidden_size").unwrap(), 8);
        assert_eq!(text.count("vocab_size").unwrap(), 288);
        assert_eq!(text.get("quantization"), Some(&quantization));
        let mut both = whole.clone();
        both["text_config"]["vocab_size"] = json!(32);
        assert_eq!(config(&both).text_part().unwrap().count("vocab_size").unwrap(), 32);
        let plain = config(&json!({ "model_type": "llama" })).text_part().unwrap();
        assert_eq!(plain.model_type().unwrap(), "llama");
        let error = config(&json!({ "text_config": 3 })).text_part().unwrap_err();
        assert!(error.message().contains("text_config"), "{error}");
    }

    #[test]
    fn a_count_beyond_what_any_model_has_is_refused_by_name() {
        for (greatest, names) in GREATEST {
            for name in names {
                let with = |value: Value| config(&json!({ *name: value })).check_bounds();
                for value in [json!(greatest), json!(null), json!("many"), json!(-1)] {
                    with(value).unwrap();
                }
                for value in [json!(greatest + 1), json!(1e300)] {
                    let error = with(value).unwrap_err();
                    assert!(error.message().contains(&format!("`{name}`")), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_whole_number_may_be_zero_and_must_be_there() {
        let config = config(&json!({ "zero": 0, "two": 2, "less": -1, "null": null }));
        assert_eq!((config.whole("zero").unwrap(), config.whole("two").unwrap()), (0, 2));
        for name in ["less", "null", "absent"] {
            assert!(config.whole(name).unwrap_err().message().contains(name));
        }
        assert_eq!(config.optional_whole("zero").unwrap(), Some(0));
        assert_eq!(config.optional_whole("absent").unwrap(), None);
        assert!(config.optional_whole("less").is_err());
        assert!(config.is_null("null") && !config.is_null("zero") && !config.is_null("absent"));
    }
}
