//! Messages of a chat, from what agents send to what the gateway takes.
//!
//! A message leaves here with a role that chat templates know, its text as one string, and earlier
//! calls in OpenAI's form; other fields stay as they came. What the model's own template cannot take is
//! the gateway's to say in another way.

use serde_json::{Map, Value, json};

use super::request::unsupported;
use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::fields::mismatch;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// The messages of a request; at least one.
pub(super) fn messages(fields: &Fields<'_>) -> Result<Vec<Value>> {
    fields.required("messages")?;
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(Error::invalid("messages", "`messages` must hold at least one message"));
    }
    messages.iter().enumerate().map(|(index, value)| message(index, value)).collect()
}

fn message(index: usize, value: &Value) -> Result<Value> {
    let fields = Fields::at(format!("messages[{index}]"), value)?;
    fields.required("role")?;
    let role = match fields.text("role")?.unwrap_or_default() {
        // OpenAI's newer name for the same thing, which the templates of open models do not know.
        "developer" => "system",
        // And its older name.
        "function" => "tool",
        role if ROLES.contains(&role) => role,
        _ => {
            let expected = format!("one of {}", ROLES.map(|role| format!("`{role}`")).join(", "));
            return Err(mismatch(&fields.path_of("role"), &expected, &value["role"]));
        }
    };
    let Content { text, reasoning } = content(&fields, role)?;
    let mut message: Map<String, Value> = fields.object().clone();
    message.insert("role".to_owned(), Value::from(role));
    message.insert("content".to_owned(), Value::from(text));
    if role == "assistant" {
        set_calls(&mut message, &fields)?;
        set_reasoning(&mut message, reasoning);
    }
    Ok(Value::Object(message))
}

// --- contents ---

/// What a message says.
#[derive(Debug, Default)]
struct Content {
    text: String,
    /// Reasoning that came as parts.
    reasoning: String,
}

fn content(fields: &Fields<'_>, role: &str) -> Result<Content> {
    let path = fields.path_of("content");
    let text = |text: String| Content { text, reasoning: String::new() };
    match fields.get("content") {
        // An assistant's turn may be tool calls alone, and a tool may have nothing to say.
        None if matches!(role, "assistant" | "tool") => Ok(Content::default()),
        None => Err(Error::invalid(&path, format!("`{path}` is required for the role `{role}`"))),
        Some(Value::String(whole)) => Ok(text(whole.clone())),
        Some(Value::Array(parts)) => {
            let mut content = Content::default();
            for (index, part) in parts.iter().enumerate() {
                add_part(&mut content, &format!("{path}[{index}]"), part, role)?;
            }
            Ok(content)
        }
        // Agents hand on what a tool returned.
        Some(object @ Value::Object(_)) if role == "tool" => Ok(text(object.to_string())),
        Some(other) => Err(mismatch(&path, "a string or an array of parts", other)),
    }
}

fn add_part(content: &mut Content, path: &str, part: &Value, role: &str) -> Result<()> {
    let fields = Fields::at(path, part)?;
    fields.required("type")?;
    let field = |name: &str| {
        fields.required(name)?;
        fields.text(name).map(Option::unwrap_or_default)
    };
    match fields.text("type")?.unwrap_or_default() {
        "text" | "input_text" | "output_text" => content.text.push_str(field("text")?),
        "refusal" if role == "assistant" => content.text.push_str(field("refusal")?),
        "thinking" if role == "assistant" => content.reasoning.push_str(field("thinking")?),
        kind => {
            let path = fields.path_of("type");
            let message = format!("`{path}`: parts of the type `{kind}` are not supported");
            return Err(unsupported(&path, message));
        }
    }
    Ok(())
}

// --- earlier answers ---

/// Sets `tool_calls` to the calls of the message, and to nothing when it has none.
fn set_calls(message: &mut Map<String, Value>, fields: &Fields<'_>) -> Result<()> {
    let mut calls = Vec::new();
    for (index, value) in fields.array("tool_calls")?.unwrap_or_default().iter().enumerate() {
        calls.push(call(&format!("{}[{index}]", fields.path_of("tool_calls")), value)?);
    }
    // OpenAI's older form of one call.
    if let Some(older) = fields.nested("function_call")? {
        calls.push(json!({"type": "function", "function": function(&older)?}));
    }
    message.shift_remove("function_call");
    message.shift_remove("tool_calls");
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    Ok(())
}

fn call(path: &str, value: &Value) -> Result<Value> {
    let fields = Fields::at(path, value)?;
    if let Some(kind) = fields.text("type")?.filter(|kind| *kind != "function") {
        let path = fields.path_of("type");
        let message = format!("`{path}`: calls of the type `{kind}` are not supported");
        return Err(unsupported(&path, message));
    }
    let inner = Fields::at(fields.path_of("function"), fields.required("function")?)?;
    let mut call = fields.object().clone();
    call.insert("type".to_owned(), "function".into());
    call.insert("function".to_owned(), function(&inner)?);
    if fields.text("id")?.is_none() {
        call.shift_remove("id");
    }
    Ok(Value::Object(call))
}

fn function(fields: &Fields<'_>) -> Result<Value> {
    fields.required("name")?;
    let name = fields.text("name")?.unwrap_or_default();
    let arguments = match fields.get("arguments") {
        None => json!({}),
        Some(arguments @ (Value::String(_) | Value::Object(_))) => arguments.clone(),
        Some(other) => {
            return Err(mismatch(&fields.path_of("arguments"), "a string or an object", other));
        }
    };
    Ok(json!({"name": name, "arguments": arguments}))
}

/// Reasoning that came as parts counts where no field holds any; fields that hold no text go.
fn set_reasoning(message: &mut Map<String, Value>, parts: String) {
    const NAMES: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];
    for name in NAMES {
        if message.get(name).is_some_and(|value| !value.is_string()) {
            message.shift_remove(name);
        }
    }
    if !parts.is_empty() && !NAMES.iter().any(|name| message.contains_key(*name)) {
        message.insert("reasoning_content".to_owned(), parts.into());
    }
}
