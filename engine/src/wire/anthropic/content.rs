//! Anthropic's content blocks as a conversation.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::wire::Fields;
use crate::wire::contents::{Contents, Kind, contents, texts};
use crate::wire::conversation::Conversation;
use crate::wire::fields::mismatch;

/// Blocks of which a system prompt is made.
const TEXTS: &[Kind] = &[("text", "text")];

/// The system prompt: a text, or blocks of text.
pub(super) fn system(fields: &Fields<'_>) -> Result<Option<String>> {
    let texts = texts(fields, "system", TEXTS)?.unwrap_or_default();
    Ok(Some(texts.join("\n")).filter(|text| !text.is_empty()))
}

/// Adds a message.
pub(super) fn message(conversation: &mut Conversation, fields: &Fields<'_>) -> Result<()> {
    let role = fields.required_text("role")?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(fields.unexpected("role", "`user` or `assistant`"));
    }
    let given = fields.required("content")?;
    let blocks = match contents(fields, "content")? {
        Some(Contents::Parts(blocks)) => blocks,
        Some(Contents::Text(text)) => {
            say(conversation, role, text);
            return Ok(());
        }
        None => Vec::new(),
    };
    if blocks.is_empty() && role != "assistant" {
        return Err(mismatch(&fields.path_of("content"), "a text or at least one block", given));
    }
    // Texts in a row are one message.
    let mut texts: Vec<Cow<'_, str>> = Vec::new();
    for block in &blocks {
        let kind = block.required_text("type")?;
        if let Some(text) = spoken(role, kind, block)? {
            texts.push(text);
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

fn say_all(conversation: &mut Conversation, role: &str, texts: &mut Vec<Cow<'_, str>>) {
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

/// What a block says, if it is one of text: others than the assistant hand on texts with a source too.
fn spoken<'a>(role: &str, kind: &str, block: &Fields<'a>) -> Result<Option<Cow<'a, str>>> {
    match kind {
        "text" => block.required_text("text").map(|text| Some(text.into())),
        "document" if role != "assistant" => document(block).map(Some),
        "search_result" if role != "assistant" => search_result(block).map(Some),
        _ => Ok(None),
    }
}

/// A document, if it comes as text.
fn document<'a>(block: &Fields<'a>) -> Result<Cow<'a, str>> {
    let source = block.required_nested("source")?;
    let body = match source.required_text("type")? {
        "text" => vec![source.required_text("data")?],
        "content" => {
            source.required("content")?;
            texts(&source, "content", TEXTS)?.unwrap_or_default()
        }
        kind => return Err(source.unsupported_kind("type", "documents", kind)),
    };
    let head = [block.text("title")?, block.text("context")?];
    Ok(lines(head.into_iter().flatten().chain(body)))
}

fn search_result<'a>(block: &Fields<'a>) -> Result<Cow<'a, str>> {
    let head = [block.required_text("title")?, block.required_text("source")?];
    block.required("content")?;
    Ok(lines(head.into_iter().chain(texts(block, "content", TEXTS)?.unwrap_or_default())))
}

fn lines<'a>(texts: impl Iterator<Item = &'a str>) -> Cow<'a, str> {
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n").into()
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
    let failed = block.boolean("is_error")?.unwrap_or(false);
    let result = result(block)?;
    // No template has a word for it, and a result that says nothing would seem to be a success.
    let result = if failed { format!("Error: {result}").trim_end().to_owned() } else { result };
    conversation.result(id, &result);
    Ok(())
}

/// What a tool returned.
fn result(block: &Fields<'_>) -> Result<String> {
    let parts = match contents(block, "content")? {
        None => return Ok(String::new()),
        Some(Contents::Text(text)) => return Ok(text.to_owned()),
        Some(Contents::Parts(parts)) => parts,
    };
    let text = |part: &Fields<'_>| match part.required_text("type")? {
        // A tool that was searched for: it is described among the others.
        "tool_reference" => part.required_text("tool_name").map(str::to_owned),
        kind => match spoken("user", kind, part)? {
            Some(text) => Ok(text.into_owned()),
            None => Err(misplaced(kind, part)),
        },
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<_>>>()?.join("\n"))
}

/// The error of a block that cannot stand where it does.
fn misplaced(kind: &str, block: &Fields<'_>) -> Error {
    block.unsupported_kind("type", "blocks", kind)
}
