//! Chat templates: a conversation to the text that the model continues.
//!
//! Templates are Jinja programs written for transformers, so the environment here is the one of its
//! `apply_chat_template` (transformers 5.24, `utils/chat_template_utils.py`): blocks are trimmed,
//! `raise_exception` and `strftime_now` exist, `tojson` is `json.dumps` without ASCII escapes,
//! methods of Python's strings and dicts work, and a template sees `tools` and `documents` as None
//! when there are none. Two things differ: the time is UTC, and `'%s' % value` is not understood.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json};

use super::control::unescape_marks;
use super::python;
use crate::clock;
use crate::error::{Code, Error, Result};

const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "chat_template_tool_use";

/// A model's compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    source: String,
}

/// What a request adds to the conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// Whether the text ends where the assistant's next message begins.
    pub add_generation_prompt: bool,
    /// The tools the model may call, as JSON schemas.
    pub tools: Option<Vec<Json>>,
    /// Further variables of the template (`chat_template_kwargs`); they win over ours.
    pub extra: Map<String, Json>,
}

/// The source of a model's templates.
#[derive(Debug)]
pub(super) struct TemplateSources {
    pub(super) default: String,
    pub(super) tool_use: Option<String>,
}

/// What a template refused with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles the templates; `special_tokens` are variables of every rendering.
    ///
    /// # Errors
    /// `BadModel` for a syntax error.
    pub(super) fn compile(
        sources: &TemplateSources,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self> {
        let bad = |error: minijinja::Error| {
            Error::new(Code::BadModel, format!("the chat template does not compile: {error}"))
        };
        let mut environment = environment().map_err(bad)?;
        let tool_use = sources.tool_use.iter().map(|source| (TOOL_USE, source));
        for (name, source) in std::iter::once((DEFAULT, &sources.default)).chain(tool_use) {
            environment.add_template_owned(name, without_generation_tags(source)).map_err(bad)?;
        }
        let sources = std::iter::once(&sources.default).chain(&sources.tool_use);
        let source = sources.map(String::as_str).collect::<Vec<_>>().join("\n");
        Ok(Self { environment, special_tokens, source })
    }

    /// The text of `messages`. As in transformers, a message's null fields are dropped and its
    /// reasoning is available under both names in use.
    ///
    /// # Errors
    /// `InvalidRequest` for `messages` when the conversation is empty or the template refuses it,
    /// `BadModel` when the template needs what does not exist here.
    pub fn render(&self, messages: &[Json], options: &ChatOptions) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::invalid("messages", "the conversation has no messages"));
        }
        let has_tool_use = self.environment.templates().any(|(name, _)| name == TOOL_USE);
        let name = if has_tool_use && options.tools.is_some() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(|error| refusal(&error))?;
        let text = template.render(self.variables(messages, options));
        text.map(unescape_marks).map_err(|error| refusal(&error))
    }

    /// The text of the templates.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn variables(&self, messages: &[Json], options: &ChatOptions) -> Value {
        let tokens = self.special_tokens.iter();
        let mut variables: Vec<(&str, Value)> =
            tokens.map(|(name, token)| (name.as_str(), Value::from(token.as_str()))).collect();
        let tools = options.tools.as_ref().map(|tools| tools.iter().map(value).collect::<Value>());
        variables.extend([
            ("messages", messages.iter().map(|message| value(&normalized(message))).collect()),
            ("tools", tools.unwrap_or_else(|| Value::from(()))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
        ]);
        variables.extend(options.extra.iter().map(|(name, extra)| (name.as_str(), value(extra))));
        Value::from_pairs(variables)
    }
}

/// An environment that behaves like transformers' own.
fn environment() -> std::result::Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", |value: &Value, kwargs: Kwargs| to_json(value, &kwargs));
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| {
        python::strftime(format, clock::unix_seconds())
    });
    // In Jinja, mappings and strings are sequences too: they have a length and items.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    environment.add_test("iterable", |value: &Value| {
        value.kind() == ValueKind::String || value.try_iter().is_ok()
    });
    Ok(environment)
}

fn raise_exception(message: &str) -> std::result::Result<Value, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.to_owned());
    Err(error.with_source(Raised(message.to_owned())))
}

fn to_json(value: &Value, kwargs: &Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let separators: Option<Value> = kwargs.get("separators")?;
    let separators = match separators {
        Some(pair) if !pair.is_none() => {
            let part = |at| pair.get_item_by_index(at).map(|part| part.to_string());
            Some((part(0)?, part(1)?))
        }
        _ => None,
    };
    let style = python::JsonStyle {
        indent: json_indent(kwargs.get::<Option<Value>>("indent")?.as_ref())?,
        ascii_only: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators,
    };
    kwargs.assert_all_used()?;
    python::to_json(value, &style).map(Value::from)
}

