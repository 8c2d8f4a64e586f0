//! What a checkpoint declares of the vectors it makes of texts: the files of sentence-transformers.
//!
//! `modules.json` lists what a text passes on its way to a vector. A directory that has one, or another of
//! that library's files, is an *embedding model*, and answers nothing; any other is a chat model. Only what is
//! proven is taken: the transformer, then the pooling of the last token, then the division by the length.
//! Everything else that changes a vector is refused by name.
//!
//! Whether a vector may be *cut* to its first numbers (Kusupati et al. 2022, "Matryoshka Representation
//! Learning") is in `config.json`, by vLLM's names: `matryoshka_dimensions` or `is_matryoshka`. Checkpoints
//! mostly do not say it, so whoever starts the server may.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Component, Path};

use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};

const MODULES: &str = "modules.json";
const POOLING: &str = "1_Pooling/config.json";
const SENTENCES: &str = "config_sentence_transformers.json";
const TRANSFORMER: &str = "sentence_bert_config.json";
const CONFIG: &str = "config.json";

/// How a model makes vectors of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextVectors {
    /// Numbers of a whole vector.
    pub dimensions: usize,
    /// Which shorter ones may be asked for.
    pub cuts: Cuts,
    /// What stands before every text that is not given as tokens; mostly nothing.
    pub prefix: String,
    /// Tokens of a text at most, where they are fewer than the context holds.
    pub text_tokens_max: Option<usize>,
}

/// To how many of its first numbers a vector may be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cuts {
    /// None: the model was not trained for it, as far as it says.
    None,
    /// Any.
    Any,
    /// These.
    To(Vec<usize>),
}

impl TextVectors {
    /// What the files in `directory` declare of a model with hidden states of `hidden_size` numbers; `None`
    /// for a chat model.
    ///
    /// # Errors
    /// `BadModel` when a file is missing or unreadable, or declares something else than is supported.
    pub fn of_model(directory: &Path, hidden_size: usize) -> Result<Option<Self>> {
        if ![MODULES, POOLING, SENTENCES].iter().any(|name| directory.join(name).exists()) {
            return Ok(None);
        }
        let sentences = object(directory, SENTENCES)?.unwrap_or_default();
        check_modules(directory, hidden_size, &sentences)?;
        check_uncut(&sentences, hidden_size)?;
        let transformer = object(directory, TRANSFORMER)?.unwrap_or_default();
        check_only(TRANSFORMER, &transformer, "do_lower_case", &Value::Bool(false))?;
        let config = object(directory, CONFIG)?.unwrap_or_default();
        check_only(CONFIG, &config, "is_causal", &Value::Bool(true))?;
        check_only(CONFIG, &config, "use_bidirectional_attention", &Value::Bool(false))?;
        Ok(Some(Self {
            dimensions: hidden_size,
            cuts: cuts(&config, hidden_size)?,
            prefix: prefix(&sentences)?,
            text_tokens_max: text_tokens_max(&transformer)?,
        }))
    }

    /// Holds a wish for vectors of `dimensions` numbers against the model.
    ///
    /// # Errors
    /// `InvalidRequest`, saying what there is.
    pub fn check_dimensions(&self, dimensions: usize) -> Result<()> {
        let whole = self.dimensions;
        let fits = match &self.cuts {
            _ if dimensions == whole => true,
            Cuts::None => false,
            Cuts::Any => (1..=whole).contains(&dimensions),
            Cuts::To(few) => few.contains(&dimensions),
        };
        if fits {
            return Ok(());
        }
        let message = format!("`dimensions` must be {self}, got {dimensions}");
        let error = Error::invalid("dimensions", message);
        Err(match self.cuts {
            Cuts::None => error.with_hint(
                "shorter vectors of a model that was not trained for it say little; `--matryoshka` tells \
                 the server that this one was",
            ),
            Cuts::Any | Cuts::To(_) => error,
        })
    }
}

impl fmt::Display for TextVectors {
    /// The dimensions that can be had.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cuts {
            Cuts::None => write!(formatter, "{}", self.dimensions),
            Cuts::Any => write!(formatter, "from 1 to {}", self.dimensions),
            Cuts::To(few) => {
                let few: Vec<String> = few.iter().map(ToString::to_string).collect();
                write!(formatter, "one of {}, or {}", few.join(", "), self.dimensions)
            }
        }
    }
}

