//! Answers: whole ones and chunks.
//!
//! A reply is told once, as events; [`ReplyHead`] shapes each event into a chunk, or all of
//! them folded into one whole answer. Both have the same frame ([`Body`]) and differ in what a
//! choice holds.

use serde::Serialize;

use super::logprobs::Logprobs;
use super::request::ReplyKind;
use crate::gateway::{FinishReason, LogprobEntry, Usage};
use crate::output::{AnswerPart, FoldedAnswer, FoldedCall};
use crate::wire::timings::Timings;

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
    /// A word of ours, where OpenAI has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'static str>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta; 1]>,
}

/// A piece of one tool call: its head, or more of its arguments.
#[derive(Debug, Clone, Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Clone, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

#[derive(Debug, Clone, Serialize)]
struct Message {
    role: &'static str,
    /// Null when there are tool calls and no text.
    content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

/// One tool call of a whole answer.
#[derive(Debug, Clone, Serialize)]
struct Call {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function,
}

#[derive(Debug, Clone, Serialize)]
struct Function {
    name: String,
    arguments: String,
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
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

impl ReplyHead {
    /// The chunk before any text: a chat's role. Completions have none.
    pub fn opening(&self) -> Option<Body> {
        let delta =
            Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        match self.kind {
            ReplyKind::Chat => Some(self.chunk(Content::Delta(delta), &[], None)),
            ReplyKind::Completion => None,
        }
    }

    /// The chunk of a part of the answer, with what is known of the tokens that begin in it; the end of a
    /// tool call has none.
    pub fn part(&self, part: AnswerPart, entries: &[LogprobEntry]) -> Option<Body> {
        let content = match (self.kind, part) {
            (ReplyKind::Chat, part) => Content::Delta(Delta::of(part)?),
            (ReplyKind::Completion, AnswerPart::Text(text)) => Content::Text(text),
            (ReplyKind::Completion, _) => return None,
        };
        Some(self.chunk(content, entries, None))
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
        answer: FoldedAnswer,
        entries: &[LogprobEntry],
        reason: FinishReason,
        usage: &Usage,
    ) -> Body {
        let content = match self.kind {
            ReplyKind::Chat => Content::Message(Message::of(answer, reason)),
            ReplyKind::Completion => Content::Text(answer.text),
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
        FinishReason::ToolCalls => "tool_calls",
        // OpenAI's word for an answer whose rest the server withholds: strict clients refuse others.
        FinishReason::Cancelled => "content_filter",
    });
    let stop_reason = (reason == Some(FinishReason::Cancelled)).then_some("cancelled");
    Choice { index: 0, content, logprobs, finish_reason, stop_reason }
}

impl Delta {
    fn of(part: AnswerPart) -> Option<Self> {
        let empty = Self::default();
        Some(match part {
            AnswerPart::Reasoning(text) => Self { reasoning_content: Some(text), ..empty },
            AnswerPart::Text(text) => Self { content: Some(text), ..empty },
            AnswerPart::ToolCallStarted { index, id, name } => {
                let function = FunctionDelta { name: Some(name), arguments: String::new() };
                let head = CallDelta { index, id: Some(id), kind: Some("function"), function };
                Self { tool_calls: Some([head]), ..empty }
            }
            AnswerPart::ToolCallArguments { index, json } => {
                let function = FunctionDelta { name: None, arguments: json };
                let more = CallDelta { index, id: None, kind: None, function };
                Self { tool_calls: Some([more]), ..empty }
            }
            AnswerPart::ToolCallEnded { .. } => return None,
        })
    }
}

impl Message {
    /// A call that did not end is only told, as OpenAI tells it, where the answer was cut off: the
    /// finish reason says that it is not whole. Elsewhere it turned out to be text, and is in the text.
    fn of(answer: FoldedAnswer, reason: FinishReason) -> Self {
        let FoldedAnswer { reasoning, text, mut calls } = answer;
        calls.retain(|call| call.ended || reason == FinishReason::Length);
        let called = !calls.is_empty();
        Self {
            role: "assistant",
            content: (!called || !text.is_empty()).then_some(text),
            refusal: None,
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            tool_calls: calls.into_iter().map(Call::from).collect(),
        }
    }
}

impl From<FoldedCall> for Call {
    fn from(call: FoldedCall) -> Self {
        let FoldedCall { id, name, arguments, .. } = call;
        Self { id, kind: "function", function: Function { name, arguments } }
    }
}

impl From<&Usage> for UsageCounts {
    fn from(usage: &Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.generated_tokens,
            total_tokens: usage.prompt_tokens + usage.generated_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: usage.reasoning_tokens,
            },
        }
    }
}
