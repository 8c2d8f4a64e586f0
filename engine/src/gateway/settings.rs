//! What people say of models: `--models-config FILE`, in TOML, or in JSON if the file is called so.
//!
//! ```text
//! version = 1
//!
//! [models."SmolLM2-135M"]
//! aliases = ["small", "claude-haiku"]
//! pinned = true
//! ttl_seconds = 600            # or "off"
//!
//! [models."SmolLM2-135M".profiles.creative]
//! temperature = 0.9
//! max_tokens = 512
//! reasoning_effort = "low"
//! chat_template_kwargs = { tone = "dry" }
//! ```
//!
//! Keys that are not known are errors, and so are values that cannot be meant: each is named when the server
//! starts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::profile::Profile;
use super::request::{Reasoning, ReasoningEffort};
use crate::error::{Code, Error, Result};
use crate::sampling::{PenaltyOverrides, SamplingOverrides};

/// The version of the file that this program reads and writes.
const VERSION: u32 = 1;
/// Names that mean the default model, and can be no alias.
pub(super) const DEFAULT_NAMES: [&str; 3] = ["", "default", "default_model"];

/// What is said of all models, by their ids. By default nothing is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelSettings {
    models: BTreeMap<String, OneModel>,
}

/// What is said of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OneModel {
    /// Further names that clients may call it by.
    pub aliases: Vec<String>,
    /// Whether it stays loaded until a person says otherwise.
    pub pinned: Option<bool>,
    /// How long it stays loaded after its last use, `Some(None)` for ever; `None` leaves that to the server.
    pub ttl: Option<Option<Duration>>,
    /// By their names.
    pub profiles: BTreeMap<String, Profile>,
}

impl ModelSettings {
    /// Reads `path`.
    ///
    /// # Errors
    /// `InvalidRequest` naming the file, and the key or value that cannot be meant.
    pub fn read(path: &Path) -> Result<Self> {
        let attempt = format!("failed to read `{}`", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::new(Code::Io, error.to_string()).while_doing(&attempt))?;
        let json = path.extension().is_some_and(|extension| extension == "json");
        let settings = if json { Self::of_json(&text) } else { Self::of_toml(&text) };
        settings.map_err(|error| error.while_doing(attempt))
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// As [`ModelSettings::read`].
    pub fn of_toml(text: &str) -> Result<Self> {
        let file = toml::from_str::<SettingsFile>(text);
        file.map_err(|error| invalid(error.to_string().trim().replace('\n', " ")))
            .and_then(Self::of)
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// As [`ModelSettings::read`].
    pub fn of_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| invalid(error.to_string())).and_then(Self::of)
    }

    /// What is said of the model `id`, if anything is.
    pub fn of_model(&self, id: &str) -> Option<&OneModel> {
        self.models.get(id)
    }

    /// The model that has this alias.
    pub fn aliased(&self, alias: &str) -> Option<&str> {
        let has = |one: &OneModel| one.aliases.iter().any(|own| own == alias);
        self.models.iter().find(|(_, one)| has(one)).map(|(id, _)| id.as_str())
    }

    /// Ids of all models of which something is said.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(String::as_str)
    }

    fn of(file: SettingsFile) -> Result<Self> {
        if file.version != VERSION {
            let message = format!("`version` is {}, expected {VERSION}", file.version);
            return Err(invalid(message));
        }
        let mut models = BTreeMap::new();
        for (id, model) in file.models {
            let one = model.settings(&format!("models.{id}"))?;
            models.insert(id, one);
        }
        let settings = Self { models };
        settings.check_aliases()?;
        Ok(settings)
    }

    fn check_aliases(&self) -> Result<()> {
        let mut seen = BTreeMap::new();
        for (id, one) in &self.models {
            for alias in &one.aliases {
                let taken =
                    seen.insert(alias, id).map(|other| format!("an alias of `{other}` too"));
                let taken = taken.or_else(|| {
                    self.models.contains_key(alias).then(|| "the name of another model".to_owned())
                });
                let reserved = DEFAULT_NAMES.contains(&alias.as_str());
                let taken =
                    taken.or_else(|| reserved.then(|| "a name of the default model".to_owned()));
                if let Some(taken) = taken {
                    let message = format!("`models.{id}.aliases`: `{alias}` is {taken}");
                    return Err(invalid(message));
                }
            }
        }
        Ok(())
    }
}

