//! From a JSON body to a request that the engine can check against its model.
//!
//! Three kinds of fields: those we act on, which must have the right type and range; those we know
//! and do not support, which are refused when they ask for something and accepted when they hold
//! the value that asks for nothing; all others, which are ignored.

use std::num::NonZeroUsize;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::messages::messages;
use super::structure;
use crate::error::{Error, Result};
use crate::gateway::{Asked, GenerateRequest, ModelCard, Prompt, Reasoning, ToolUse};
use crate::sampling::SamplingParams;
use crate::wire::Fields;
use crate::wire::effort::{self, effort};
use crate::wire::fields::{mismatch, shortened, unsupported};
use crate::wire::tools::{self, Described};

use super::sampling::{logprobs, sampling};

/// mlx-lm's name for the served model.
const DEFAULT_MODEL_OF_MLX_LM: &str = "default_model";

/// Which of the two APIs a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

impl ReplyKind {
    /// The `object` of a whole answer.
    pub fn whole_object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Completion => "text_completion",
        }
    }

    /// The `object` of a chunk.
    pub fn chunk_object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Completion => "text_completion",
        }
    }

    fn new_id(self) -> String {
        let prefix = match self {
            Self::Chat => "chatcmpl",
            Self::Completion => "cmpl",
        };
        format!("{prefix}-{}", Uuid::new_v4().simple())
    }
}

/// A request, and how its answer is to be told.
#[derive(Debug, Clone)]
pub struct ReplyRequest {
    /// Which API it came by.
    pub kind: ReplyKind,
    /// What to generate.
    pub generate: GenerateRequest,
    /// Whether to answer in chunks.
    pub stream: bool,
    /// Whether a stream ends in a usage chunk.
    pub include_usage: bool,
    /// Which of OpenAI's service tiers serves it, told to those who chose one.
    pub service_tier: Option<&'static str>,
}

/// Reads the body of `/v1/chat/completions`.
///
/// # Errors
/// `InvalidRequest`, `Unsupported` or `ModelNotFound`, naming the field.
pub fn chat(body: &Value, card: &ModelCard) -> Result<ReplyRequest> {
    let fields = Fields::of_body(body)?;
    refuse(&fields, CHAT_REFUSALS)?;
    let messages = messages(&fields)?;
    let request = request(ReplyKind::Chat, &fields, Prompt::Chat { messages }, card)?;
    let defaults = &card.request_defaults;
    let generate = GenerateRequest {
        tools: tool_use(&fields)?,
        reasoning: reasoning(&fields)?.or(defaults.reasoning).unwrap_or_default(),
        template_variables: defaults.variables(template_variables(&fields)?),
        ..request.generate
    };
    Ok(ReplyRequest { generate, ..request })
}

/// Reads the body of `/v1/completions`.
///
/// # Errors
/// `InvalidRequest`, `Unsupported` or `ModelNotFound`, naming the field.
pub fn completion(body: &Value, card: &ModelCard) -> Result<ReplyRequest> {
    let fields = Fields::of_body(body)?;
    refuse(&fields, COMPLETION_REFUSALS)?;
    let prompt = prompt(fields.required("prompt")?)?;
    request(ReplyKind::Completion, &fields, prompt, card)
}

fn request(
    kind: ReplyKind,
    fields: &Fields<'_>,
    prompt: Prompt,
    card: &ModelCard,
) -> Result<ReplyRequest> {
    check_choices(fields)?;
    check_ignored(fields)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    Ok(ReplyRequest {
        kind,
        stream,
        include_usage: include_usage(fields, stream)?,
        service_tier: fields.text("service_tier")?.map(|_| "default"),
        generate: GenerateRequest {
            max_tokens: max_tokens(fields)?,
            sampling: SamplingParams {
                logprobs: logprobs(kind, fields)?,
                ..sampling(fields, &card.sampling_defaults)?
            },
            stop: stop_strings(fields)?,
            structure: structure::structure(fields)?,
            // Priority and client come by headers.
            ..GenerateRequest::new(kind.new_id(), prompt)
        },
    })
}

