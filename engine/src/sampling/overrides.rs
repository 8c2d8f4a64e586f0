//! Who says how tokens are picked: the request, else a flag, else the model, else what is built in.
//!
//! Each of the first three is a [`SamplingOverrides`] over what comes after it.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use super::{Penalty, SamplingParams, Xtc};
use crate::error::{Code, Error, Result};

/// Where a model says how it wants to be sampled.
const FILE: &str = "generation_config.json";

const FINITE_F32: f64 = f32::MAX as f64;

/// What one of them says, in the ranges of [`SamplingParams`]; what is unset is left to the next.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOverrides {
    /// How evenly tokens are drawn.
    pub temperature: Option<f32>,
    /// The mass that is kept.
    pub top_p: Option<f32>,
    /// The fraction of the likeliest token's probability that is kept.
    pub min_p: Option<f32>,
    /// How many tokens are kept.
    pub top_k: Option<u32>,
    /// How often the likeliest tokens are dropped.
    pub xtc_probability: Option<f32>,
    /// How likely those are.
    pub xtc_threshold: Option<f32>,
    /// The factor for tokens that were seen; 0 and 1 are off.
    pub repetition: PenaltyOverrides,
    /// The term for tokens that were seen.
    pub presence: PenaltyOverrides,
    /// The term for each time that a token was seen.
    pub frequency: PenaltyOverrides,
}

/// What one of them says of a [`Penalty`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PenaltyOverrides {
    /// How hard it is.
    pub amount: Option<f32>,
    /// How far it looks back; 0 is all the way.
    pub context_tokens: Option<usize>,
}

impl SamplingOverrides {
    /// `below` with what is set here.
    #[must_use]
    pub fn over(&self, below: &SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(below.temperature),
            top_p: self.top_p.unwrap_or(below.top_p),
            min_p: self.min_p.unwrap_or(below.min_p),
            top_k: self.top_k.unwrap_or(below.top_k),
            xtc: Xtc {
                probability: self.xtc_probability.unwrap_or(below.xtc.probability),
                threshold: self.xtc_threshold.unwrap_or(below.xtc.threshold),
                exempt: below.xtc.exempt.clone(),
            },
            repetition: self.repetition.over(below.repetition),
            presence: self.presence.over(below.presence),
            frequency: self.frequency.over(below.frequency),
            ..below.clone()
        }
    }

    /// What the model in `directory` says in its generation_config.json: `temperature`, `top_p`,
    /// `top_k`, `min_p`, `repetition_penalty`, and `do_sample`. Without the file it says nothing.
    ///
    /// `do_sample: false` is a temperature of 0; `do_sample: true` without a temperature is one of 1, as in
    /// transformers. A `top_k` of -1 is off, as 0 is.
    ///
    /// # Errors
    /// `BadModel`, naming file and field, when the file is no JSON object or a field is out of range.
    pub fn of_model(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let bad = |reason: String| {
            let attempt = format!("failed to read `{}`", path.display());
            Error::new(Code::BadModel, reason).while_doing(attempt)
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(bad(error.to_string())),
        };
        let fields = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        Self::of_fields(&fields).map_err(bad)
    }

    fn of_fields(fields: &Map<String, Value>) -> std::result::Result<Self, String> {
        let number = |name, range| number(fields, name, range);
        let temperature = number("temperature", 0.0..=FINITE_F32)?;
        let top_k = number("top_k", -1.0..=f64::from(u32::MAX))?;
        Ok(Self {
            temperature: match read(fields, "do_sample", "a boolean", Value::as_bool)? {
                Some(false) => Some(0.0),
                Some(true) => temperature.or(Some(1.0)),
                None => temperature,
            },
            top_p: number("top_p", 0.0..=1.0)?,
            min_p: number("min_p", 0.0..=1.0)?,
            top_k: top_k.map(|top_k| top_k as u32),
            repetition: PenaltyOverrides {
                amount: number("repetition_penalty", 0.0..=FINITE_F32)?,
                context_tokens: None,
            },
            ..Self::default()
        })
    }
}

impl PenaltyOverrides {
    fn over(self, below: Penalty) -> Penalty {
        Penalty {
            amount: self.amount.unwrap_or(below.amount),
            context_tokens: self.context_tokens.unwrap_or(below.context_tokens),
        }
    }
}

