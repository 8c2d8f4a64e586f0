//! What an answer must look like, as a request says it.

use llguidance::api::TopLevelGrammar;

use super::calls::Calls;
use super::vocabulary::Vocabulary;
use super::{gbnf, schema};
use crate::error::{Code, Error, Result};
use crate::limits::GRAMMAR_BYTES_MAX;

/// What the whole of an answer must be. Two are equal when they are spelled alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Constraint {
    /// Some JSON object.
    JsonObject,
    /// JSON that validates against a schema.
    JsonSchema {
        /// The schema's text; properties come in its order.
        schema: String,
        /// Whether an unsupported keyword is an error. Otherwise it constrains nothing.
        strict: bool,
    },
    /// A match of this regular expression (Rust syntax, no look-around), from end to end.
    Regex(String),
    /// A text of this grammar: in llguidance's dialect of Lark, or in GBNF where rules are written
    /// `name ::= ...`.
    Grammar(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Calls of tools.
    Calls(Calls),
}

impl Constraint {
    /// What it is, in a message.
    fn name(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema { .. } => "the JSON schema",
            Self::Regex(_) => "the regular expression",
            Self::Grammar(_) => "the grammar",
            Self::Choice(_) => "the list of choices",
            Self::Calls(_) => "the calls of tools",
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema { schema: text, .. } | Self::Regex(text) | Self::Grammar(text) => {
                text.len()
            }
            Self::Choice(choices) => choices.iter().map(String::len).sum(),
            Self::Calls(calls) => calls.bytes(),
        }
    }

    /// Checks what needs no compiler.
    ///
    /// # Errors
    /// `InvalidRequest` when it is empty or too long.
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(Code::InvalidRequest, message));
        let (name, bytes) = (self.name(), self.bytes());
        match self {
            _ if bytes > GRAMMAR_BYTES_MAX => {
                invalid(format!("{name} has {bytes} bytes, and {GRAMMAR_BYTES_MAX} are allowed"))
            }
            Self::Choice(choices) if choices.is_empty() => invalid(format!("{name} is empty")),
            Self::Choice(choices) if choices.iter().any(String::is_empty) => {
                invalid(format!("{name} holds an empty text"))
            }
            Self::Regex(text) | Self::Grammar(text) if text.trim().is_empty() => {
                invalid(format!("{name} is empty"))
            }
            _ => Ok(()),
        }
    }

    /// The constraint in the compiler's terms and the markers of `vocabulary`.
    ///
    /// # Errors
    /// `InvalidRequest` when it is malformed, `Unsupported` naming what is not supported.
    pub(super) fn source(&self, vocabulary: &Vocabulary) -> Result<TopLevelGrammar> {
        Ok(match self {
            Self::JsonObject => {
                TopLevelGrammar::from_json_schema(schema::prepared(r#"{"type":"object"}"#, true)?)
            }
            Self::JsonSchema { schema, strict } => {
                TopLevelGrammar::from_json_schema(schema::prepared(schema, *strict)?)
            }
            Self::Regex(pattern) => TopLevelGrammar::from_regex(unanchored(pattern)),
            Self::Grammar(text) if gbnf::is_gbnf(text) => {
                TopLevelGrammar::from_lark(gbnf::to_lark(text)?)
            }
            Self::Grammar(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Choice(choices) => TopLevelGrammar::from_lark(one_of(choices)),
            Self::Calls(calls) => TopLevelGrammar::from_lark(calls.to_lark(vocabulary)?),
        })
    }

    /// The error for a compiler that said `reason`.
    pub(super) fn refused(&self, reason: &str) -> Error {
        let message = format!("failed to compile {}: {reason}", self.name());
        Error::new(Code::InvalidRequest, message)
    }
}

/// The pattern without the anchors that a match from end to end implies; the compiler has none.
fn unanchored(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    match pattern.strip_suffix('$') {
        Some(rest) if trailing_backslashes(rest).is_multiple_of(2) => rest,
        _ => pattern,
    }
}

fn trailing_backslashes(text: &str) -> usize {
    text.bytes().rev().take_while(|byte| *byte == b'\\').count()
}

/// One terminal, so that a choice may begin another.
fn one_of(choices: &[String]) -> String {
    let literals: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
    format!("start: CHOICE\nCHOICE: {}\n", literals.join(" | "))
}

/// `text` as a string of Lark, which is one of JSON.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