/// Whether the modules are those that are supported, in their order.
fn check_modules(
    directory: &Path,
    hidden_size: usize,
    sentences: &Map<String, Value>,
) -> Result<()> {
    let Some(Value::Array(modules)) = json(directory, MODULES)? else {
        return Err(bad(
            MODULES,
            "it is missing, or no list, beside other files of an embedding model",
        ));
    };
    let kinds = modules.iter().map(kind).collect::<Result<Vec<_>>>()?;
    match kinds.as_slice() {
        ["Transformer", "Pooling", "Normalize"] => {}
        // A vector's length is then no part of the comparison, so length 1 is as good as any.
        ["Transformer", "Pooling"] => {
            let cosine = Value::String("cosine".to_owned());
            check_only(SENTENCES, sentences, "similarity_fn_name", &cosine)?;
        }
        _ => {
            let message = format!("its modules are {}", kinds.join(", "));
            return Err(bad(MODULES, &message)
                .with_hint("supported: Transformer, Pooling and Normalize, in this order"));
        }
    }
    let place =
        |index: usize| modules[index].get("path").and_then(Value::as_str).unwrap_or_default();
    if !place(0).is_empty() {
        return Err(bad(
            MODULES,
            &format!("the transformer lies in `{}`, not beside it", place(0)),
        ));
    }
    check_pooling(directory, place(1), hidden_size)
}

/// The name of a module's class.
fn kind(module: &Value) -> Result<&str> {
    let kind = module.get("type").and_then(Value::as_str);
    kind.and_then(|kind| kind.strip_prefix("sentence_transformers.")?.rsplit('.').next())
        .ok_or_else(|| bad(MODULES, &format!("no module of sentence-transformers: {module}")))
}

/// Whether the pooling in `place` takes the last token, and nothing else.
fn check_pooling(directory: &Path, place: &str, hidden_size: usize) -> Result<()> {
    let inside = Path::new(place).components().all(|part| matches!(part, Component::Normal(_)));
    if place.is_empty() || !inside {
        return Err(bad(MODULES, &format!("`{place}` is no folder of the model's directory")));
    }
    let name = format!("{place}/config.json");
    let pooling = object(directory, &name)?.ok_or_else(|| bad(&name, "it is missing"))?;
    let last = match pooling.get("pooling_mode") {
        Some(mode) if !mode.is_null() => mode == "lasttoken",
        // The mean is the library's default.
        _ => {
            let told = |mode: &str| pooling.get(mode).and_then(Value::as_bool);
            let others = pooling.keys().filter(|mode| mode.starts_with("pooling_mode_"));
            told("pooling_mode_mean_tokens") == Some(false)
                && others
                    .into_iter()
                    .all(|mode| told(mode) == Some(mode == "pooling_mode_lasttoken"))
                && pooling.contains_key("pooling_mode_lasttoken")
        }
    };
    if !last {
        return Err(bad(&name, "it pools otherwise than by the last token alone")
            .with_hint("supported: `pooling_mode_lasttoken`"));
    }
    let size = Value::from(hidden_size);
    check_only(&name, &pooling, "word_embedding_dimension", &size)?;
    check_only(&name, &pooling, "embedding_dimension", &size)
}

fn check_uncut(sentences: &Map<String, Value>, hidden_size: usize) -> Result<()> {
    check_only(SENTENCES, sentences, "truncate_dim", &Value::from(hidden_size))
}

/// What stands before a text when nobody says what it is for.
fn prefix(sentences: &Map<String, Value>) -> Result<String> {
    let Some(name) = sentences.get("default_prompt_name").filter(|name| !name.is_null()) else {
        return Ok(String::new());
    };
    let prompts = sentences.get("prompts").and_then(Value::as_object);
    let prompt = name.as_str().and_then(|name| prompts?.get(name)?.as_str());
    let prompt = prompt.ok_or_else(|| bad(SENTENCES, &format!("it has no prompt {name}")))?;
    Ok(prompt.to_owned())
}

fn text_tokens_max(transformer: &Map<String, Value>) -> Result<Option<usize>> {
    match transformer.get("max_seq_length").filter(|length| !length.is_null()) {
        None => Ok(None),
        Some(length) => count(TRANSFORMER, "max_seq_length", length, usize::MAX).map(Some),
    }
}