/// Python takes a count of spaces or the text of one level.
fn json_indent(indent: Option<&Value>) -> std::result::Result<Option<String>, minijinja::Error> {
    match indent {
        None => Ok(None),
        Some(indent) if indent.is_none() => Ok(None),
        Some(indent) => match indent.as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Ok(Some(" ".repeat(u8::try_from(indent.clone())?.into()))),
        },
    }
}

/// What to tell the client about a failed rendering: the template's own words where it has some.
fn refusal(error: &minijinja::Error) -> Error {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Error::invalid("messages", message.as_str());
        }
        source = cause.source();
    }
    let message = format!("failed to render the chat template: {error}");
    match error.kind() {
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
            Error::new(Code::BadModel, message)
        }
        _ => Error::invalid("messages", message),
    }
}

/// Training marks the assistant's text with `{% generation %}` blocks, which change nothing in it.
/// They become blocks that always hold, so that the whitespace rules around them stay.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let name_at = at + rest[at..].find(|c: char| !"{%-+ \t\r\n".contains(c)).unwrap_or(2);
        let (before, tag) = rest.split_at(name_at);
        let len = tag.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tag.len());
        text.push_str(before);
        text.push_str(match &tag[..len] {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        });
        rest = &tag[len..];
    }
    text + rest
}

const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Drops null fields, which templates would print or trip over, and spells the reasoning of a
/// message both as `reasoning_content` and, for templates that read that, as `thinking`.
fn normalized(message: &Json) -> Json {
    let Json::Object(fields) = message else {
        return message.clone();
    };
    let kept = fields.iter().filter(|(_, field)| !field.is_null());
    let mut fields: Map<String, Json> =
        kept.map(|(name, field)| (name.clone(), field.clone())).collect();
    if let Some(reasoning) = REASONING_FIELDS.iter().find_map(|name| fields.get(*name)).cloned() {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
    Json::Object(fields)
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => number_value(number),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, field)| (name.as_str(), value(field))))
        }
    }
}

