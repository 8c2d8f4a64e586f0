//! Input items as a conversation.

use serde_json::Value;

use super::request::Past;
use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::contents::{Kind, texts};
use crate::wire::conversation::Conversation;
use crate::wire::fields::{mismatch, shortened};

/// Parts of a tool's result.
const TEXTS: &[Kind] = &[("input_text", "text"), ("output_text", "text"), ("text", "text")];
/// Parts of a message.
const SAID: &[Kind] =
    &[("input_text", "text"), ("output_text", "text"), ("text", "text"), ("refusal", "refusal")];
/// Parts of thinking, and of its summary.
const THOUGHT: &[Kind] = &[("reasoning_text", "text"), ("text", "text")];
const SUMMARY: &[Kind] = &[("summary_text", "text")];

/// Adds `input`, a text or items, to `conversation`.
pub(super) fn add(
    conversation: &mut Conversation,
    fields: &Fields<'_>,
    past: &dyn Past,
) -> Result<()> {
    match fields.required("input")? {
        Value::String(text) => conversation.say("user", text),
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                let fields = Fields::at(format!("input[{index}]"), value)?;
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
            let (id, name) = (fields.required_text("call_id")?, fields.required_text("name")?);
            fields.required_text("arguments")?;
            conversation.call(Some(id), name, fields.required("arguments")?);
            Ok(())
        }
        ("function_call_output", _) => {
            fields.required("output")?;
            let result = texts(fields, "output", TEXTS)?.unwrap_or_default();
            conversation.result(fields.required_text("call_id")?, &result.join("\n"));
            Ok(())
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

/// Thinking that came from here; what others have encrypted is for them.
fn reasoning(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    let thought = texts(fields, "content", THOUGHT)?.unwrap_or_default();
    let summary = texts(fields, "summary", SUMMARY)?.unwrap_or_default();
    let told = if thought.is_empty() { summary } else { thought };
    if !told.is_empty() {
        conversation.think(&told.join("\n"));
    }
    Ok(())
}