/// The model that the body of a request asks for.
///
/// # Errors
/// `InvalidRequest` when that is no name, or the body no object.
pub fn model(body: &Value) -> Result<Asked<'_>> {
    let name = Fields::of_body(body)?.text("model")?;
    Ok(Asked { name, or_default: false })
}

fn max_tokens(fields: &Fields<'_>) -> Result<Option<NonZeroUsize>> {
    // OpenAI deprecated the first name for the second; a client that sends both means the second.
    let older = fields.integer("max_tokens", 1..=i64::MAX)?;
    let newer = fields.integer("max_completion_tokens", 1..=i64::MAX)?;
    let tokens = newer.or(older).map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
    Ok(tokens.and_then(NonZeroUsize::new))
}

fn stop_strings(fields: &Fields<'_>) -> Result<Vec<String>> {
    match fields.get("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(mismatch(&format!("stop[{index}]"), "a string", other)),
            })
            .collect(),
        Some(other) => Err(mismatch("stop", "a string or an array of strings", other)),
    }
}

/// Reads `tools`, which chats describe one level down, `tool_choice` and `parallel_tool_calls`.
fn tool_use(fields: &Fields<'_>) -> Result<ToolUse> {
    let tools = tools::tools(fields, |entry| match entry.required_text("type")? {
        "function" => {
            let fields = entry.required_nested("function")?;
            Ok(Some(Described { fields, schema: "parameters", namespace: None }))
        }
        kind => Err(entry.unsupported_kind("type", "tools", kind)),
    })?;
    let choice = tools::choice(fields, &tools, |choice| choice.required_nested("function"))?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok(ToolUse { tools, choice, parallel })
}

/// Reads `reasoning_effort`, and `enable_thinking` where it stands outside of `chat_template_kwargs`.
/// What the request says of thinking, if it says anything.
fn reasoning(fields: &Fields<'_>) -> Result<Option<Reasoning>> {
    let asked = effort(fields, "reasoning_effort", effort::OPENAI)?;
    let enabled = fields.boolean("enable_thinking")?;
    Ok(match (asked, enabled) {
        (None, None) => None,
        (Some(Reasoning { enabled: Some(false), .. }), _) => asked,
        (asked, enabled) => {
            let asked = asked.unwrap_or_default();
            Some(Reasoning { enabled: enabled.or(asked.enabled), ..asked })
        }
    })
}

fn template_variables(fields: &Fields<'_>) -> Result<Map<String, Value>> {
    let variables = fields.nested("chat_template_kwargs")?;
    Ok(variables.map(|variables| variables.object().clone()).unwrap_or_default())
}

fn include_usage(fields: &Fields<'_>, stream: bool) -> Result<bool> {
    let Some(options) = fields.nested("stream_options")? else {
        return Ok(false);
    };
    if !stream {
        let message = "`stream_options` is only allowed when `stream` is true";
        return Err(Error::invalid("stream_options", message));
    }
    Ok(options.boolean("include_usage")?.unwrap_or(false))
}

// --- prompts ---

/// Text, token ids, or an array that holds one of them.
fn prompt(value: &Value) -> Result<Prompt> {
    const EXPECTED: &str = "a string or an array of token ids";
    match value {
        Value::String(text) if text.is_empty() => Err(empty_prompt()),
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(items) => match items.as_slice() {
            [] => Err(empty_prompt()),
            [Value::Number(_), ..] => Ok(Prompt::Tokens(token_ids(items)?)),
            [one @ (Value::String(_) | Value::Array(_))] => prompt(one),
            [Value::String(_) | Value::Array(_), ..] => Err(unsupported(
                "prompt",
                format!("`prompt` holds {} prompts: send one per request", items.len()),
            )),
            [other, ..] => Err(mismatch("prompt[0]", "a token id or a string", other)),
        },
        other => Err(mismatch("prompt", EXPECTED, other)),
    }
}

