//! An answer as one dialect tells it: in server-sent events, or whole.
//!
//! A [`Teller`] is told the events of one answer and shapes them. Life of a stream: the opening, parts in
//! any number, then one ending or one error, after which nothing comes. A whole answer is the same
//! parts, joined first. Both are told by the same teller, so that they say the same.

use serde::Serialize;

use crate::error::Error;
use crate::gateway::{FinishReason, LogprobEntry, Usage};
use crate::output::AnswerPart;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its type, in dialects that name them.
    pub event: Option<&'static str>,
    /// Its data, one line.
    pub data: String,
}

impl Frame {
    /// An unnamed event that holds `body`.
    pub fn data(body: &impl Serialize) -> Self {
        Self { event: None, data: json(body) }
    }

    /// An event named `event` that holds `body`.
    pub fn named(event: &'static str, body: &impl Serialize) -> Self {
        Self { event: Some(event), data: json(body) }
    }
}

fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("the bodies have string keys and cannot fail to serialize")
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// Why.
    pub reason: FinishReason,
    /// The stop string that ended it, if one did.
    pub stop: Option<String>,
    /// What it cost.
    pub usage: Usage,
}

/// Tells one answer.
pub trait Teller: Send + 'static {
    /// What a whole answer is.
    type Whole: Serialize;

    /// Whether its clients count events alone, so that comments are silence to them.
    const COUNTS_EVENTS: bool;

    /// The frames before anything is known of the answer.
    fn opening(&mut self) -> Vec<Frame>;

    /// The frames of the next part.
    fn tell(&mut self, part: AnswerPart) -> Vec<Frame>;

    /// What is known of tokens of the parts to come; dialects that do not tell it let it go.
    fn logprobs(&mut self, _entries: Vec<LogprobEntry>) {}

    /// The last frames of a complete answer.
    fn ending(&mut self, ending: &Ending) -> Vec<Frame>;

    /// The last frames of an answer that failed.
    fn error(&mut self, error: &Error) -> Vec<Frame>;

    /// An event that adds nothing to the answer.
    fn idle(&mut self) -> Frame;

    /// The answer of a request that does not stream, whose neighbouring parts of one kind are one.
    fn whole(&mut self, parts: Vec<AnswerPart>, ending: &Ending) -> Self::Whole;
}
