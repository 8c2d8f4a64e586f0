//! A row: one sequence in the engine, and what its client hears of it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::error::Error;
use crate::grammar::Grammar;
use crate::prompt_cache::Divergence;
use crate::sampling::{Sampled, SamplingParams};

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

/// Who is served first. Rows of one priority start in the order of their arrival; between the two see
/// [`limits::OVERTAKES_MAX`](crate::limits::OVERTAKES_MAX).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Priority {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// Nobody does.
    Background,
}

impl Priority {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Interactive, Self::Background];

    /// The priority's name in requests and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Background => "background",
        }
    }

    /// The priority of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.name() == name)
    }
}

/// What a row is to do: plain data, fixed at submission.
#[derive(Debug, Clone)]
pub struct RowSpec {
    /// The request's id, unique among live rows.
    pub id: String,
    /// Who asked, for people.
    pub client: Arc<str>,
    /// Where it runs.
    pub lane: Lane,
    /// What forced it into the serial lane; empty in the continuous one.
    pub lane_reasons: Arc<[String]>,
    /// Who goes first.
    pub priority: Priority,
    /// The prompt's token ids; never empty.
    pub prompt: Vec<u32>,
    /// After how many of them others may go on otherwise, ascending: the ends of the system part and of the last
    /// user turn. The row's caches are kept there.
    pub boundaries: Vec<usize>,
    /// Tokens it may generate: at least 1 for an answer, none for a vector.
    pub max_tokens: usize,
    /// Bytes that its caches take once it generated `max_tokens`, alone and unpadded.
    pub kv_bytes: u64,
    /// Tokens that end it (they are counted, and not delivered).
    pub stop_tokens: Arc<[u32]>,
    /// How it picks tokens.
    pub sampling: SamplingParams,
    /// What its answer must match, if anything.
    pub grammar: Option<Grammar>,
    /// What its prompt is run for.
    pub purpose: Purpose,
}

/// What a row's prompt is run for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Purpose {
    /// An answer.
    #[default]
    Answer,
    /// Its vector: the row ends with its prompt, joins nobody and generates nothing.
    Vector {
        /// Leading numbers of the vector to keep; `None` is all of them.
        dimensions: Option<usize>,
    },
}

/// Why a row ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token, the end of what its grammar allows, or the consumer matched a stop string.
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

/// What a row's client hears, in order: once that its prompt is done, tokens, then exactly one end.
/// A row that ends before its token 0 was sampled tells its end alone.
#[derive(Debug, Clone, PartialEq)]
pub enum RowEvent {
    /// The whole prompt is in the row's caches and token 0 was sampled (or, of a row that writes in blocks,
    /// is about to be denoised).
    Prefilled {
        /// Prompt tokens that were not run because a cache had them.
        cached_tokens: usize,
        /// Milliseconds from submission to the start of the prefill.
        queue_ms: f64,
        /// Milliseconds from the start of the prefill to token 0.
        prefill_ms: f64,
        /// Where the prompt parts from the nearest one that was kept, if one is near.
        near: Option<Divergence>,
    },
    /// One generated token.
    Token(Sampled),
    /// The vector of the prompt, all that a row for one tells before its end.
    Vector(Vec<f32>),
    /// The row ended.
    Finished { reason: FinishReason, usage: RowUsage },
    /// The row ended in an error.
    Failed(Error),
}

/// The sending half of a row's events. It never blocks the engine: it has room for everything that
/// the row may tell, so it cannot be full, and a closed one means that the client left.
#[derive(Clone)]
pub struct EventSender(mpsc::Sender<RowEvent>);

/// The receiving half; dropping it cancels the row.
pub type EventReceiver = mpsc::Receiver<RowEvent>;

/// A channel for a row that may generate `max_tokens`, or that is to become a vector.
pub fn event_channel(max_tokens: usize) -> (EventSender, EventReceiver) {
    // The tokens (or a vector), what comes before them and the end.
    let capacity = max_tokens.max(1).saturating_add(2).min(mpsc_capacity_max());
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