/// The file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsFile {
    version: u32,
    #[serde(default)]
    models: BTreeMap<String, ModelFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFile {
    #[serde(default)]
    aliases: Vec<String>,
    pinned: Option<bool>,
    ttl_seconds: Option<TtlFile>,
    #[serde(default)]
    profiles: BTreeMap<String, ProfileFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum TtlFile {
    Seconds(u64),
    Word(String),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<u32>,
    min_p: Option<f64>,
    xtc_probability: Option<f64>,
    xtc_threshold: Option<f64>,
    repetition_penalty: Option<f64>,
    repetition_context_size: Option<usize>,
    presence_penalty: Option<f64>,
    presence_context_size: Option<usize>,
    frequency_penalty: Option<f64>,
    frequency_context_size: Option<usize>,
    max_tokens: Option<usize>,
    reasoning_effort: Option<String>,
    enable_thinking: Option<bool>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

impl ModelFile {
    fn settings(self, path: &str) -> Result<OneModel> {
        let ttl = match self.ttl_seconds {
            None => None,
            Some(TtlFile::Seconds(seconds)) => Some(Some(Duration::from_secs(seconds))),
            Some(TtlFile::Word(word)) if word == "off" => Some(None),
            Some(TtlFile::Word(word)) => {
                let message =
                    format!("`{path}.ttl_seconds` is `{word}`, expected seconds or `off`");
                return Err(invalid(message));
            }
        };
        let mut profiles = BTreeMap::new();
        for (name, profile) in self.profiles {
            let path = format!("{path}.profiles.{name}");
            if name.is_empty() || name.contains(':') {
                let message = format!("`{path}`: a profile's name is not empty and has no colon");
                return Err(invalid(message));
            }
            profiles.insert(name, profile.profile(&path)?);
        }
        Ok(OneModel { aliases: self.aliases, pinned: self.pinned, ttl, profiles })
    }
}

impl ProfileFile {
    fn profile(self, path: &str) -> Result<Profile> {
        let within = |name: &str, number: Option<f64>, least: f64, most: f64| match number {
            Some(number) if !(least..=most).contains(&number) => {
                let range = format!("{least} to {most}");
                Err(invalid(format!("`{path}.{name}` is {number}, expected {range}")))
            }
            number => Ok(number.map(|number| number as f32)),
        };
        let penalty = |amount, context_tokens| PenaltyOverrides { amount, context_tokens };
        let factor = within("repetition_penalty", self.repetition_penalty, 0.0, 1e6)?;
        let presence = within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        let frequency = within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        let sampling = SamplingOverrides {
            temperature: within("temperature", self.temperature, 0.0, 2.0)?,
            top_p: within("top_p", self.top_p, 0.0, 1.0)?,
            min_p: within("min_p", self.min_p, 0.0, 1.0)?,
            top_k: self.top_k,
            xtc_probability: within("xtc_probability", self.xtc_probability, 0.0, 1.0)?,
            xtc_threshold: within("xtc_threshold", self.xtc_threshold, 0.0, 1.0)?,
            repetition: penalty(factor, self.repetition_context_size),
            presence: penalty(presence, self.presence_context_size),
            frequency: penalty(frequency, self.frequency_context_size),
        };
        if self.max_tokens == Some(0) {
            return Err(invalid(format!("`{path}.max_tokens` is 0, expected at least 1")));
        }
        let asked = self.reasoning_effort.as_deref();
        let reasoning = reasoning(asked, self.enable_thinking).map_err(|word| {
            invalid(format!("`{path}.reasoning_effort` is `{word}`, which is no effort"))
        })?;
        let (max_tokens, template_variables) = (self.max_tokens, self.chat_template_kwargs);
        Ok(Profile { sampling, max_tokens, reasoning, template_variables })
    }
}

/// How a model is asked to think by OpenAI's word, if it is one, and a switch that wins over all but `none`.
fn reasoning(
    effort: Option<&str>,
    enabled: Option<bool>,
) -> std::result::Result<Option<Reasoning>, &str> {
    let asked = match effort {
        None => return Ok(enabled.map(|on| Reasoning { enabled: Some(on), effort: None })),
        Some("none") => return Ok(Some(Reasoning { enabled: Some(false), effort: None })),
        Some("max") => ReasoningEffort::ExtraHigh,
        Some(word) => ReasoningEffort::named(word).ok_or(word)?,
    };
    Ok(Some(Reasoning { enabled: enabled.or(Some(true)), effort: Some(asked) }))
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        version = 1
        [models.small]
        aliases = ["s", "claude-haiku"]
        pinned = false
        ttl_seconds = 30
        [models.small.profiles.wild]
        temperature = 1.5
        top_k = 0
        presence_penalty = -1.0
        presence_context_size = 0
        max_tokens = 9
        reasoning_effort = "low"
        chat_template_kwargs = { tone = "dry", deep = { n = [1, 2] } }
        [models."org/large"]
        ttl_seconds = "off"
    "#;

    #[test]
    fn a_file_says_what_its_keys_say() {
        let settings = ModelSettings::of_toml(WHOLE).unwrap();
        assert_eq!(settings.ids().collect::<Vec<_>>(), ["org/large", "small"]);
        assert_eq!((settings.aliased("s"), settings.aliased("small")), (Some("small"), None));
        let small = settings.of_model("small").unwrap();
        assert_eq!(small.pinned, Some(false));
        assert_eq!(small.ttl, Some(Some(Duration::from_secs(30))));
        assert_eq!(settings.of_model("org/large").unwrap().ttl, Some(None));
        let variables = serde_json::json!({"tone": "dry", "deep": {"n": [1, 2]}});
        let expected = Profile {
            sampling: SamplingOverrides {
                temperature: Some(1.5),
                top_k: Some(0),
                presence: PenaltyOverrides { amount: Some(-1.0), context_tokens: Some(0) },
                ..SamplingOverrides::default()
            },
            max_tokens: Some(9),
            reasoning: Some(Reasoning { enabled: Some(true), effort: Some(ReasoningEffort::Low) }),
            template_variables: variables.as_object().unwrap().clone(),
        };
        assert_eq!(small.profiles["wild"], expected);
    }

    #[test]
    fn json_says_the_same() {
        let value: Value = toml::from_str(WHOLE).unwrap();
        let settings = ModelSettings::of_json(&value.to_string()).unwrap();
        assert_eq!(settings, ModelSettings::of_toml(WHOLE).unwrap());
    }

    #[track_caller]
    fn check_refused(lines: &str, words: &[&str]) {
        let text = format!("version = 1\n{lines}");
        let error = ModelSettings::of_toml(&text).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        for word in words {
            assert!(error.message().contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn keys_that_are_not_known_are_named() {
        check_refused("modles = {}", &["modles"]);
        check_refused("[models.a]\nalias = 'b'", &["alias"]);
        check_refused("[models.a.profiles.p]\ntemprature = 1.0", &["temprature"]);
    }

    #[test]
    fn values_that_cannot_be_meant_are_named_with_their_place() {
        for (lines, words) in [
            (
                "[models.a.profiles.p]\ntemperature = 2.5",
                ["models.a.profiles.p.temperature", "2.5"],
            ),
            ("[models.a.profiles.p]\ntop_p = -0.1", ["top_p", "-0.1"]),
            ("[models.a.profiles.p]\nmin_p = nan", ["min_p", "NaN"]),
            ("[models.a.profiles.p]\nmax_tokens = 0", ["max_tokens", "at least 1"]),
            ("[models.a.profiles.p]\nreasoning_effort = 'hard'", ["reasoning_effort", "`hard`"]),
            ("[models.a.profiles.'p:q']", ["p:q", "colon"]),
            ("[models.a]\nttl_seconds = 'never'", ["models.a.ttl_seconds", "`never`"]),
            ("[models.a]\naliases = ['b']\n[models.b]", ["models.a.aliases", "another model"]),
            ("[models.a]\naliases = ['x']\n[models.b]\naliases = ['x']", ["`x`", "alias of `a`"]),
            ("[models.a]\naliases = ['default']", ["`default`", "default model"]),
        ] {
            check_refused(lines, &words);
        }
    }

    #[test]
    fn another_version_is_refused_and_none_too() {
        let error = ModelSettings::of_toml("version = 2").unwrap_err();
        assert!(error.message().contains("`version` is 2"), "{error}");
        assert!(ModelSettings::of_toml("").unwrap_err().message().contains("version"));
    }

    #[test]
    fn words_of_effort_are_openais() {
        let of = |word, on| reasoning(Some(word), on);
        assert_eq!(
            of("none", Some(true)),
            Ok(Some(Reasoning { enabled: Some(false), effort: None }))
        );
        let hard = Reasoning { enabled: Some(true), effort: Some(ReasoningEffort::ExtraHigh) };
        assert_eq!((of("max", None), of("xhigh", None)), (Ok(Some(hard)), Ok(Some(hard))));
        assert_eq!(reasoning(None, None), Ok(None));
        let off = Reasoning { enabled: Some(false), effort: None };
        assert_eq!(reasoning(None, Some(false)), Ok(Some(off)));
    }
}