fn cuts(config: &Map<String, Value>, hidden_size: usize) -> Result<Cuts> {
    const FEW: &str = "matryoshka_dimensions";
    const ANY: &str = "is_matryoshka";
    let there = |name| config.get(name).filter(|value: &&Value| !value.is_null());
    match (there(FEW), there(ANY)) {
        (Some(Value::Array(few)), _) => {
            let few = few.iter().map(|size| count(CONFIG, FEW, size, hidden_size));
            Ok(Cuts::To(few.collect::<Result<_>>()?))
        }
        (Some(other), _) => Err(bad(CONFIG, &format!("it has a bad `{FEW}`: {other}"))),
        (None, Some(Value::Bool(true))) => Ok(Cuts::Any),
        (None, None | Some(Value::Bool(false))) => Ok(Cuts::None),
        (None, Some(other)) => Err(bad(CONFIG, &format!("it has a bad `{ANY}`: {other}"))),
    }
}

fn count(file: &str, name: &str, value: &Value, most: usize) -> Result<usize> {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| bad(file, &format!("it has a bad `{name}`: {value}")))
}

/// Refuses another value of a field than `proven`; it may be absent or null.
fn check_only(file: &str, fields: &Map<String, Value>, name: &str, proven: &Value) -> Result<()> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(()),
        Some(value) if value == proven => Ok(()),
        Some(value) => Err(bad(file, &format!("its `{name}` is {value}"))
            .with_hint(format!("only {proven} is supported"))),
    }
}

fn object(directory: &Path, name: &str) -> Result<Option<Map<String, Value>>> {
    match json(directory, name)? {
        None => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(_) => Err(bad(name, "it is no JSON object")),
    }
}