fn empty_prompt() -> Error {
    Error::invalid("prompt", "`prompt` must not be empty")
}

fn token_ids(items: &[Value]) -> Result<Vec<u32>> {
    let id = |(index, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| mismatch(&format!("prompt[{index}]"), "a token id", item))
    };
    items.iter().enumerate().map(id).collect()
}

// --- what is known and not supported ---

/// A field's name, and whether a value of it asks for something.
type Refusal = (&'static str, fn(&Value) -> bool);

const CHAT_REFUSALS: &[Refusal] = &[
    ("functions", is_filled),
    ("function_call", chooses_a_tool),
    ("audio", is_filled),
    ("modalities", goes_beyond_text),
    ("prediction", is_filled),
    ("web_search_options", |_| true),
    ("moderation", is_filled),
    ("store", |store| *store == Value::Bool(true)),
    ("adapters", is_filled),
    ("draft_model", names_a_draft),
    ("role_mapping", is_filled),
];

const COMPLETION_REFUSALS: &[Refusal] = &[
    ("suffix", is_filled),
    ("echo", asks),
    ("adapters", is_filled),
    ("draft_model", names_a_draft),
];

fn refuse(fields: &Fields<'_>, refusals: &[Refusal]) -> Result<()> {
    let asked = refusals.iter().find(|(name, asks)| fields.get(name).is_some_and(asks));
    asked.map_or(Ok(()), |(name, _)| Err(not_supported(name)))
}

fn check_choices(fields: &Fields<'_>) -> Result<()> {
    for name in ["n", "best_of"] {
        if fields.integer(name, 1..=i64::MAX)?.is_some_and(|count| count > 1) {
            return Err(unsupported(name, format!("`{name}` above 1 is not supported")));
        }
    }
    Ok(())
}

/// Fields that change nothing of the answer, but have a right form.
fn check_ignored(fields: &Fields<'_>) -> Result<()> {
    check_hints(fields)?;
    metadata(fields)?;
    fields.boolean("store")?;
    fields.integer("num_draft_tokens", 0..=i64::MAX)?;
    check_verbosity(fields)
}

/// Texts by which OpenAI's servers tell users, prices and caches apart.
///
/// # Errors
/// `InvalidRequest` when one is no text.
pub(in crate::wire) fn check_hints(fields: &Fields<'_>) -> Result<()> {
    let names =
        ["user", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention"];
    names.into_iter().try_for_each(|name| fields.text(name).map(drop))
}

/// How long an answer should be: a wish that open models were not taught.
///
/// # Errors
/// `InvalidRequest` when it is none of OpenAI's words.
pub(in crate::wire) fn check_verbosity(fields: &Fields<'_>) -> Result<()> {
    match fields.text("verbosity")? {
        None | Some("low" | "medium" | "high") => Ok(()),
        Some(_) => Err(fields.unexpected("verbosity", "`low`, `medium` or `high`")),
    }
}

/// The `metadata` of a request: texts by names.
///
/// # Errors
/// `InvalidRequest` when it is anything else.
pub(in crate::wire) fn metadata(fields: &Fields<'_>) -> Result<Map<String, Value>> {
    let Some(metadata) = fields.nested("metadata")? else {
        return Ok(Map::new());
    };
    for (name, value) in metadata.object() {
        if !value.is_string() && !value.is_null() {
            return Err(mismatch(&metadata.path_of(&shortened(name)), "a string", value));
        }
    }
    Ok(metadata.object().clone())
}

fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(object) => !object.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(asked) => *asked,
        Value::Null | Value::Number(_) => true,
    }
}

fn asks(value: &Value) -> bool {
    *value != Value::Bool(false) && value.as_f64() != Some(0.0)
}

/// mlx-lm's default is its own word for no other model than the served one.
fn names_a_draft(value: &Value) -> bool {
    is_filled(value) && value.as_str() != Some(DEFAULT_MODEL_OF_MLX_LM)
}

