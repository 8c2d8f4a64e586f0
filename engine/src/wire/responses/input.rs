//! Input items as messages of a chat.

use serde_json::Value;

use super::request::{Past, unsupported};
use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::conversation::Conversation;
use crate::wire::fields::mismatch;

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
            let (id, name) = (text(fields, "call_id")?, text(fields, "name")?);
            let arguments = text(fields, "arguments")?;
            let parsed = serde_json::from_str(arguments).ok().filter(Value::is_object);
            conversation.call(id, name, parsed.unwrap_or_else(|| Value::from(arguments)));
            Ok(())
        }
        ("function_call_output", _) => {
            let result = output(fields)?;
            conversation.result(text(fields, "call_id")?, &result);
            Ok(())
        }
        ("item_reference", Some(past)) => {
            let id = text(fields, "id")?;
            let path = fields.path_of("id");
            let found = past.item(id).ok_or_else(|| {
                Error::invalid(&path, format!("`{path}`: no stored item is called `{id}`"))
            })?;
            item(conversation, &Fields::at(path, &found)?, None)
        }
        _ => {
            let path = fields.path_of("type");
            let message = format!("`{path}`: items of the type `{kind}` are not supported");
            Err(unsupported(&path, message))
        }
    }
}

fn message(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    fields.required("role")?;
    let role = match fields.text("role")?.unwrap_or_default() {
        "developer" => "system",
        role @ ("user" | "assistant" | "system") => role,
        _ => {
            let expected = "one of `user`, `assistant`, `system`, `developer`";
            return Err(mismatch(&fields.path_of("role"), expected, &fields.object()["role"]));
        }
    };
    let path = fields.path_of("content");
    let content = match fields.required("content")? {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            texts(&path, parts, &["input_text", "output_text", "text", "refusal"])?.concat()
        }
        other => return Err(mismatch(&path, "a string or an array of parts", other)),
    };
    match role {
        "assistant" => conversation.answer(&content),
        _ => conversation.say(role, &content),
    }
    Ok(())
}

/// Thinking that came from here; what others have encrypted is for them.
fn reasoning(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    let mut all = Vec::new();
    for (name, kinds) in
        [("content", &["reasoning_text", "text"][..]), ("summary", &["summary_text"][..])]
    {
        let parts = fields.array(name)?.unwrap_or_default();
        if all.is_empty() {
            all = texts(&fields.path_of(name), parts, kinds)?;
        }
    }
    if !all.is_empty() {
        conversation.think(&all.join("\n"));
    }
    Ok(())
}

fn output(fields: &Fields<'_>) -> Result<String> {
    let path = fields.path_of("output");
    match fields.required("output")? {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            Ok(texts(&path, parts, &["input_text", "output_text", "text"])?.join("\n"))
        }
        other => Err(mismatch(&path, "a string or an array of parts", other)),
    }
}

/// The texts of parts that must all be of one of `kinds`.
fn texts<'a>(path: &str, parts: &'a [Value], kinds: &[&str]) -> Result<Vec<&'a str>> {
    let read = |(index, part): (usize, &'a Value)| {
        let part = Fields::at(format!("{path}[{index}]"), part)?;
        match text(&part, "type")? {
            "refusal" if kinds.contains(&"refusal") => text(&part, "refusal"),
            kind if kinds.contains(&kind) => text(&part, "text"),
            kind => {
                let path = part.path_of("type");
                let message =
                    format!("`{path}`: parts of the type `{kind}` are not supported here");
                Err(unsupported(&path, message))
            }
        }
    };
    parts.iter().enumerate().map(read).collect()
}

fn text<'a>(fields: &Fields<'a>, name: &str) -> Result<&'a str> {
    fields.required(name)?;
    Ok(fields.text(name)?.unwrap_or_default())
}