fn number_value(number: &serde_json::Number) -> Value {
    if let Some(whole) = number.as_i64() {
        return Value::from(whole);
    }
    match (number.as_u64(), number.as_f64()) {
        (Some(whole), _) => Value::from(whole),
        (None, Some(real)) => Value::from(real),
        (None, None) => Value::from(number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The files of `goldens/templates`: what transformers made of our templates.
    fn goldens() -> Vec<(String, Json)> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../goldens/templates");
        let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| {
            let json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            (path.file_stem().unwrap().to_string_lossy().into_owned(), json)
        };
        paths.map(read).collect()
    }

    /// Renders a golden case and describes how the outcome differs from transformers' one.
    fn difference(golden: &Json, case: &Json) -> Option<String> {
        let template = case.get("template").unwrap_or(&golden["template"]).as_str().unwrap();
        let sources = TemplateSources { default: template.to_owned(), tool_use: None };
        let token = |name: &str| (name.to_owned(), golden[name].as_str().unwrap().to_owned());
        let tokens = vec![token("bos_token"), token("eos_token")];
        let mut extra = case["variables"].as_object().unwrap().clone();
        let prompted = extra.shift_remove("add_generation_prompt");
        let options = ChatOptions {
            add_generation_prompt: prompted.is_some_and(|prompted| prompted == true),
            tools: case["tools"].as_array().cloned(),
            extra,
        };
        let rendered = ChatTemplate::compile(&sources, tokens)
            .and_then(|template| template.render(case["messages"].as_array().unwrap(), &options));
        let equal = match (&rendered, &case["expected"], &case["error"]) {
            (Ok(text), Json::String(expected), _) => text == expected,
            (Err(error), _, Json::String(expected)) => {
                error.code() == Code::InvalidRequest && error.message() == expected
            }
            (Err(error), ..) => error.code() == Code::InvalidRequest && case.get("fails").is_some(),
            _ => false,
        };
        (!equal).then(|| format!("{case:#}\n{rendered:#?}"))
    }

    #[test]
    fn templates_render_as_transformers_renders_them() {
        let goldens = goldens();
        assert!(goldens.len() >= 10);
        for (name, golden) in &goldens {
            let cases = golden["cases"].as_array().unwrap();
            let different: Vec<_> =
                cases.iter().filter_map(|case| difference(golden, case)).collect();
            assert!(different.is_empty(), "{name}: {}", different.join("\n"));
        }
    }

    fn compile(source: &str) -> Result<ChatTemplate> {
        let sources = TemplateSources { default: source.to_owned(), tool_use: None };
        ChatTemplate::compile(&sources, vec![("bos_token".to_owned(), "<s>".to_owned())])
    }

    fn render(source: &str, messages: &Json) -> Result<String> {
        compile(source)?.render(messages.as_array().unwrap(), &ChatOptions::default())
    }

    #[track_caller]
    fn check(source: &str, expected: &str) {
        let messages = json!([{"role": "user", "content": "a<b>'ü\"", "n": 1, "x": null}]);
        assert_eq!(render(source, &messages).unwrap(), expected);
    }

    #[test]
    fn blocks_are_trimmed_as_transformers_trims_them() {
        check("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb");
    }

    #[test]
    fn json_keeps_key_order_and_escapes_no_html_and_no_unicode() {
        check("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "a<b>'ü\"", "n": 1}"#);
        check(
            "{{ {'b': [1, 2.0], 'a': none} | tojson(sort_keys=true) }}",
            r#"{"a": null, "b": [1, 2.0]}"#,
        );
        check("{{ {'b': []} | tojson(indent=2) }}", "{\n  \"b\": []\n}");
        check(
            "{{ [1, 'ü'] | tojson(separators=(',', ':'), ensure_ascii=true) }}",
            r#"[1,"\u00fc"]"#,
        );
    }

    #[test]
    fn null_fields_are_dropped_and_absent_tools_are_none() {
        check("{{ messages[0].x is defined }} {{ tools is none }} {{ tools }}", "False True None");
    }

    #[test]
    fn reasoning_has_both_names() {
        let messages = json!([{"role": "assistant", "reasoning": "r"}]);
        let source = "{{ messages[0].thinking }}{{ messages[0].reasoning_content }}";
        assert_eq!(render(source, &messages).unwrap(), "rr");
    }

    #[test]
    fn mappings_and_strings_are_sequences() {
        check("{{ {} is sequence }} {{ 'a' is sequence }} {{ 1 is sequence }}", "True True False");
        check("{{ {} is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }}", "True True False");
    }

    #[test]
    fn generation_blocks_are_their_content() {
        check("a {%- generation -%} b {% endgeneration %}\nc", "ab c");
        check("{%generation%}{{ 'generation' }}{%endgeneration%}", "generation");
        check("{% set generation = 1 %}{{ generation }}{", "1{");
    }

    #[test]
    fn loops_can_break_and_continue_and_namespaces_hold_values() {
        check(
            "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 1 %}{% continue %}\
             {% endif %}{% if i > 4 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}\
             {{ ns.n }}",
            "9",
        );
    }

    #[test]
    fn a_refusal_is_the_clients_error_in_the_templates_words() {
        let source = "{% macro no(m) %}{{ raise_exception('no ' + m.role) }}{% endmacro %}\
                      {% for m in messages %}{{ no(m) }}{% endfor %}";
        let error = render(source, &json!([{"role": "alien"}])).unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::InvalidRequest, "no alien"));
        assert_eq!(error.param(), Some("messages"));
    }

    #[test]
    fn a_message_that_the_template_cannot_use_is_the_clients_error() {
        let error = render("{{ messages[0].content.strip() }}", &json!([{"role": "a"}]));
        let error = error.unwrap_err();
        assert_eq!((error.code(), error.param()), (Code::InvalidRequest, Some("messages")));
    }

    #[test]
    fn an_empty_conversation_is_refused() {
        let error = render("x", &json!([])).unwrap_err();
        assert_eq!((error.code(), error.param()), (Code::InvalidRequest, Some("messages")));
    }

    #[test]
    fn a_template_that_cannot_run_here_is_a_bad_model() {
        assert_eq!(compile("{% if %}").unwrap_err().code(), Code::BadModel);
        let error = render("{{ 1 | nonesuch }}", &json!([{}])).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
    }

    #[test]
    fn tools_choose_the_tool_template_and_extras_are_variables() {
        let sources = TemplateSources {
            default: "plain {{ x }}{{ bos_token }}".to_owned(),
            tool_use: Some("tools {{ tools[0].name }}".to_owned()),
        };
        let template = ChatTemplate::compile(&sources, Vec::new()).unwrap();
        let extra = json!({"x": true, "bos_token": "B"}).as_object().unwrap().clone();
        let mut options = ChatOptions { extra, ..ChatOptions::default() };
        assert_eq!(template.render(&[json!({})], &options).unwrap(), "plain TrueB");
        options.tools = Some(vec![json!({"name": "t"})]);
        assert_eq!(template.render(&[json!({})], &options).unwrap(), "tools t");
    }
}