fn chooses_a_tool(value: &Value) -> bool {
    !matches!(value.as_str(), Some("none" | "auto"))
}

fn goes_beyond_text(value: &Value) -> bool {
    value.as_array().is_none_or(|items| items.iter().any(|item| item.as_str() != Some("text")))
}

fn not_supported(name: &str) -> Error {
    unsupported(name, format!("`{name}` is not supported by this server"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::error::Code;
    use crate::gateway::script::card;

    const NAMES: &[&str] = &[
        "model",
        "messages",
        "prompt",
        "role",
        "content",
        "type",
        "text",
        "stream",
        "stream_options",
        "include_usage",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "min_p",
        "top_k",
        "seed",
        "stop",
        "n",
        "tools",
        "logprobs",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_choice",
        "frequency_penalty",
        "frequency_context_size",
        "presence_penalty",
        "presence_context_size",
        "repetition_penalty",
        "repetition_context_size",
        "xtc_probability",
        "xtc_threshold",
        "top_logprobs",
        "logit_bias",
        "5",
        "user",
        "metadata",
        "num_draft_tokens",
        "adapters",
        "draft_model",
    ];

    /// Any JSON, with the names and values that lead deep into the readers.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            (0..3i64).prop_map(Value::from),
            prop::sample::select(vec!["user", "assistant", "text", "default", "", "é\u{0}"])
                .prop_map(Value::from),
            ".{0,80}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            let names = prop::sample::select(NAMES);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((names, inner), 0..6).prop_map(|fields| {
                    Value::Object(
                        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                    )
                }),
            ]
        })
    }

    /// A body that is right but for one field.
    fn nearly_right() -> impl Strategy<Value = Value> {
        (prop::sample::select(NAMES), any_json()).prop_map(|(name, value)| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"});
            body[name] = value;
            body
        })
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused_by_the_name_of_a_field(
            body in prop_oneof![any_json(), nearly_right()],
        ) {
            for read in [chat, completion] {
                match read(&body, &card()) {
                    Ok(request) => {
                        let sampling = &request.generate.sampling;
                        prop_assert!(sampling.temperature.is_finite() && sampling.temperature >= 0.0);
                        prop_assert!((0.0..=1.0).contains(&sampling.top_p));
                        prop_assert!((0.0..=1.0).contains(&sampling.min_p));
                        prop_assert!((0.0..=1.0).contains(&sampling.xtc.probability));
                        prop_assert!((0.0..=1.0).contains(&sampling.xtc.threshold));
                        prop_assert!(sampling.repetition.amount.is_finite());
                        prop_assert!(sampling.repetition.amount >= 0.0);
                        prop_assert!(sampling.presence.amount.abs() <= 2.0);
                        prop_assert!(sampling.frequency.amount.abs() <= 2.0);
                        prop_assert!(sampling.logprobs.is_none_or(|top| top <= 20));
                        let terms = &sampling.logit_bias;
                        prop_assert!(terms.iter().all(|(_, term)| term.abs() <= 100.0));
                        prop_assert!(terms.is_sorted_by_key(|(id, _)| *id));
                        prop_assert!(request.stream || !request.include_usage);
                    }
                    Err(error) => {
                        let ours = [Code::InvalidRequest, Code::Unsupported, Code::ModelNotFound];
                        prop_assert!(ours.contains(&error.code()), "{error}");
                        prop_assert!(error.param().is_some() || !body.is_object(), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_field_that_is_null_is_a_field_that_is_absent() {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        let absent = chat(&body, &card()).unwrap();
        for name in NAMES.iter().filter(|name| **name != "messages") {
            body[*name] = Value::Null;
        }
        let null = chat(&body, &card()).unwrap();
        assert_eq!(
            (&null.generate.sampling, null.generate.max_tokens, null.stream),
            (&absent.generate.sampling, absent.generate.max_tokens, absent.stream)
        );
        assert_eq!((&null.generate.sampling, null.stream), (&card().sampling_defaults, false));
    }
}