fn json(directory: &Path, name: &str) -> Result<Option<Value>> {
    match std::fs::read(directory.join(name)) {
        Ok(bytes) => {
            let value = serde_json::from_slice(&bytes);
            value.map(Some).map_err(|error| bad(name, &error.to_string()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bad(name, &error.to_string())),
    }
}

fn bad(file: &str, what: &str) -> Error {
    Error::new(Code::BadModel, format!("failed to read `{file}` of an embedding model: {what}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    const POOLS: &str = "sentence_transformers.models.Pooling";
    const SIZE: usize = 32;

    /// The files of a Qwen3-Embedding, with some in place of them.
    fn model(others: &[(&str, Value)]) -> TempDir {
        let module = |index: usize, path: &str, kind: &str| {
            let kind = format!("sentence_transformers.models.{kind}");
            json!({"idx": index, "name": index.to_string(), "path": path, "type": kind})
        };
        let files = [
            (CONFIG, json!({"hidden_size": SIZE})),
            (
                MODULES,
                json!([
                    module(0, "", "Transformer"),
                    module(1, "1_Pooling", "Pooling"),
                    module(2, "2_Normalize", "Normalize")
                ]),
            ),
            (
                POOLING,
                json!({
                    "word_embedding_dimension": SIZE, "pooling_mode_cls_token": false,
                    "pooling_mode_mean_tokens": false, "pooling_mode_max_tokens": false,
                    "pooling_mode_lasttoken": true, "include_prompt": true,
                }),
            ),
            (
                SENTENCES,
                json!({"prompts": {"query": "Q: ", "document": ""}, "default_prompt_name": null}),
            ),
        ];
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("1_Pooling")).unwrap();
        for (name, value) in files.iter().chain(others) {
            let path = directory.path().join(name);
            match value {
                Value::Null => std::fs::remove_file(path).unwrap(),
                value => std::fs::write(path, value.to_string()).unwrap(),
            }
        }
        directory
    }

    fn read(others: &[(&str, Value)]) -> Result<Option<TextVectors>> {
        TextVectors::of_model(model(others).path(), SIZE)
    }

    fn vectors(others: &[(&str, Value)]) -> TextVectors {
        read(others).unwrap().unwrap()
    }

    fn modules(kinds: &[&str]) -> Value {
        let module = |(index, kind): (usize, &&str)| {
            let path = if index == 1 { "1_Pooling" } else { "" };
            json!({"path": path, "type": format!("sentence_transformers.models.{kind}")})
        };
        kinds.iter().enumerate().map(module).collect()
    }

    #[test]
    fn a_directory_without_files_of_sentence_transformers_is_a_chat_model() {
        let none = [(MODULES, Value::Null), (POOLING, Value::Null), (SENTENCES, Value::Null)];
        assert_eq!(read(&none).unwrap(), None);
    }

    #[test]
    fn the_files_of_a_last_token_model_declare_its_vectors() {
        let plain = TextVectors {
            dimensions: SIZE,
            cuts: Cuts::None,
            prefix: String::new(),
            text_tokens_max: None,
        };
        assert_eq!(vectors(&[]), plain);
        assert_eq!(vectors(&[(SENTENCES, Value::Null)]), plain);
        let newer = json!({"embedding_dimension": SIZE, "pooling_mode": "lasttoken"});
        assert_eq!(vectors(&[(POOLING, newer)]), plain);
        assert_eq!(vectors(&[(MODULES, modules(&["Transformer", "Pooling"]))]), plain);
        let prompted = json!({"prompts": {"query": "Q: "}, "default_prompt_name": "query"});
        let short = json!({"max_seq_length": 12, "do_lower_case": false});
        let both = vectors(&[(SENTENCES, prompted), (TRANSFORMER, short)]);
        assert_eq!((both.prefix.as_str(), both.text_tokens_max), ("Q: ", Some(12)));
    }

    #[test]
    fn vectors_are_cut_where_the_model_says_so_and_only_there() {
        let cut = |config: Value| vectors(&[(CONFIG, config)]).cuts;
        assert_eq!(cut(json!({"is_matryoshka": true})), Cuts::Any);
        assert_eq!(cut(json!({"is_matryoshka": false})), Cuts::None);
        let few = cut(json!({"is_matryoshka": true, "matryoshka_dimensions": [8, 16]}));
        assert_eq!(few, Cuts::To(vec![8, 16]));
        let fitting = |cuts: Cuts| {
            let vectors = TextVectors { cuts, ..vectors(&[]) };
            (0..40).filter(|size| vectors.check_dimensions(*size).is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(fitting(Cuts::None), [32]);
        assert_eq!(fitting(few), [8, 16, 32]);
        assert_eq!(fitting(Cuts::Any), (1..=32).collect::<Vec<_>>());
        let error = vectors(&[]).check_dimensions(8).unwrap_err();
        assert_eq!(error.param(), Some("dimensions"));
        assert!(error.hint().unwrap().contains("--matryoshka"), "{error}");
    }

    #[test]
    fn what_would_change_a_vector_and_is_not_supported_is_refused_by_name() {
        let mean = json!({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true});
        let silent = json!({"pooling_mode_lasttoken": true});
        let away = json!([{"path": "", "type": "sentence_transformers.models.Transformer"},
                          {"path": "../x", "type": POOLS}]);
        let dot = json!({"similarity_fn_name": "dot"});
        let bare = modules(&["Transformer", "Pooling"]);
        let cases: Vec<(Vec<(&str, Value)>, &str)> = vec![
            (vec![(MODULES, Value::Null)], "modules.json"),
            (vec![(MODULES, json!({}))], "no list"),
            (vec![(MODULES, json!([{"type": "custom.Pooling"}]))], "custom.Pooling"),
            (vec![(MODULES, modules(&["Transformer", "Pooling", "Dense", "Normalize"]))], "Dense"),
            (vec![(MODULES, away)], "../x"),
            (vec![(MODULES, bare), (SENTENCES, dot)], "similarity_fn_name"),
            (vec![(POOLING, Value::Null)], "1_Pooling/config.json"),
            (vec![(POOLING, mean)], "last token"),
            (vec![(POOLING, silent)], "last token"),
            (vec![(POOLING, json!({"pooling_mode": "mean"}))], "last token"),
            (
                vec![(POOLING, json!({"pooling_mode": "lasttoken", "embedding_dimension": 8}))],
                "embedding_dimension",
            ),
            (vec![(SENTENCES, json!({"default_prompt_name": "query"}))], "no prompt"),
            (vec![(SENTENCES, json!({"truncate_dim": 8}))], "truncate_dim"),
            (vec![(SENTENCES, json!([]))], "JSON object"),
            (vec![(TRANSFORMER, json!({"do_lower_case": true}))], "do_lower_case"),
            (vec![(TRANSFORMER, json!({"max_seq_length": 0}))], "max_seq_length"),
            (vec![(CONFIG, json!({"is_causal": false}))], "is_causal"),
            (vec![(CONFIG, json!({"matryoshka_dimensions": [8, 64]}))], "matryoshka_dimensions"),
            (vec![(CONFIG, json!({"is_matryoshka": "yes"}))], "is_matryoshka"),
        ];
        for (files, named) in cases {
            let error = read(&files).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(named), "{named}: {error}");
        }
    }
}
