//! Messages of a chat, from what agents send to a conversation.
//!
//! A message keeps its fields but those that are said in one way here: its role, its text as one string,
//! earlier calls in OpenAI's newer form, and reasoning that came as parts.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::contents::{Contents, Kind, contents, text};
use crate::wire::conversation::Conversation;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Parts of anybody's content.
const TEXTS: &[Kind] = &[("text", "text"), ("input_text", "text"), ("output_text", "text")];
/// Parts of an assistant's content, besides `thinking`.
const ANSWERS: &[Kind] =
    &[("text", "text"), ("input_text", "text"), ("output_text", "text"), ("refusal", "refusal")];

/// Fields that hold an answer's reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// The messages of a request; at least one.
pub(super) fn messages(fields: &Fields<'_>) -> Result<Vec<Value>> {
    fields.required("messages")?;
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(Error::invalid("messages", "`messages` must hold at least one message"));
    }
    let mut conversation = Conversation::default();
    for (index, value) in messages.iter().enumerate() {
        add(&mut conversation, &Fields::at(format!("messages[{index}]"), value)?)?;
    }
    Ok(conversation.into_messages())
}

fn add(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    let role = match fields.required_text("role")? {
        // OpenAI's newer name for the same thing, which the templates of open models do not know.
        "developer" => "system",
        // And its older name.
        "function" => "tool",
        role if ROLES.contains(&role) => role,
        _ => {
            let roles = ROLES.map(|role| format!("`{role}`")).join(", ");
            return Err(fields.unexpected("role", &format!("one of {roles}")));
        }
    };
    let Content { text, reasoning } = content(fields, role)?;
    let mut own: Map<String, Value> = fields.object().clone();
    if role != "assistant" {
        conversation.begin(own, role, &text);
        return Ok(());
    }
    own.retain(|name, value| match name.as_str() {
        "tool_calls" | "function_call" => false,
        name => value.is_string() || !REASONING.contains(&name),
    });
    let has_reasoning = REASONING.iter().any(|name| own.contains_key(*name));
    conversation.begin(own, role, &text);
    if !has_reasoning && !reasoning.is_empty() {
        conversation.think(&reasoning);
    }
    add_calls(conversation, fields)
}

/// What a message says.
#[derive(Debug, Default)]
struct Content {
    text: String,
    /// Reasoning that came as parts.
    reasoning: String,
}

fn content(fields: &Fields<'_>, role: &str) -> Result<Content> {
    let whole = |text: String| Content { text, reasoning: String::new() };
    if let (Some(object @ Value::Object(_)), "tool") = (fields.get("content"), role) {
        // Agents hand on what a tool returned.
        return Ok(whole(object.to_string()));
    }
    let parts = match contents(fields, "content")? {
        Some(Contents::Text(text)) => return Ok(whole(text.to_owned())),
        Some(Contents::Parts(parts)) => parts,
        // An assistant's turn may be tool calls alone, and a tool may have nothing to say.
        None if matches!(role, "assistant" | "tool") => return Ok(Content::default()),
        None => {
            let path = fields.path_of("content");
            let message = format!("`{path}` is required for the role `{role}`");
            return Err(Error::invalid(path, message));
        }
    };
    let answers = role == "assistant";
    let mut content = Content::default();
    for part in &parts {
        match part.required_text("type")? {
            "thinking" if answers => content.reasoning.push_str(part.required_text("thinking")?),
            _ => content.text.push_str(text(part, if answers { ANSWERS } else { TEXTS })?),
        }
    }
    Ok(content)
}

/// The calls of an answer.
fn add_calls(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    for (index, value) in fields.array("tool_calls")?.unwrap_or_default().iter().enumerate() {
        let call = Fields::at(format!("{}[{index}]", fields.path_of("tool_calls")), value)?;
        if let Some(kind) = call.text("type")?.filter(|kind| *kind != "function") {
            return Err(call.unsupported_kind("type", "calls", kind));
        }
        add_call(conversation, call.text("id")?, &call.required_nested("function")?)?;
    }
    // OpenAI's older form of one call.
    match fields.nested("function_call")? {
        Some(function) => add_call(conversation, None, &function),
        None => Ok(()),
    }
}

fn add_call(
    conversation: &mut Conversation,
    id: Option<&str>,
    function: &Fields<'_>,
) -> Result<()> {
    let name = function.required_text("name")?;
    let none = json!({});
    let arguments = match function.get("arguments") {
        None => &none,
        Some(arguments @ (Value::String(_) | Value::Object(_))) => arguments,
        Some(_) => return Err(function.unexpected("arguments", "a string or an object")),
    };
    conversation.call(id, name, arguments);
    Ok(())
}
