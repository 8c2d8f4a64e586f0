//! The files of a model directory that say how its text works.
//!
//! Only `tokenizer.json` is required. Chat templates are looked for in the order that transformers
//! uses: `chat_template.jinja`, then `tokenizer_config.json`, then `chat_template.json`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::chat::{ChatTemplate, TemplateSources};
use crate::error::{Code, Error, Result};

/// What was found in the directory, parsed as JSON where it is JSON.
#[derive(Debug)]
pub(super) struct ModelFiles {
    dir: PathBuf,
    tokenizer_config: Map<String, Value>,
    config: Map<String, Value>,
    generation_config: Map<String, Value>,
    template_config: Map<String, Value>,
    template_source: Option<String>,
}

impl ModelFiles {
    pub(super) fn read(dir: &Path) -> Result<Self> {
        Ok(Self {
            dir: dir.to_owned(),
            tokenizer_config: read_object(dir, "tokenizer_config.json")?,
            config: read_object(dir, "config.json")?,
            generation_config: read_object(dir, "generation_config.json")?,
            template_config: read_object(dir, "chat_template.json")?,
            template_source: read_text(dir, "chat_template.jinja")?,
        })
    }

    /// The tokenizer of `tokenizer.json`, without the truncation and padding that some files ask
    /// for: a prompt is never cut or padded behind the request's back.
    pub(super) fn tokenizer(&self) -> Result<tokenizers::Tokenizer> {
        let path = self.dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|error| unreadable(&path, error))?;
        let failed = |error| unreadable(&path, error);
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(failed)?;
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);
        Ok(tokenizer)
    }

    /// A special token of `tokenizer_config.json`, such as `eos_token`: a string, or an object that
    /// holds it as `content`.
    pub(super) fn special_token(&self, name: &str) -> Option<&str> {
        token_text(self.tokenizer_config.get(name)?)
    }

    /// Every `eos_token_id` of `config.json` (also of its `text_config`) and
    /// `generation_config.json`.
    pub(super) fn eos_token_ids(&self) -> Result<Vec<u32>> {
        let text_config = self.config.get("text_config").and_then(Value::as_object);
        let sources = [
            ("config.json", Some(&self.config)),
            ("config.json", text_config),
            ("generation_config.json", Some(&self.generation_config)),
        ];
        let mut ids = Vec::new();
        for (file, source) in sources {
            match source.and_then(|source| source.get("eos_token_id")) {
                None | Some(Value::Null) => {}
                Some(Value::Array(several)) => {
                    for id in several {
                        ids.push(self.token_id(file, id)?);
                    }
                }
                Some(id) => ids.push(self.token_id(file, id)?),
            }
        }
        Ok(ids)
    }

    /// The chat template, compiled.
    pub(super) fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        let Some((path, sources)) = self.template_sources()? else { return Ok(None) };
        let compiled = ChatTemplate::compile(&sources, self.special_tokens());
        compiled.map(Some).map_err(|error| error.while_doing(reading(&path)))
    }

    /// The chat template as it is written, and the file that it is in.
    fn template_sources(&self) -> Result<Option<(PathBuf, TemplateSources)>> {
        let in_config = |config: &Map<String, Value>| config.get("chat_template").cloned();
        let candidates = [
            ("chat_template.jinja", self.template_source.clone().map(Value::String)),
            ("tokenizer_config.json", in_config(&self.tokenizer_config)),
            ("chat_template.json", in_config(&self.template_config)),
        ];
        let mut found = candidates.into_iter().filter_map(|(file, value)| Some((file, value?)));
        let Some((file, value)) = found.find(|(_, value)| !value.is_null()) else {
            return Ok(None);
        };
        let path = self.dir.join(file);
        match template_sources(&value) {
            Some(sources) => Ok(Some((path, sources))),
            None => {
                let reason =
                    "`chat_template` is neither a string nor a list of names and templates";
                Err(unreadable(&path, reason))
            }
        }
    }

    /// `tool_parser_type`, which mlx-lm's conversions write.
    pub(super) fn tool_parser(&self) -> Option<String> {
        self.tokenizer_config.get("tool_parser_type")?.as_str().map(str::to_owned)
    }

    /// The tokens that a template may name: `bos_token`, `eos_token` and their kind.
    fn special_tokens(&self) -> Vec<(String, String)> {
        let named = self.tokenizer_config.iter().filter(|(name, _)| name.ends_with("_token"));
        named.filter_map(|(name, value)| Some((name.clone(), token_text(value)?.into()))).collect()
    }

    fn token_id(&self, file: &str, value: &Value) -> Result<u32> {
        value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            let reason = format!("`eos_token_id` is `{value}`, which is not a token id");
            unreadable(&self.dir.join(file), reason)
        })
    }
}

/// What the files of a model directory say of its chats, without its tokenizer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatFiles {
    /// The chat template's source, that of requests without tools where there are two.
    pub template: Option<String>,
    /// The name of the tool calls' format, where the files state one.
    pub tool_parser: Option<String>,
}

impl ChatFiles {
    /// Reads the small files of the model in `dir`.
    ///
    /// # Errors
    /// `BadModel`, naming the file, when one is corrupt or its template is none.
    pub fn read(dir: &Path) -> Result<Self> {
        let files = ModelFiles::read(dir)?;
        files.chat_template()?;
        let sources = files.template_sources()?;
        let template = sources.map(|(_, sources)| sources.default);
        Ok(Self { template, tool_parser: files.tool_parser() })
    }
}

fn token_text(value: &Value) -> Option<&str> {
    match value {
        Value::Object(fields) => fields.get("content")?.as_str(),
        value => value.as_str(),
    }
}

/// One template, or several by name: transformers takes `tool_use`, if there is one, for requests
/// with tools and `default` for the others.
fn template_sources(value: &Value) -> Option<TemplateSources> {
    if let Value::String(source) = value {
        return Some(TemplateSources { default: source.clone(), tool_use: None });
    }
    let mut named = Vec::new();
    for entry in value.as_array()? {
        named.push((entry.get("name")?.as_str()?, entry.get("template")?.as_str()?));
    }
    let of = |wanted: &str| named.iter().find(|(name, _)| *name == wanted);
    let (_, default) = of("default").or(named.first())?;
    let tool_use = of("tool_use").map(|(_, source)| (*source).to_owned());
    Some(TemplateSources { default: (*default).to_owned(), tool_use })
}

/// The object in a JSON file; an absent file is an empty one.
fn read_object(dir: &Path, file: &str) -> Result<Map<String, Value>> {
    let Some(text) = read_text(dir, file)? else {
        return Ok(Map::new());
    };
    serde_json::from_str(&text).map_err(|error| unreadable(&dir.join(file), error))
}

fn read_text(dir: &Path, file: &str) -> Result<Option<String>> {
    let path = dir.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&path, error)),
    }
}

fn reading(path: &Path) -> String {
    format!("failed to read `{}`", path.display())
}

fn unreadable(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::new(Code::BadModel, reason.to_string()).while_doing(reading(path))
}
