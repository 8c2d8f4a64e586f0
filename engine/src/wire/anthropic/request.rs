//! From a JSON body to a request that the engine can check against its model.
//!
//! `cache_control` may stand anywhere and changes nothing: prefixes are cached without being asked.

use std::num::NonZeroUsize;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::content;
use crate::error::{Error, Result};
use crate::gateway::{
    Asked, GenerateRequest, ModelCard, Prompt, Reasoning, Structure, ToolChoice, ToolUse,
};
use crate::limits;
use crate::output::Tool;
use crate::wire::conversation::Conversation;
use crate::wire::effort::{self, effort};
use crate::wire::fields::{mismatch, unsupported};
use crate::wire::tools::Described;
use crate::wire::{Fields, openai, tools};

/// The body of `/v1/messages`.
#[derive(Debug, Clone)]
pub struct MessagesRequest {
    /// What to generate.
    pub generate: GenerateRequest,
    /// Whether to answer in events.
    pub stream: bool,
}

/// Reads the body of `/v1/messages`.
///
/// # Errors
/// `InvalidRequest`, `Unsupported` or `ModelNotFound`, naming the field.
pub fn messages(body: &Value, card: &ModelCard) -> Result<MessagesRequest> {
    let fields = Fields::of_body(body)?;
    fields.required("model")?;
    let chat = chat(&fields, card)?;
    fields.required("max_tokens")?;
    let max_tokens = fields.integer("max_tokens", 1..=i64::MAX)?.unwrap_or(1);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    check_metadata(&fields)?;
    let generate = GenerateRequest {
        max_tokens: NonZeroUsize::new(usize::try_from(max_tokens).unwrap_or(usize::MAX)),
        sampling: openai::sampling(&fields, &card.sampling_defaults)?,
        stop: stop_sequences(&fields)?,
        ..chat
    };
    Ok(MessagesRequest { generate, stream })
}

/// Reads the body of `/v1/messages/count_tokens`: a request whose prompt is to be counted.
///
/// # Errors
/// As [`messages`].
pub fn count_tokens(body: &Value, card: &ModelCard) -> Result<GenerateRequest> {
    let fields = Fields::of_body(body)?;
    fields.required("model")?;
    chat(&fields, card)
}

/// What both routes read: everything that becomes a part of the prompt.
fn chat(fields: &Fields<'_>, card: &ModelCard) -> Result<GenerateRequest> {
    refuse(fields)?;
    let prompt = Prompt::Chat { messages: conversation(fields)? };
    let id = format!("msg_{}", Uuid::new_v4().simple());
    let defaults = &card.request_defaults;
    let reasoning = match fields.get("thinking").or(fields.get("output_config")) {
        None if defaults.reasoning.is_some() => defaults.reasoning.unwrap_or_default(),
        _ => reasoning(fields)?,
    };
    let template_variables = defaults.variables(Map::new());
    let (tools, structure) = (tool_use(fields)?, structure(fields)?);
    Ok(GenerateRequest {
        tools,
        reasoning,
        structure,
        template_variables,
        ..GenerateRequest::new(id, prompt)
    })
}

/// The model that the body of a request asks for. Anthropic's clients ask for models of Anthropic's by themselves,
/// if only for a title: whatever is called `claude` means the default model, unless a model goes by that name.
///
/// # Errors
/// `InvalidRequest` when that is no name, or the body no object.
pub fn model(body: &Value) -> Result<Asked<'_>> {
    let asked = openai::model(body)?;
    let or_default = asked.name.is_some_and(|name| name.starts_with("claude"));
    Ok(Asked { or_default, ..asked })
}

/// Fields that ask for what this server has not.
fn refuse(fields: &Fields<'_>) -> Result<()> {
    for name in ["mcp_servers", "container"] {
        let filled = |value: &&Value| value.as_array().is_none_or(|items| !items.is_empty());
        if fields.get(name).filter(filled).is_some() {
            return Err(unsupported(name, format!("`{name}` is not supported")));
        }
    }
    Ok(())
}

fn check_metadata(fields: &Fields<'_>) -> Result<()> {
    if let Some(metadata) = fields.nested("metadata")? {
        metadata.text("user_id")?;
    }
    Ok(())
}

