//! What a response consists of.

use serde::Serialize;

use crate::gateway::LogprobEntry;
use crate::wire::openai::ChatEntry;

/// One item of a response's output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    /// The model thinks. Nothing is summarized here: the thinking itself is the content.
    Reasoning {
        /// `rs_...`.
        id: String,
        /// How far it is.
        status: Status,
        /// Always empty.
        summary: [(); 0],
        /// At most one part.
        content: Vec<Part>,
    },
    /// The model speaks.
    Message {
        /// `msg_...`.
        id: String,
        /// How far it is.
        status: Status,
        /// `assistant`.
        role: &'static str,
        /// At most one part.
        content: Vec<Part>,
    },
    /// The model calls a function of the client's.
    FunctionCall {
        /// `fc_...`.
        id: String,
        /// How far it is.
        status: Status,
        /// What the result refers to.
        call_id: String,
        /// The function.
        name: String,
        /// The text of a JSON object.
        arguments: String,
    },
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// More follows.
    InProgress,
    /// All is there.
    Completed,
    /// It was cut off.
    Incomplete,
}

/// What is known of one token.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct TokenEntry(ChatEntry);

impl From<&LogprobEntry> for TokenEntry {
    fn from(entry: &LogprobEntry) -> Self {
        Self(ChatEntry::from(entry).with_bytes())
    }
}

/// A part of an item's content.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text of a message.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        annotations: [(); 0],
        /// What is known of its tokens, if that was asked for.
        logprobs: Vec<TokenEntry>,
    },
    /// Text of a reasoning.
    ReasoningText {
        /// The text.
        text: String,
    },
}

impl Item {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. } => id,
        }
    }

    pub(super) fn set_status(&mut self, to: Status) {
        match self {
            Self::Reasoning { status, .. }
            | Self::Message { status, .. }
            | Self::FunctionCall { status, .. } => *status = to,
        }
    }

    /// Its one part, if it has any.
    pub(super) fn part(&self) -> Option<&Part> {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content.first(),
            Self::FunctionCall { .. } => None,
        }
    }

    /// All the text that it holds.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::FunctionCall { arguments, .. } => arguments,
            Self::Reasoning { .. } | Self::Message { .. } => self.part().map_or("", Part::text),
        }
    }

    /// Adds to the text that it holds; `None` when it has no part to hold any.
    pub(super) fn append(&mut self, more: &str) -> Option<()> {
        let text = match self {
            Self::FunctionCall { arguments, .. } => arguments,
            Self::Reasoning { content, .. } | Self::Message { content, .. } => {
                match content.first_mut()? {
                    Part::OutputText { text, .. } | Part::ReasoningText { text } => text,
                }
            }
        };
        text.push_str(more);
        Some(())
    }

    /// Adds what is known of tokens of its text, where that has a place.
    pub(super) fn append_logprobs(&mut self, entries: &[TokenEntry]) {
        if let Self::Message { content, .. } = self
            && let Some(Part::OutputText { logprobs, .. }) = content.first_mut()
        {
            logprobs.extend_from_slice(entries);
        }
    }

    /// The same without content.
    pub(super) fn bare(&self) -> Self {
        let mut bare = self.clone();
        match &mut bare {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content.clear(),
            Self::FunctionCall { arguments, .. } => arguments.clear(),
        }
        bare
    }
}

impl Part {
    pub(super) fn output_text() -> Self {
        Self::OutputText { text: String::new(), annotations: [], logprobs: Vec::new() }
    }

    pub(super) fn reasoning_text() -> Self {
        Self::ReasoningText { text: String::new() }
    }

    pub(super) fn logprobs(&self) -> &[TokenEntry] {
        match self {
            Self::OutputText { logprobs, .. } => logprobs,
            Self::ReasoningText { .. } => &[],
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::OutputText { text, .. } | Self::ReasoningText { text } => text,
        }
    }
}
