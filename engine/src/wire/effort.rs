//! How much a model is asked to think, in the words of the dialects.

use super::Fields;
use crate::error::Result;
use crate::gateway::{Reasoning, ReasoningEffort};

/// OpenAI's words.
pub(super) const OPENAI: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Anthropic's words.
pub(super) const ANTHROPIC: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// What the field `name` asks for in one of `words`, if it is set.
///
/// # Errors
/// `InvalidRequest` when it is none of them.
pub(super) fn effort(fields: &Fields<'_>, name: &str, words: &[&str]) -> Result<Option<Reasoning>> {
    let Some(word) = fields.text(name)? else {
        return Ok(None);
    };
    let effort = match word {
        _ if !words.contains(&word) => {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            return Err(fields.unexpected(name, &format!("one of {}", words.join(", "))));
        }
        "none" => return Ok(Some(Reasoning { enabled: Some(false), effort: None })),
        "minimal" => ReasoningEffort::Minimal,
        "low" => ReasoningEffort::Low,
        "medium" => ReasoningEffort::Medium,
        "high" => ReasoningEffort::High,
        // No open model knows a degree above this one.
        _ => ReasoningEffort::ExtraHigh,
    };
    Ok(Some(Reasoning { enabled: Some(true), effort: Some(effort) }))
}
