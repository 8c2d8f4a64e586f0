//! Answers: whole ones and chunks.
//!
//! A reply is told once, as text events; [`ReplyHead`] shapes each event into a chunk, or all of
//! them folded into one whole answer. Both have the same frame ([`Body`]) and differ in what a
//! choice holds.

use serde::Serialize;

use super::logprobs::Logprobs;
use super::request::ReplyKind;
use crate::gateway::{FinishReason, LogprobEntry, Usage};

/// What all chunks of one reply share.
#[derive(Debug, Clone)]
pub struct ReplyHead {
    /// Which API it answers.
    pub kind: ReplyKind,
    /// The request's id.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The served model's id.
    pub model: String,
    /// Whether a stream ends in a usage chunk.
    pub include_usage: bool,
    /// Whether log-probabilities are told.
    pub logprobs: bool,
}

/// A whole answer or one chunk.
#[derive(Debug, Clone, Serialize)]
pub struct Body {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "UsageField::is_absent")]
    usage: UsageField,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Debug, Clone, Serialize)]
struct Choice {
    index: usize,
    #[serde(flatten)]
    content: Content,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "lowercase")]
enum Content {
    Delta(Delta),
    Message(Message),
    Text(String),
}

#[derive(Debug, Clone, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

/// OpenAI's three states of `usage`: no such field, `null` in all chunks before the last, counts.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum UsageField {
    Absent,
    Null,
    Counts(UsageCounts),
}

impl UsageField {
    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

#[derive(Debug, Clone, Serialize)]
struct UsageCounts {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

/// Where it ran and where the time went; an extension of ours that OpenAI's clients ignore.
#[derive(Debug, Clone, Serialize)]
struct Timings {
    lane: &'static str,
    lane_reasons: Vec<String>,
    cached_tokens: usize,
    queue_ms: f64,
    prefill_ms: f64,
    first_token_ms: f64,
    decode_ms: f64,
    decode_tokens_per_second: f64,
}

impl ReplyHead {
    /// The chunk before any text: a chat's role. Completions have none.
    pub fn opening(&self) -> Option<Body> {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
        match self.kind {
            ReplyKind::Chat => Some(self.chunk(Content::Delta(delta), &[], None)),
            ReplyKind::Completion => None,
        }
    }

    /// A chunk of text, with what is known of the tokens that begin in it.
    pub fn text(&self, text: String, entries: &[LogprobEntry]) -> Body {
        let content = match self.kind {
            ReplyKind::Chat => Content::Delta(Delta { role: None, content: Some(text) }),
            ReplyKind::Completion => Content::Text(text),
        };
        self.chunk(content, entries, None)
    }

    /// The one chunk that carries a finish reason, and what is known of tokens without text before it.
    pub fn finish(&self, reason: FinishReason, entries: &[LogprobEntry]) -> Body {
        let content = match self.kind {
            ReplyKind::Chat => Content::Delta(Delta::default()),
            ReplyKind::Completion => Content::Text(String::new()),
        };
        self.chunk(content, entries, Some(reason))
    }

    /// The last chunk, for clients that asked for usage.
    pub fn usage(&self, usage: &Usage) -> Option<Body> {
        self.include_usage.then(|| Body {
            choices: Vec::new(),
            usage: UsageField::Counts(UsageCounts::from(usage)),
            timings: Some(Timings::from(usage)),
            ..self.frame(self.kind.chunk_object())
        })
    }

    /// The answer of a request that does not stream.
    pub fn whole(
        &self,
        text: String,
        entries: &[LogprobEntry],
        reason: FinishReason,
        usage: &Usage,
    ) -> Body {
        let content = match self.kind {
            ReplyKind::Chat => {
                Content::Message(Message { role: "assistant", content: text, refusal: None })
            }
            ReplyKind::Completion => Content::Text(text),
        };
        let logprobs = self.logprobs.then(|| Logprobs::new(self.kind, entries));
        Body {
            choices: vec![choice(content, logprobs, Some(reason))],
            usage: UsageField::Counts(UsageCounts::from(usage)),
            timings: Some(Timings::from(usage)),
            ..self.frame(self.kind.whole_object())
        }
    }

    fn chunk(
        &self,
        content: Content,
        entries: &[LogprobEntry],
        reason: Option<FinishReason>,
    ) -> Body {
        let usage = if self.include_usage { UsageField::Null } else { UsageField::Absent };
        let logprobs = (!entries.is_empty()).then(|| Logprobs::new(self.kind, entries));
        let choices = vec![choice(content, logprobs, reason)];
        Body { choices, usage, ..self.frame(self.kind.chunk_object()) }
    }

    fn frame(&self, object: &'static str) -> Body {
        Body {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.model.clone(),
            choices: Vec::new(),
            usage: UsageField::Absent,
            timings: None,
        }
    }
}

fn choice(content: Content, logprobs: Option<Logprobs>, reason: Option<FinishReason>) -> Choice {
    let finish_reason = reason.map(|reason| match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    });
    Choice { index: 0, content, logprobs, finish_reason }
}

impl From<&Usage> for UsageCounts {
    fn from(usage: &Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.generated_tokens,
            total_tokens: usage.prompt_tokens + usage.generated_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

impl From<&Usage> for Timings {
    fn from(usage: &Usage) -> Self {
        Self {
            lane: usage.lane.name(),
            lane_reasons: usage.lane_reasons.clone(),
            cached_tokens: usage.cached_tokens,
            queue_ms: usage.queue_ms,
            prefill_ms: usage.prefill_ms,
            first_token_ms: usage.first_token_ms,
            decode_ms: usage.decode_ms,
            decode_tokens_per_second: usage.decode_tokens_per_second(),
        }
    }
}
