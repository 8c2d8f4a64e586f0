//! Anthropic's content blocks as messages of a chat.

use serde_json::{Map, Value};

use super::request::unsupported;
use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::conversation::Conversation;
use crate::wire::fields::mismatch;

/// How Claude Code begins a line about its accounting, which differs from request to request: it is not
/// for the model, and would keep the cache from knowing the prompt again.
const BILLING: &str = "x-anthropic-billing-header:";

/// The system prompt: a text, or blocks of text.
pub(super) fn system(fields: &Fields<'_>) -> Result<Option<String>> {
    let texts = match fields.get("system") {
        None => return Ok(None),
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(blocks)) => {
            let texts = texts(&fields.path_of("system"), blocks)?;
            texts.into_iter().filter(|text| !text.starts_with(BILLING)).collect()
        }
        Some(other) => {
            return Err(mismatch("system", "a string or an array of text blocks", other));
        }
    };
    Ok(Some(texts.join("\n")).filter(|text| !text.is_empty()))
}

/// Adds a message.
pub(super) fn message(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    fields.required("role")?;
    let role = fields.text("role")?.unwrap_or_default();
    let path = fields.path_of("content");
    if !["user", "assistant", "system"].contains(&role) {
        let expected = "`user` or `assistant`";
        return Err(mismatch(&fields.path_of("role"), expected, &fields.object()["role"]));
    }
    let blocks = match fields.required("content")? {
        Value::String(text) => {
            say(conversation, role, text);
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(mismatch(&path, "a string or an array of blocks", other)),
    };
    // Texts in a row are one message.
    let mut texts: Vec<&str> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let block = Fields::at(format!("{path}[{index}]"), block)?;
        if kind(&block)? == "text" {
            texts.push(text(&block, "text")?);
            continue;
        }
        say_all(conversation, role, &mut texts);
        match role {
            "assistant" => assistant_block(conversation, &block)?,
            "user" => user_block(conversation, &block)?,
            _ => return Err(misplaced(&block)?),
        }
    }
    say_all(conversation, role, &mut texts);
    Ok(())
}

fn say_all(conversation: &mut Conversation, role: &str, texts: &mut Vec<&str>) {
    if !texts.is_empty() {
        say(conversation, role, &texts.join("\n"));
        texts.clear();
    }
}

fn say(conversation: &mut Conversation, role: &str, text: &str) {
    match role {
        "assistant" => conversation.answer(text),
        _ => conversation.say(role, text),
    }
}

fn assistant_block(conversation: &mut Conversation, block: &Fields<'_>) -> Result<()> {
    match kind(block)? {
        "thinking" => conversation.think(text(block, "thinking")?),
        // Nobody but Anthropic can read it.
        "redacted_thinking" => {}
        "tool_use" => {
            let (id, name) = (text(block, "id")?, text(block, "name")?);
            block.required("input")?;
            let input =
                block.nested("input")?.map_or_else(Map::new, |input| input.object().clone());
            conversation.call(id, name, Value::Object(input));
        }
        _ => return Err(misplaced(block)?),
    }
    Ok(())
}

fn user_block(conversation: &mut Conversation, block: &Fields<'_>) -> Result<()> {
    match kind(block)? {
        "tool_result" => {
            let id = text(block, "tool_use_id")?;
            block.boolean("is_error")?;
            let path = block.path_of("content");
            let result = match block.get("content") {
                None => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(Value::Array(parts)) => texts(&path, parts)?.join("\n"),
                Some(other) => {
                    return Err(mismatch(&path, "a string or an array of blocks", other));
                }
            };
            conversation.result(id, &result);
            Ok(())
        }
        _ => Err(misplaced(block)?),
    }
}

/// The texts of blocks that must all be texts.
fn texts<'a>(path: &str, blocks: &'a [Value]) -> Result<Vec<&'a str>> {
    let read = |(index, block): (usize, &'a Value)| {
        let block = Fields::at(format!("{path}[{index}]"), block)?;
        if kind(&block)? == "text" { text(&block, "text") } else { Err(misplaced(&block)?) }
    };
    blocks.iter().enumerate().map(read).collect()
}

fn kind<'a>(block: &Fields<'a>) -> Result<&'a str> {
    block.required("type")?;
    Ok(block.text("type")?.unwrap_or_default())
}

fn text<'a>(block: &Fields<'a>, name: &str) -> Result<&'a str> {
    block.required(name)?;
    Ok(block.text(name)?.unwrap_or_default())
}

/// The error of a block that cannot stand where it does.
fn misplaced(block: &Fields<'_>) -> Result<Error> {
    let (kind, path) = (kind(block)?, block.path_of("type"));
    Ok(unsupported(&path, format!("`{path}`: blocks of the type `{kind}` are not supported here")))
}