fn number(
    fields: &Map<String, Value>,
    name: &str,
    range: RangeInclusive<f64>,
) -> std::result::Result<Option<f32>, String> {
    match read(fields, name, "a number", Value::as_f64)? {
        Some(number) if !range.contains(&number) => {
            Err(format!("`{name}` is {number}, expected {} to {}", range.start(), range.end()))
        }
        number => Ok(number.map(|number| number as f32)),
    }
}

/// A field that is null says as little as one that is absent.
fn read<T>(
    fields: &Map<String, Value>,
    name: &str,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> std::result::Result<Option<T>, String> {
    let value = fields.get(name).filter(|value| !value.is_null());
    value
        .map(|value| read(value).ok_or_else(|| format!("`{name}` is `{value}`, not {expected}")))
        .transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_model(config: &str) -> Result<SamplingOverrides> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), config).unwrap();
        SamplingOverrides::of_model(directory.path())
    }

    fn sampled(config: &Value) -> SamplingParams {
        of_model(&config.to_string()).unwrap().over(&SamplingParams::default())
    }

    #[test]
    fn a_model_says_what_its_file_says_and_nothing_without_one() {
        let directory = tempfile::tempdir().unwrap();
        let silent = SamplingOverrides::default();
        assert_eq!(SamplingOverrides::of_model(directory.path()).unwrap(), silent);
        assert_eq!(of_model(r#"{"eos_token_id": 2, "top_p": null}"#).unwrap(), silent);
        let said = sampled(&json!({
            "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.125, "repetition_penalty": 1.05,
        }));
        let expected = SamplingParams {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            min_p: 0.125,
            repetition: Penalty::of(1.05),
            ..SamplingParams::default()
        };
        assert_eq!(said, expected);
    }

    #[test]
    fn do_sample_decides_over_the_temperature() {
        for (config, temperature) in [
            (json!({"do_sample": false, "temperature": 0.6}), 0.0),
            (json!({"do_sample": true, "temperature": 0.6}), 0.6),
            (json!({"do_sample": true}), 1.0),
            (json!({"temperature": 0.6}), 0.6),
            (json!({}), 0.0),
        ] {
            assert_eq!(sampled(&config).temperature, temperature, "{config}");
        }
    }

    #[test]
    fn a_top_k_of_minus_one_is_off() {
        assert_eq!(of_model(r#"{"top_k": -1}"#).unwrap().top_k, Some(0));
    }

    #[test]
    fn a_field_that_cannot_be_meant_is_named_with_its_file_and_value() {
        for (config, words) in [
            (r#"{"temperature": -1}"#, "`temperature` is -1"),
            (r#"{"top_p": 1.5}"#, "`top_p` is 1.5"),
            (r#"{"top_k": "many"}"#, "`top_k` is `\"many\"`, not a number"),
            (r#"{"do_sample": 1}"#, "`do_sample` is `1`, not a boolean"),
            ("[]", "generation_config.json"),
            ("{", "generation_config.json"),
        ] {
            let error = of_model(config).unwrap_err();
            assert_eq!(error.code(), Code::BadModel, "{config}");
            assert!(error.message().contains(words), "{config}: {error}");
            assert!(error.message().contains(FILE), "{config}: {error}");
        }
    }

    #[test]
    fn each_field_is_the_first_ones_that_says_it() {
        let model = of_model(r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.9}"#).unwrap();
        let flags = SamplingOverrides {
            top_p: Some(0.5),
            top_k: Some(0),
            xtc_threshold: Some(0.3),
            ..SamplingOverrides::default()
        };
        let request = SamplingOverrides {
            top_p: Some(1.0),
            presence: PenaltyOverrides { amount: None, context_tokens: Some(7) },
            ..SamplingOverrides::default()
        };
        let built_in = SamplingParams::default();
        let params = request.over(&flags.over(&model.over(&built_in)));
        let expected = SamplingParams {
            temperature: 0.6,
            top_p: 1.0,
            top_k: 0,
            xtc: Xtc { threshold: 0.3, ..Xtc::default() },
            presence: Penalty { amount: 0.0, context_tokens: 7 },
            ..built_in
        };
        assert_eq!(params, expected);
    }
}
