//! Anthropic's content blocks as a conversation.

use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::contents::{Contents, Kind, contents, text, texts};
use crate::wire::conversation::Conversation;

/// Blocks that hold a text.
const TEXTS: &[Kind] = &[("text", "text")];

/// How Claude Code begins a line about its accounting, which differs from request to request: it is not
/// for the model, and would keep the cache from knowing the prompt again.
const BILLING: &str = "x-anthropic-billing-header:";

/// The system prompt: a text, or blocks of text.
pub(super) fn system(fields: &Fields<'_>) -> Result<Option<String>> {
    let mut texts = texts(fields, "system", TEXTS)?.unwrap_or_default();
    texts.retain(|text| !text.starts_with(BILLING));
    Ok(Some(texts.join("\n")).filter(|text| !text.is_empty()))
}

/// Adds a message.
pub(super) fn message(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    let role = fields.required_text("role")?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(fields.unexpected("role", "`user` or `assistant`"));
    }
    fields.required("content")?;
    let blocks = match contents(fields, "content")? {
        Some(Contents::Parts(blocks)) => blocks,
        Some(Contents::Text(text)) => {
            say(conversation, role, text);
            return Ok(());
        }
        None => Vec::new(),
    };
    // Texts in a row are one message.
    let mut texts: Vec<&str> = Vec::new();
    for block in &blocks {
        let kind = block.required_text("type")?;
        if kind == "text" {
            texts.push(text(block, TEXTS)?);
            continue;
        }
        say_all(conversation, role, &mut texts);
        match role {
            "assistant" => assistant_block(conversation, kind, block)?,
            "user" => user_block(conversation, kind, block)?,
            _ => return Err(misplaced(kind, block)),
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

fn assistant_block(conversation: &mut Conversation, kind: &str, block: &Fields<'_>) -> Result<()> {
    match kind {
        "thinking" => conversation.think(block.required_text("thinking")?),
        // Nobody but Anthropic can read it.
        "redacted_thinking" => {}
        "tool_use" => {
            let (id, name) = (block.required_text("id")?, block.required_text("name")?);
            block.required_nested("input")?;
            conversation.call(Some(id), name, block.required("input")?);
        }
        _ => return Err(misplaced(kind, block)),
    }
    Ok(())
}

fn user_block(conversation: &mut Conversation, kind: &str, block: &Fields<'_>) -> Result<()> {
    if kind != "tool_result" {
        return Err(misplaced(kind, block));
    }
    let id = block.required_text("tool_use_id")?;
    block.boolean("is_error")?;
    let result = texts(block, "content", TEXTS)?.unwrap_or_default();
    conversation.result(id, &result.join("\n"));
    Ok(())
}

/// The error of a block that cannot stand where it does.
fn misplaced(kind: &str, block: &Fields<'_>) -> Error {
    block.unsupported_kind("type", "blocks", kind)
}
