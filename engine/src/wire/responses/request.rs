//! From a JSON body to a request that the engine can check against its model.

use std::num::NonZeroUsize;

use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::input;
use crate::error::{Error, Result};
use crate::gateway::{GenerateRequest, ModelCard, Prompt, Reasoning, Structure, ToolUse};
use crate::grammar::Constraint;
use crate::limits::TOP_LOGPROBS_MAX;
use crate::sampling::SamplingParams;
use crate::wire::conversation::Conversation;
use crate::wire::effort::{self, effort};
use crate::wire::fields::{mismatch, shortened, unsupported};
use crate::wire::tools::{Described, Namespace};
use crate::wire::{Fields, openai, tools};

/// What earlier responses left.
pub trait Past {
    /// The conversation up to and with the response `id`.
    ///
    /// # Errors
    /// `InvalidRequest` when there is no such response.
    fn conversation(&self, id: &str) -> Result<Vec<Value>>;

    /// An item of some response.
    fn item(&self, id: &str) -> Option<Value>;
}

/// The body of `/v1/responses`.
#[derive(Debug, Clone)]
pub struct ResponseRequest {
    /// What to generate.
    pub generate: GenerateRequest,
    /// The conversation without instructions, which do not outlive their response.
    pub conversation: Vec<Value>,
    /// Whether to answer in events.
    pub stream: bool,
    /// What the response repeats of the request.
    pub echo: Echo,
    /// What was left out of the request, for people.
    pub warnings: Vec<String>,
}

/// What a response repeats of its request.
#[derive(Debug, Clone, Serialize)]
pub struct Echo {
    instructions: Option<String>,
    max_output_tokens: Option<i64>,
    max_tool_calls: Option<i64>,
    metadata: Map<String, Value>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    prompt_cache_key: Option<String>,
    reasoning: EchoedReasoning,
    safety_identifier: Option<String>,
    service_tier: &'static str,
    /// Whether the response is kept.
    pub store: bool,
    temperature: f32,
    text: Value,
    tool_choice: Value,
    tools: Value,
    top_logprobs: i64,
    top_p: f32,
    truncation: &'static str,
    user: Option<String>,
    /// Whether thinking is told sealed too.
    #[serde(skip)]
    pub(super) seals_reasoning: bool,
}

impl Echo {
    /// The namespace and the name there of the tool that the model calls `name`, if it is in any.
    pub(super) fn namespaced(&self, name: &str) -> Option<(&str, &str)> {
        self.tools.as_array()?.iter().find_map(|entry| {
            let (namespace, functions) = (entry["name"].as_str()?, entry["tools"].as_array()?);
            let mut names = functions.iter().filter_map(|function| function["name"].as_str());
            names.find_map(|own| {
                (tools::joined(Some(namespace), own) == name).then_some((namespace, own))
            })
        })
    }
}

#[derive(Debug, Clone, Default, Serialize)]
struct EchoedReasoning {
    effort: Option<String>,
    summary: Option<String>,
}

