//! A row: one sequence in the engine, and what its client hears of it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::error::Error;
use crate::sampling::SamplingParams;

/// Where a row runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Alone: it starts when nothing runs, and nothing else starts before it ends.
    Serial,
    /// In the shared batch.
    Continuous,
}

impl Lane {
    /// The lane's name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Continuous => "continuous",
        }
    }
}

/// What a row is to do: plain data, fixed at submission.
#[derive(Debug, Clone)]
pub struct RowSpec {
    /// The request's id, unique among live rows.
    pub id: String,
    /// Where it runs.
    pub lane: Lane,
    /// The prompt's token ids; never empty.
    pub prompt: Vec<u32>,
    /// Tokens it may generate; at least 1.
    pub max_tokens: usize,
    /// Tokens that end it (they are counted, and not delivered).
    pub stop_tokens: Arc<[u32]>,
    /// How it picks tokens.
    pub sampling: SamplingParams,
}

/// Why a row ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token, or the consumer matched a stop string.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The client left or cancelled.
    Cancelled,
}

/// What a finished row cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were not run because a cache had them.
    pub cached_tokens: usize,
    /// Tokens generated, the stop token included.
    pub generated_tokens: usize,
    /// Milliseconds from submission to the start of the prefill.
    pub queue_ms: f64,
    /// Milliseconds from the start of the prefill to the first token.
    pub prefill_ms: f64,
    /// Milliseconds from the first token to the end.
    pub decode_ms: f64,
}

/// What a row's client hears, in order: tokens, then exactly one end.
#[derive(Debug, Clone, PartialEq)]
pub enum RowEvent {
    /// One generated token.
    Token(u32),
    /// The row ended.
    Finished { reason: FinishReason, usage: RowUsage },
    /// The row ended in an error.
    Failed(Error),
}

/// The sending half of a row's events. It never blocks the engine: its capacity is the row's own
/// `max_tokens`, so it cannot be full, and a closed one means that the client left.
#[derive(Clone)]
pub struct EventSender(mpsc::Sender<RowEvent>);

/// The receiving half; dropping it cancels the row.
pub type EventReceiver = mpsc::Receiver<RowEvent>;

/// A channel for a row that may generate `max_tokens`.
pub fn event_channel(max_tokens: usize) -> (EventSender, EventReceiver) {
    let capacity = max_tokens.saturating_add(1).min(mpsc_capacity_max());
    let (sender, receiver) = mpsc::channel(capacity);
    (EventSender(sender), receiver)
}

const fn mpsc_capacity_max() -> usize {
    usize::MAX >> 4
}

impl EventSender {
    /// Delivers `event`; `false` when nobody listens any more.
    pub fn send(&self, event: RowEvent) -> bool {
        self.0.try_send(event).is_ok()
    }

    /// Whether the client left.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl fmt::Debug for EventSender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EventSender").field("closed", &self.is_closed()).finish()
    }
}
