//! Messages, as events and whole.
//!
//! Events, in order: `message_start` and a `ping`; blocks, each from its `content_block_start` over
//! deltas to its `content_block_stop`, and none within another; `message_delta` with the one stop reason;
//! `message_stop`. An error is an `error` event in the place of all that was to follow.
//!
//! A tool call that was cut off is no block of a whole message; in a stream, which has told its beginning
//! already, its JSON stays open and the stop reason says why.

use serde::Serialize;
use serde_json::{Map, Value};

use super::error::ErrorBody;
use crate::error::Error;
use crate::gateway::{FinishReason, Usage};
use crate::output::AnswerPart;
use crate::wire::timings::Timings;
use crate::wire::{Ending, Frame, Teller};

/// Clients send thinking back only with a signature. Nothing is signed here, and none is checked.
const SIGNATURE: &str = "unsigned";

/// Tells one message.
#[derive(Debug)]
pub struct MessageTeller {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// The block that is being told.
    open: Option<BlockKind>,
    /// The place of the next block.
    next: usize,
    /// What was taken of an answer that is told whole.
    parts: Vec<AnswerPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    ToolUse,
}

/// A message, or the beginning of one.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Block>,
    #[serde(flatten)]
    stop: Stop,
    usage: UsageCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Debug, Clone, Default, Serialize)]
struct Stop {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    stop_details: Option<StopDetails>,
}

/// Why the server withholds the rest of an answer.
#[derive(Debug, Clone, Copy, Serialize)]
struct StopDetails {
    #[serde(rename = "type")]
    kind: &'static str,
    category: Option<()>,
    explanation: &'static str,
}

const CANCELLED: StopDetails =
    StopDetails { kind: "refusal", category: None, explanation: "the request was cancelled" };

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Thinking { thinking: String, signature: &'static str },
    Text { text: String },
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// Tokens, each counted in one place.
#[derive(Debug, Clone, Copy, Serialize)]
struct UsageCounts {
    /// Prompt tokens that no cache had.
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
}

/// Parts of the output, which are counted in it too.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct OutputDetails {
    thinking_tokens: usize,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart { message: Message },
    Ping,
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: Delta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Stop, usage: UsageCounts, timings: Timings },
    MessageStop,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "they are Anthropic's names")]
enum Delta {
    ThinkingDelta { thinking: String },
    SignatureDelta { signature: &'static str },
    TextDelta { text: String },
    InputJsonDelta { partial_json: String },
}

impl Event {
    fn frame(&self) -> Frame {
        let name = match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        };
        Frame::named(name, self)
    }
}

impl Block {
    fn kind(&self) -> BlockKind {
        match self {
            Self::Thinking { .. } => BlockKind::Thinking,
            Self::Text { .. } => BlockKind::Text,
            Self::ToolUse { .. } => BlockKind::ToolUse,
        }
    }
}

impl MessageTeller {
    /// A teller of the message `id` of `model`, whose prompt has `prompt_tokens`.
    pub fn new(id: impl Into<String>, model: impl Into<String>, prompt_tokens: usize) -> Self {
        let (id, model) = (id.into(), model.into());
        Self { id, model, prompt_tokens, open: None, next: 0, parts: Vec::new() }
    }

    fn message(&self, content: Vec<Block>, stop: Stop, usage: UsageCounts) -> Message {
        let (id, model) = (self.id.clone(), self.model.clone());
        Message {
            id,
            kind: "message",
            role: "assistant",
            model,
            content,
            stop,
            usage,
            timings: None,
        }
    }

    fn part(&mut self, part: AnswerPart) -> Vec<Event> {
        let (block, delta) = match part {
            AnswerPart::Reasoning(thinking) => {
                let block = Block::Thinking { thinking: String::new(), signature: "" };
                (block, Delta::ThinkingDelta { thinking })
            }
            AnswerPart::Text(text) => {
                (Block::Text { text: String::new() }, Delta::TextDelta { text })
            }
            AnswerPart::ToolCallStarted { id, name, .. } => {
                return self.begin(Block::ToolUse { id, name, input: Map::new() });
            }
            AnswerPart::ToolCallArguments { json, .. } => {
                return vec![self.delta(Delta::InputJsonDelta { partial_json: json })];
            }
            AnswerPart::ToolCallEnded { .. } => return self.close(),
        };
        let mut events = Vec::new();
        if self.open != Some(block.kind()) {
            events = self.begin(block);
        }
        events.push(self.delta(delta));
        events
    }

    /// Ends the block before and begins `block`.
    fn begin(&mut self, block: Block) -> Vec<Event> {
        let mut events = self.close();
        self.open = Some(block.kind());
        self.next += 1;
        events.push(Event::ContentBlockStart { index: self.next - 1, content_block: block });
        events
    }