/// Reads the body of `/v1/responses`, whose past is `past`.
///
/// # Errors
/// `InvalidRequest`, `Unsupported` or `ModelNotFound`, naming the field.
pub fn response(body: &Value, card: &ModelCard, past: &dyn Past) -> Result<ResponseRequest> {
    let fields = Fields::of_body(body)?;
    refuse(&fields)?;
    openai::check_hints(&fields)?;
    let structure = text_format(&fields)?;
    let thinking = thinking(&fields)?;
    let top_logprobs = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX as i64)?.unwrap_or(0);
    let include = include(&fields)?;
    let sampling = SamplingParams {
        // A number of alternatives asks for them too.
        logprobs: u32::try_from(top_logprobs).ok().filter(|top| include.logprobs || *top > 0),
        ..openai::sampling(&fields, &card.sampling_defaults)?
    };
    let mut warnings = Vec::new();
    let tools = tool_use(&fields, &mut warnings)?;
    let conversation = conversation(&fields, past, &mut warnings)?;
    let max_output_tokens = fields.integer("max_output_tokens", 1..=i64::MAX)?;
    let owned = |name: &str| Ok::<_, Error>(fields.text(name)?.map(str::to_owned));
    let echo = Echo {
        instructions: owned("instructions")?,
        max_output_tokens,
        max_tool_calls: fields.integer("max_tool_calls", 1..=i64::MAX)?,
        metadata: openai::metadata(&fields)?,
        parallel_tool_calls: tools.parallel,
        previous_response_id: owned("previous_response_id")?,
        prompt_cache_key: owned("prompt_cache_key")?,
        reasoning: thinking.echo,
        safety_identifier: owned("safety_identifier")?,
        service_tier: "default",
        store: fields.boolean("store")?.unwrap_or(true),
        temperature: sampling.temperature,
        text: text_echo(&fields),
        tool_choice: echoed(&fields, "tool_choice", json!("auto")),
        tools: echoed(&fields, "tools", json!([])),
        top_logprobs,
        top_p: sampling.top_p,
        truncation: "disabled",
        user: owned("user")?,
        seals_reasoning: include.sealed_reasoning,
    };
    let max_tokens = max_output_tokens.and_then(|tokens| usize::try_from(tokens).ok());
    let defaults = &card.request_defaults;
    let generate = GenerateRequest {
        max_tokens: max_tokens.and_then(NonZeroUsize::new),
        sampling,
        tools,
        reasoning: thinking.reasoning.or(defaults.reasoning).unwrap_or_default(),
        structure,
        template_variables: defaults.variables(Map::new()),
        ..GenerateRequest::new(new_id("resp"), prompt(&echo, &conversation))
    };
    let stream = fields.boolean("stream")?.unwrap_or(false);
    Ok(ResponseRequest { generate, conversation, stream, echo, warnings })
}

/// A new id of the kind `prefix`.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

fn conversation(
    fields: &Fields<'_>,
    past: &dyn Past,
    warnings: &mut Vec<String>,
) -> Result<Vec<Value>> {
    let before = match fields.text("previous_response_id")? {
        Some(id) => past.conversation(id)?,
        None => Vec::new(),
    };
    let mut conversation = Conversation::after(before);
    input::add(&mut conversation, fields, past, warnings)?;
    Ok(conversation.into_messages())
}

/// The conversation behind its instructions.
fn prompt(echo: &Echo, conversation: &[Value]) -> Prompt {
    let instructions = echo.instructions.as_deref().filter(|text| !text.is_empty());
    let system = instructions.map(|text| json!({"role": "system", "content": text}));
    Prompt::Chat { messages: system.into_iter().chain(conversation.iter().cloned()).collect() }
}

fn echoed(fields: &Fields<'_>, name: &str, default: Value) -> Value {
    fields.get(name).cloned().unwrap_or(default)
}

/// The `text` of a request with its format, which is text unless it says otherwise.
fn text_echo(fields: &Fields<'_>) -> Value {
    let mut text = echoed(fields, "text", json!({}));
    if text["format"].is_null() {
        text["format"] = json!({"type": "text"});
    }
    text
}

// --- what is known and not supported ---

fn refuse(fields: &Fields<'_>) -> Result<()> {
    for name in ["background", "conversation", "prompt", "moderation"] {
        if fields.get(name).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(unsupported(name, format!("`{name}` is not supported")));
        }
    }
    if let Some(truncation) = fields.text("truncation")? {
        match truncation {
            "disabled" => {}
            "auto" => {
                let message =
                    "`truncation` is always `disabled` here: nothing is left out silently";
                return Err(unsupported("truncation", message.to_owned()));
            }
            _ => return Err(fields.unexpected("truncation", "`disabled` or `auto`")),
        }
    }
    fields.nested("stream_options")?;
    Ok(())
}

/// What a response tells beyond the rest.
#[derive(Default)]
struct Include {
    logprobs: bool,
    sealed_reasoning: bool,
}

