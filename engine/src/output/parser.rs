//! From an answer's text to its parts.

use std::sync::Arc;

use super::format::AnswerFormat;
use super::part::AnswerPart;
use super::tool::Tool;

/// What the parser of one answer has to know beside the model's format.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// The tools that the model may call. Without any, markup of calls is text.
    pub tools: Arc<[Tool]>,
    /// Whether the prompt ends inside a reasoning block, so that the answer begins in it.
    pub reasoning_open: bool,
    /// What the ids of calls are made from: unique to the request.
    pub id_seed: String,
}

/// Why there is no more text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextEnd {
    /// The model ended its answer: a call that lacks only its closing markup is whole.
    Complete,
    /// The answer was cut off: a call that is not closed is broken.
    Cut,
}

/// Splits one answer's text into reasoning, visible text and tool calls, as it comes.
#[derive(Debug)]
pub struct AnswerParser;

impl AnswerParser {
    /// The parser of an answer in which everything is visible text.
    pub fn plain() -> Self {
        Self
    }

    /// The parser of an answer of a model that writes `format`.
    pub fn new(_format: &AnswerFormat, _options: &ParserOptions) -> Self {
        Self
    }

    /// Takes the next piece of text and returns the parts that are certain by now.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        if text.is_empty() { Vec::new() } else { vec![AnswerPart::Text(text.to_owned())] }
    }

    /// The text has ended: returns what was held back.
    pub fn finish(&mut self, _end: TextEnd) -> Vec<AnswerPart> {
        Vec::new()
    }
}