    fn delta(&self, delta: Delta) -> Event {
        Event::ContentBlockDelta { index: self.next.saturating_sub(1), delta }
    }

    fn close(&mut self) -> Vec<Event> {
        let Some(kind) = self.open.take() else {
            return Vec::new();
        };
        let signed = (kind == BlockKind::Thinking).then_some(SIGNATURE);
        let signature = signed.map(|signature| self.delta(Delta::SignatureDelta { signature }));
        let stop = Event::ContentBlockStop { index: self.next.saturating_sub(1) };
        signature.into_iter().chain([stop]).collect()
    }
}

impl Teller for MessageTeller {
    type Whole = Message;

    const COUNTS_EVENTS: bool = true;

    fn opening(&mut self) -> Vec<Frame> {
        let usage = UsageCounts::before(self.prompt_tokens);
        let message = self.message(Vec::new(), Stop::default(), usage);
        vec![Event::MessageStart { message }.frame(), self.idle()]
    }

    fn tell(&mut self, part: AnswerPart) -> Vec<Frame> {
        let events = self.part(part);
        events.iter().map(Event::frame).collect()
    }

    fn ending(&mut self, ending: &Ending) -> Vec<Frame> {
        let mut events = self.close();
        events.push(Event::MessageDelta {
            delta: Stop::from(ending),
            usage: UsageCounts::from(&ending.usage),
            timings: Timings::from(&ending.usage),
        });
        events.push(Event::MessageStop);
        events.iter().map(Event::frame).collect()
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        vec![Frame::named("error", &ErrorBody::from(error))]
    }

    fn idle(&mut self) -> Frame {
        Event::Ping.frame()
    }

    fn fold(&mut self, part: AnswerPart) {
        AnswerPart::join(&mut self.parts, part);
    }

    fn whole(&mut self, ending: &Ending) -> Message {
        let content = blocks(std::mem::take(&mut self.parts));
        let message = self.message(content, Stop::from(ending), UsageCounts::from(&ending.usage));
        Message { timings: Some(Timings::from(&ending.usage)), ..message }
    }
}

/// The blocks of a whole message, in the order in which they were said; none of a call that did not end.
fn blocks(parts: Vec<AnswerPart>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut called, mut arguments) = (None, String::new());
    for part in parts {
        match part {
            AnswerPart::Reasoning(thinking) => {
                blocks.push(Block::Thinking { thinking, signature: SIGNATURE });
            }
            AnswerPart::Text(text) => blocks.push(Block::Text { text }),
            AnswerPart::ToolCallStarted { id, name, .. } => {
                (called, arguments) = (Some((id, name)), String::new());
            }
            AnswerPart::ToolCallArguments { json, .. } => arguments.push_str(&json),
            AnswerPart::ToolCallEnded { .. } => {
                let input = serde_json::from_str(&arguments).ok();
                let call = called.take().zip(input);
                blocks.extend(call.map(|((id, name), input)| Block::ToolUse { id, name, input }));
            }
        }
    }
    blocks
}

impl UsageCounts {
    /// What is known before a prompt was read.
    fn before(prompt_tokens: usize) -> Self {
        Self {
            input_tokens: prompt_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens: 0,
            output_tokens_details: OutputDetails::default(),
        }
    }
}

impl From<&Usage> for UsageCounts {
    fn from(usage: &Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.generated_tokens,
            output_tokens_details: OutputDetails { thinking_tokens: usage.reasoning_tokens },
            ..Self::before(0)
        }
    }
}

impl From<&Ending> for Stop {
    fn from(ending: &Ending) -> Self {
        let stop_reason = match ending.reason {
            FinishReason::Stop if ending.stop.is_some() => "stop_sequence",
            FinishReason::Stop => "end_turn",
            FinishReason::Length => "max_tokens",
            FinishReason::ToolCalls => "tool_use",
            // Anthropic's word for an answer whose rest the server withholds: strict clients refuse others.
            FinishReason::Cancelled => "refusal",
        };
        let stop_details = (ending.reason == FinishReason::Cancelled).then_some(CANCELLED);
        let stop_sequence = ending.stop.clone().filter(|_| stop_reason == "stop_sequence");
        Self { stop_reason: Some(stop_reason), stop_sequence, stop_details }
    }
}

/// The answer of `/v1/messages/count_tokens`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TokenCount {
    input_tokens: usize,
}

impl TokenCount {
    /// A prompt of `input_tokens`.
    pub fn new(input_tokens: usize) -> Self {
        Self { input_tokens }
    }
}