fn include(fields: &Fields<'_>) -> Result<Include> {
    let mut include = Include::default();
    for (index, item) in fields.array("include")?.unwrap_or_default().iter().enumerate() {
        let path = format!("include[{index}]");
        match item.as_str().ok_or_else(|| mismatch(&path, "a string", item))? {
            "message.output_text.logprobs" => include.logprobs = true,
            "reasoning.encrypted_content" => include.sealed_reasoning = true,
            // The rest are parts of items that do not occur here.
            _ => {}
        }
    }
    Ok(include)
}

/// What the text must look like, unless it is plain text.
fn text_format(fields: &Fields<'_>) -> Result<Option<Structure>> {
    let Some(text) = fields.nested("text")? else {
        return Ok(None);
    };
    openai::check_verbosity(&text)?;
    let Some(format) = text.nested("format")? else {
        return Ok(None);
    };
    match format.required_text("type")? {
        "text" => Ok(None),
        "json_object" => {
            let param = "text.format".to_owned();
            Ok(Some(Structure { constraint: Constraint::JsonObject, param }))
        }
        "json_schema" => {
            let strict = format.boolean("strict")?.unwrap_or(false);
            openai::schema(&format, "schema", strict).map(Some)
        }
        _ => Err(format.unexpected("type", "`text`, `json_object` or `json_schema`")),
    }
}

/// How the model is asked to think.
#[derive(Default)]
struct Thinking {
    reasoning: Option<Reasoning>,
    echo: EchoedReasoning,
}

/// Summaries may be asked for, though nothing is summarized here.
fn thinking(fields: &Fields<'_>) -> Result<Thinking> {
    let Some(asked) = fields.nested("reasoning")? else {
        return Ok(Thinking::default());
    };
    let summary = asked.text("summary")?;
    if summary.is_some_and(|summary| !["auto", "concise", "detailed", "none"].contains(&summary)) {
        return Err(asked.unexpected("summary", "`auto`, `concise` or `detailed`"));
    }
    let reasoning = effort(&asked, "effort", effort::OPENAI)?;
    let owned = |name| Ok::<_, Error>(asked.text(name)?.map(str::to_owned));
    let echo = EchoedReasoning { effort: owned("effort")?, summary: owned("summary")? };
    Ok(Thinking { reasoning, echo })
}

// --- tools ---

/// Tools that OpenAI's servers run for the model. A client that offers them does not need them, so that
/// they are left out with a warning.
const HOSTED_TOOLS: [&str; 8] = [
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "programmatic_tool_calling",
    "mcp",
    "tool_search",
];

fn tool_use(fields: &Fields<'_>, warnings: &mut Vec<String>) -> Result<ToolUse> {
    let tools = tools::tools(fields, |entry| match entry.required_text("type")? {
        "function" => Ok(vec![Described { fields: entry, schema: "parameters", namespace: None }]),
        "namespace" => namespaced(&entry),
        kind if HOSTED_TOOLS.iter().any(|hosted| kind.starts_with(hosted)) => {
            let (path, kind) = (entry.path_of("type"), shortened(kind));
            warnings.push(format!("{path}: {kind} is left out, nothing here runs it"));
            Ok(Vec::new())
        }
        kind => Err(entry.unsupported_kind("type", "tools", kind)),
    })?;
    let choice = tools::choice(fields, &tools, Ok)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok(ToolUse { tools, choice, parallel })
}

/// The functions of a namespace, the first of which tells what all are for.
fn namespaced<'a>(entry: &Fields<'a>) -> Result<Vec<Described<'a>>> {
    let name = entry.required_text("name")?;
    let mut description = entry.text("description")?;
    entry.required("tools")?;
    let functions = entry.array("tools")?.unwrap_or_default().iter().enumerate();
    let described = functions.map(|(index, function)| {
        let fields = Fields::at(format!("{}[{index}]", entry.path_of("tools")), function)?;
        match fields.required_text("type")? {
            "function" => {
                let namespace = Some(Namespace { name, description: description.take() });
                Ok(Described { fields, schema: "parameters", namespace })
            }
            kind => Err(fields.unsupported_kind("type", "tools", kind)),
        }
    });
    described.collect()
}
