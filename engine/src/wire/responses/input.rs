//! Input items as a conversation.

use serde_json::{Value, json};

use super::items::unsealed;
use super::request::Past;
use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::contents::{Kind, texts};
use crate::wire::conversation::Conversation;
use crate::wire::fields::{mismatch, shortened};
use crate::wire::tools::joined;

/// Parts of a tool's result.
const TEXTS: &[Kind] = &[("input_text", "text"), ("output_text", "text"), ("text", "text")];
/// Parts of a message.
const SAID: &[Kind] =
    &[("input_text", "text"), ("output_text", "text"), ("text", "text"), ("refusal", "refusal")];
/// Parts of thinking, and of its summary.
const THOUGHT: &[Kind] = &[("reasoning_text", "text"), ("text", "text")];
const SUMMARY: &[Kind] = &[("summary_text", "text")];

/// What tools left that another server ran. The answers say what came of it.
const HOSTED_ITEMS: [&str; 10] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
];

/// Adds `input`, a text or items, to `conversation`, and what was left out to `warnings`.
pub(super) fn add(
    conversation: &mut Conversation,
    fields: &Fields<'_>,
    past: &dyn Past,
    warnings: &mut Vec<String>,
) -> Result<()> {
    match fields.required("input")? {
        Value::String(text) => conversation.say("user", text),
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                let fields = Fields::at(format!("input[{index}]"), value)?;
                if let Some(kind) = fields.text("type")?.filter(|kind| HOSTED_ITEMS.contains(kind))
                {
                    let path = fields.path_of("type");
                    warnings.push(format!("{path}: {kind} is left out, nothing here ran it"));
                    continue;
                }
                item(conversation, &fields, Some(past))?;
            }
        }
        other => return Err(mismatch("input", "a string or an array of items", other)),
    }
    match conversation.last_role() {
        None => Err(Error::invalid("input", "`input` must hold at least one message")),
        Some(_) => Ok(()),
    }
}

/// Adds one item; a reference needs a past, and none leads to another.
fn item(
    conversation: &mut Conversation,
    fields: &Fields<'_>,
    past: Option<&dyn Past>,
) -> Result<()> {
    // Messages may leave their type out.
    let kind = fields.text("type")?.unwrap_or(match fields.get("role") {
        Some(_) => "message",
        None => "item_reference",
    });
    match (kind, past) {
        ("message", _) => message(conversation, fields),
        ("reasoning", _) => reasoning(conversation, fields),
        ("function_call", _) => {
            let id = fields.required_text("call_id")?;
            let name = joined(fields.text("namespace")?, fields.required_text("name")?);
            fields.required_text("arguments")?;
            conversation.call(Some(id), &name, fields.required("arguments")?);
            Ok(())
        }
        ("custom_tool_call", _) => {
            let id = fields.required_text("call_id")?;
            let name = joined(fields.text("namespace")?, fields.required_text("name")?);
            let input = fields.required_text("input")?;
            conversation.call(Some(id), &name, &json!({"input": input}));
            Ok(())
        }
        ("local_shell_call", _) => {
            let action = fields.required_nested("action")?.object().clone();
            conversation.call(fields.text("call_id")?, "local_shell", &action.into());
            Ok(())
        }
        ("function_call_output" | "custom_tool_call_output", _) => {
            result(conversation, fields, "call_id")
        }
        ("local_shell_call_output", _) => {
            // OpenAI's name for it is `id`, and Codex' the one that all others have.
            let name = if fields.get("call_id").is_some() { "call_id" } else { "id" };
            result(conversation, fields, name)
        }
        ("item_reference", Some(past)) => {
            let id = fields.required_text("id")?;
            let path = fields.path_of("id");
            let found = past.item(id).ok_or_else(|| {
                let id = shortened(id);
                Error::invalid(&path, format!("`{path}`: no stored item is called `{id}`"))
            })?;
            item(conversation, &Fields::at(path, &found)?, None)
        }
        _ => Err(fields.unsupported_kind("type", "items", kind)),
    }
}

/// The result of the call whose id is in the field `id`.
fn result(conversation: &mut Conversation, fields: &Fields<'_>, id: &str) -> Result<()> {
    fields.required("output")?;
    let result = texts(fields, "output", TEXTS)?.unwrap_or_default();
    conversation.result(fields.required_text(id)?, &result.join("\n"));
    Ok(())
}

fn message(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    let role = match fields.required_text("role")? {
        "developer" => "system",
        role @ ("user" | "assistant" | "system") => role,
        _ => {
            let expected = "one of `user`, `assistant`, `system`, `developer`";
            return Err(fields.unexpected("role", expected));
        }
    };
    fields.required("content")?;
    let content = texts(fields, "content", SAID)?.unwrap_or_default().concat();
    match role {
        "assistant" => conversation.answer(&content),
        _ => conversation.say(role, &content),
    }
    Ok(())
}

/// Thinking, as it was told or as it was sealed here. What others have encrypted is for them.
fn reasoning(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    let thought = texts(fields, "content", THOUGHT)?.unwrap_or_default();
    let summary = texts(fields, "summary", SUMMARY)?.unwrap_or_default();
    let sealed = fields.text("encrypted_content")?.and_then(unsealed);
    let told = match sealed {
        Some(sealed) if thought.is_empty() => sealed,
        _ => (if thought.is_empty() { summary } else { thought }).join("\n"),
    };
    if !told.is_empty() {
        conversation.think(&told);
    }
    Ok(())
}