fn conversation(fields: &Fields<'_>) -> Result<Vec<Value>> {
    let mut conversation = Conversation::default();
    if let Some(system) = content::system(fields)? {
        conversation.say("system", &system);
    }
    fields.required("messages")?;
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(Error::invalid("messages", "`messages` must hold at least one message"));
    }
    for (index, message) in messages.iter().enumerate() {
        content::message(&mut conversation, &Fields::at(format!("messages[{index}]"), message)?)?;
    }
    if conversation.last_role() == Some("assistant") {
        let path = format!("messages[{}].role", messages.len() - 1);
        let message = format!("`{path}`: an answer that the assistant has begun is not continued");
        return Err(unsupported(&path, message));
    }
    Ok(conversation.into_messages())
}

fn stop_sequences(fields: &Fields<'_>) -> Result<Vec<String>> {
    let sequences = fields.array("stop_sequences")?.unwrap_or_default();
    let (most, longest) = (limits::STOP_STRINGS_MAX, limits::STOP_STRING_BYTES_MAX);
    if sequences.len() > most {
        let message =
            format!("`stop_sequences` holds {} strings, and {most} are allowed", sequences.len());
        return Err(Error::invalid("stop_sequences", message));
    }
    let sequence = |(index, sequence): (usize, &Value)| match sequence.as_str() {
        Some(text) if (1..=longest).contains(&text.len()) => Ok(text.to_owned()),
        _ => {
            let expected = format!("a string of 1 to {longest} bytes");
            Err(mismatch(&format!("stop_sequences[{index}]"), &expected, sequence))
        }
    };
    sequences.iter().enumerate().map(sequence).collect()
}

// --- thinking ---

/// As Anthropic has it, a model thinks only if it is asked to, by `thinking` or by an effort.
fn reasoning(fields: &Fields<'_>) -> Result<Reasoning> {
    let mut reasoning = Reasoning { enabled: Some(false), effort: None };
    if let Some(thinking) = fields.nested("thinking")? {
        reasoning.enabled = match thinking.required_text("type")? {
            "enabled" => {
                // The model is not held to it: it thinks as long as it was taught to.
                thinking.required("budget_tokens")?;
                thinking.integer("budget_tokens", 1..=i64::MAX)?;
                Some(true)
            }
            "disabled" => Some(false),
            "adaptive" => None,
            _ => return Err(thinking.unexpected("type", "`enabled`, `disabled` or `adaptive`")),
        };
    }
    if let Some(output) = fields.nested("output_config")? {
        let asked = effort(&output, "effort", effort::ANTHROPIC)?;
        reasoning.effort = asked.and_then(|asked| asked.effort);
        if reasoning.effort.is_some() && fields.get("thinking").is_none() {
            reasoning.enabled = None;
        }
    }
    Ok(reasoning)
}

/// What the answer must look like: the format by its name and by the one that it had while it was new.
fn structure(fields: &Fields<'_>) -> Result<Option<Structure>> {
    let output = fields.nested("output_config")?;
    let named = output.map(|output| output.nested("format")).transpose()?.flatten();
    let Some(format) =
        named.map_or_else(|| fields.nested("output_format"), |format| Ok(Some(format)))?
    else {
        return Ok(None);
    };
    match format.required_text("type")? {
        "json_schema" => openai::schema(&format, "schema", true).map(Some),
        _ => Err(format.unexpected("type", "`json_schema`")),
    }
}

// --- tools ---

fn tool_use(fields: &Fields<'_>) -> Result<ToolUse> {
    let tools = tools::tools(fields, |entry| match entry.text("type")? {
        None | Some("custom") => {
            entry.required("input_schema")?;
            Ok(Some(Described { fields: entry, schema: "input_schema", namespace: None }))
        }
        Some(kind) => Err(entry.unsupported_kind("type", "tools", kind)),
    })?;
    let (choice, parallel) = tool_choice(fields, &tools)?;
    Ok(ToolUse { tools, choice, parallel })
}

fn tool_choice(fields: &Fields<'_>, given: &[Tool]) -> Result<(ToolChoice, bool)> {
    let Some(choice) = fields.nested("tool_choice")? else {
        return Ok((ToolChoice::Auto, true));
    };
    let parallel = !choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    let chosen = match choice.required_text("type")? {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => tools::required(given)?,
        "tool" => tools::named(given, &choice)?,
        _ => return Err(choice.unexpected("type", "one of `auto`, `any`, `tool`, `none`")),
    };
    Ok((chosen, parallel))
}
