//! One live request: tokens come in from its row, the parts of an answer go out.
//!
//! Life: parts in any number (never a part of a stop string, never half a character), each after the
//! log-probabilities of the tokens that it begins with, if they were asked for; then one finish or one
//! error, then nothing. A stop string in the visible text ends it early, and so does a cancellation, or the
//! end of a tool call where the request wants one at most: the row's channel is dropped, by which the engine
//! thread sees within one step that nobody listens. Dropping the generation does the same.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, watch};

use super::live::Presence;
use super::logprobs::{Ledger, LogprobEntry, note_visible};
use super::placement::Placement;
use super::request::GenerateRequest;
use super::residency::Lease;
use crate::clock::{Clock, Time};
use crate::error::{Code, Error, Result};
use crate::output::{AnswerParser, AnswerPart, StopMatcher, TextEnd};
use crate::prompt_cache::{Divergence, Reason};
use crate::sampling::Sampled;
use crate::scheduler::{self, EventReceiver, Lane, RowEvent, RowUsage};
use crate::telemetry::RequestMeter;
use crate::tokenizer::{Detokenizer, Tokenizer};

/// What a client hears.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerEvent {
    /// The next piece of the answer.
    Part(AnswerPart),
    /// What is known of the tokens whose text begins in the next piece, or that made none; never empty,
    /// and only for requests that ask.
    Logprobs(Vec<LogprobEntry>),
    /// The answer is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it cost.
        usage: Usage,
    },
}

/// Why an answer is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// As many tokens as allowed were generated.
    Length,
    /// The model ended it after at least one whole tool call.
    ToolCalls,
    /// Somebody asked for its end; what was said so far stands.
    Cancelled,
}

impl FinishReason {
    /// The reason's name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What an answer cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    /// Where it ran.
    pub lane: Lane,
    /// What forced it into the serial lane; empty in the continuous one.
    pub lane_reasons: Vec<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were not run because a cache had them.
    pub cached_tokens: usize,
    /// Why not more of them, when a kept prompt was near.
    pub cache_miss: Option<CacheMiss>,
    /// Tokens generated: up to and with the model's stop token, or the one that completed a stop
    /// string.
    pub generated_tokens: usize,
    /// How many of them are reasoning and its markers.
    pub reasoning_tokens: usize,
    /// Milliseconds from submission to the start of the prefill.
    pub queue_ms: f64,
    /// Milliseconds from the start of the prefill to the first token.
    pub prefill_ms: f64,
    /// Milliseconds from submission to when the first token was read here.
    pub first_token_ms: f64,
    /// Milliseconds from the first token to the end.
    pub decode_ms: f64,
}

/// Where a prompt parts from a kept one that begins alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheMiss {
    /// The index of the first token that differs.
    pub token_index: usize,
    /// What kept the other one from serving more.
    pub reason: Reason,
    /// What both say before it, the end.
    pub before: String,
    /// What the prompt says from there on, the beginning; nothing where it ends.
    pub prompt: String,
    /// What the kept one says.
    pub kept: String,
}

impl Usage {
    /// Tokens after the first per second since the first; 0 when there is none.
    pub fn decode_tokens_per_second(&self) -> f64 {
        let steps = self.generated_tokens.saturating_sub(1) as f64;
        if self.decode_ms > 0.0 { steps * 1e3 / self.decode_ms } else { 0.0 }
    }
}

/// How far the engine is on its way down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    Draining,
    Stopped,
}

/// One live request. Dropping it cancels its row.
pub struct Generation {
    id: String,
    placement: Placement,
    /// None once the answer is complete or failed.
    row: Option<LiveRow>,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    ledger: Ledger,
    parser: AnswerParser,
    stops: StopMatcher,
    /// Whether the answer may call several tools.
    parallel_calls: bool,
    /// Whether a whole call was told.
    has_called: bool,
    /// Whether visible text was told last.
    in_text: bool,
    stopwatch: Stopwatch,
    meter: RequestMeter,
    /// What the row told of its prompt.
    prefill: Prefill,
    cache_miss: Option<CacheMiss>,
    generated_tokens: usize,
    reasoning_tokens: usize,
    /// Events that are known and not yet told.
    ready: VecDeque<AnswerEvent>,
    /// Keeps the model loaded; last, so that the row goes first.
    _lease: Option<Arc<Lease>>,
}

impl Generation {
    pub(super) fn new(
        request: GenerateRequest,
        placement: Placement,
        row: LiveRow,
        (tokenizer, (detokenizer, parser)): (Tokenizer, (Detokenizer, AnswerParser)),
        stopwatch: Stopwatch,
        meter: RequestMeter,
    ) -> Self {
        Self {
            parser,
            parallel_calls: request.tools.parallel,
            has_called: false,
            in_text: false,
            id: request.id,
            placement,
            row: Some(row),
            detokenizer,
            tokenizer,
            ledger: Ledger::default(),
            stops: StopMatcher::new(request.stop),
            stopwatch,
            meter,
            prefill: Prefill::default(),
            cache_miss: None,
            generated_tokens: 0,
            reasoning_tokens: 0,
            ready: VecDeque::new(),
            _lease: None,
        }
    }

    /// The same, holding a lease of its model for as long as it lives.
    pub(super) fn holding(self, lease: Option<Arc<Lease>>) -> Self {
        Self { _lease: lease, ..self }
    }

    /// The request's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where the row runs and why.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The stop string that ended the answer, once one did.
    pub fn matched_stop(&self) -> Option<&str> {
        self.stops.matched()
    }

    /// The next event; `None` after the finish or the error. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What ended the row: `ShuttingDown`, `EngineFailed`, `OverBudget` and the like.
    pub async fn next(&mut self) -> Option<Result<AnswerEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            let heard = self.row.as_mut()?.next().await;
            let taken = heard.and_then(|heard| match heard {
                Heard::Event(event) => self.take(event),
                Heard::Cancelled => self.cancel(),
            });
            if let Err(error) = taken {
                self.row = None;
                self.meter.ended("failed", self.generated_tokens);
                return Some(Err(error));
            }
        }
    }

    fn take(&mut self, event: RowEvent) -> Result<()> {
        match event {
            RowEvent::Prefilled { cached_tokens, queue_ms, prefill_ms, near } => {
                self.cache_miss = near.map(|near| self.told(&near)).transpose()?;
                self.prefill = Prefill { cached_tokens, queue_ms, prefill_ms };
                let prompt_tokens = self.placement.shape.prompt_tokens;
                self.meter.prefilled(prompt_tokens, cached_tokens, queue_ms);
                Ok(())
            }
            RowEvent::Token(sampled) => self.take_token(sampled),
            RowEvent::Vector(_) => Err(Error::new(Code::Internal, "an answer's row told a vector")),
            RowEvent::Finished { reason, usage } => self.finish(reason, &usage),
            RowEvent::Failed(error) => Err(error),
        }
    }

    fn told(&self, near: &Divergence) -> Result<CacheMiss> {
        let text = |tokens: &[u32]| self.tokenizer.decode_spelled(tokens);
        Ok(CacheMiss {
            token_index: near.index,
            reason: near.reason,
            before: text(&near.before)?,
            prompt: text(&near.prompt)?,
            kept: text(&near.kept)?,
        })
    }

    fn take_token(&mut self, Sampled { token, logprobs }: Sampled) -> Result<()> {
        self.generated_tokens += 1;
        let now = self.stopwatch.note_token();
        self.meter.token(now);
        let text = self.detokenizer.push(token)?;
        self.ledger.note(token, logprobs.map(|known| *known), &text, &self.tokenizer)?;
        let was_reasoning = self.parser.is_reasoning();
        let parts = self.parser.push(&text);
        self.reasoning_tokens += usize::from(was_reasoning || self.parser.is_reasoning());
        if self.deliver(parts) {
            let usage = self.usage_at_early_end();
            self.end(FinishReason::Stop, usage);
        }
        Ok(())
    }

    fn finish(&mut self, reason: scheduler::FinishReason, usage: &RowUsage) -> Result<()> {
        let (reason, end) = match reason {
            scheduler::FinishReason::Stop => (FinishReason::Stop, TextEnd::Complete),
            scheduler::FinishReason::Length => (FinishReason::Length, TextEnd::Cut),
            // We still listen, so it was not our client who cancelled.
            scheduler::FinishReason::Cancelled => return Err(shutting_down()),
        };
        let ended = self.flush(end)?;
        let usage = self.usage_of_row(usage);
        self.end(if ended { FinishReason::Stop } else { reason }, usage);
        Ok(())
    }

    /// Ends the answer where it is.
    fn cancel(&mut self) -> Result<()> {
        let ended = self.flush(TextEnd::Cut)?;
        let usage = self.usage_at_early_end();
        self.end(if ended { FinishReason::Stop } else { FinishReason::Cancelled }, usage);
        Ok(())
    }

    /// Tells what was held back; `true` when the answer ends with it.
    fn flush(&mut self, end: TextEnd) -> Result<bool> {
        let tail = self.detokenizer.finish()?;
        self.ledger.note_text(&tail);
        let mut parts = self.parser.push(&tail);
        parts.extend(self.parser.finish(end));
        let ended = self.deliver(parts) || self.release_text();
        if !ended {
            let rest = self.ledger.rest();
            self.tell_logprobs(rest);
        }
        Ok(ended)
    }

    /// Tells what of `parts` is safe to tell; `true` when the answer ends there.
    fn deliver(&mut self, parts: Vec<AnswerPart>) -> bool {
        parts.into_iter().any(|part| match part {
            AnswerPart::Text(text) => {
                let output = self.stops.push(&text);
                self.say(output.text);
                output.matched.is_some()
            }
            // No stop string goes on behind what is not text.
            part => self.release_text() || self.tell(part),
        })
    }

    /// Says the text that was held for a stop string; `true` when it ends in one.
    fn release_text(&mut self) -> bool {
        let held_back = self.stops.finish();
        self.say(held_back);
        self.stops.matched().is_some()
    }

    /// Tells a part that is not text; `true` when the answer ends with it.
    fn tell(&mut self, part: AnswerPart) -> bool {
        let called = matches!(part, AnswerPart::ToolCallEnded { .. });
        self.has_called |= called;
        self.in_text = false;
        let entries = self.due();
        self.tell_logprobs(entries);
        self.ready.push_back(AnswerEvent::Part(part));
        called && !self.parallel_calls
    }

    fn say(&mut self, text: String) {
        let mut entries = self.due();
        if !text.is_empty() {
            note_visible(&mut entries, &text, self.in_text);
            self.in_text = true;
        }
        self.tell_logprobs(entries);
        if !text.is_empty() {
            self.ready.push_back(AnswerEvent::Part(AnswerPart::Text(text)));
        }
    }

    /// What is known of the tokens whose text is no longer held back.
    fn due(&mut self) -> Vec<LogprobEntry> {
        self.ledger.due(self.parser.held_bytes() + self.stops.held_bytes())
    }

    fn tell_logprobs(&mut self, entries: Vec<LogprobEntry>) {
        if !entries.is_empty() {
            self.ready.push_back(AnswerEvent::Logprobs(entries));
        }
    }

    fn end(&mut self, reason: FinishReason, usage: Usage) {
        self.row = None;
        let reason = match reason {
            FinishReason::Stop if self.has_called => FinishReason::ToolCalls,
            reason => reason,
        };
        self.meter.ended(reason.name(), usage.generated_tokens);
        self.ready.push_back(AnswerEvent::Finished { reason, usage });
    }

    fn usage_of_row(&self, row: &RowUsage) -> Usage {
        let RowUsage { cached_tokens, queue_ms, prefill_ms, .. } = *row;
        let prefill = Prefill { cached_tokens, queue_ms, prefill_ms };
        self.usage(prefill, row.generated_tokens, row.decode_ms)
    }

    /// The row is dropped before it can tell, so its decoding is timed here.
    fn usage_at_early_end(&self) -> Usage {
        self.usage(self.prefill, self.generated_tokens, self.stopwatch.since_first_token_ms())
    }

    fn usage(&self, prefill: Prefill, generated_tokens: usize, decode_ms: f64) -> Usage {
        Usage {
            lane: self.placement.lane,
            lane_reasons: self.placement.reason_texts(),
            prompt_tokens: self.placement.shape.prompt_tokens,
            cached_tokens: prefill.cached_tokens,
            cache_miss: self.cache_miss.clone(),
            generated_tokens,
            reasoning_tokens: self.reasoning_tokens,
            queue_ms: prefill.queue_ms,
            prefill_ms: prefill.prefill_ms,
            first_token_ms: self.stopwatch.first_token_ms(),
            decode_ms,
        }
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Generation")
            .field("id", &self.id)
            .field("placement", &self.placement)
            .field("generated_tokens", &self.generated_tokens)
            .field("ended", &self.row.is_none())
            .finish_non_exhaustive()
    }
}

/// What came before the first token.
#[derive(Debug, Clone, Copy, Default)]
struct Prefill {
    cached_tokens: usize,
    queue_ms: f64,
    prefill_ms: f64,
}

/// The row's end of things: its events, and its place among the live requests.
pub(super) struct LiveRow {
    events: EventReceiver,
    phase: watch::Receiver<Phase>,
    presence: Presence,
    _place: OwnedSemaphorePermit,
}

impl LiveRow {
    pub(super) fn new(
        events: EventReceiver,
        phase: watch::Receiver<Phase>,
        presence: Presence,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { events, phase, presence, _place: place }
    }

    async fn next(&mut self) -> Result<Heard> {
        tokio::select! {
            biased;
            () = stopped(&mut self.phase) => Err(shutting_down()),
            () = self.presence.cancelled() => Ok(Heard::Cancelled),
            event = self.events.recv() => event.map(Heard::Event).ok_or_else(engine_gone),
        }
    }
}

/// What happens to a live row.
enum Heard {
    Event(RowEvent),
    /// Somebody asked for its end.
    Cancelled,
}

pub(super) async fn stopped(phase: &mut watch::Receiver<Phase>) {
    if phase.wait_for(|phase| *phase == Phase::Stopped).await.is_err() {
        // The facade was dropped while this request lives on: nobody is left to stop it.
        std::future::pending::<()>().await;
    }
}

/// What a request hears that comes, or still runs, when the server ends.
pub(super) fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "the server is shutting down")
}

/// What a request hears whose row vanished.
pub(super) fn engine_gone() -> Error {
    Error::new(Code::EngineFailed, "the engine thread dropped the request without ending it")
}

/// Times of one request, read where its text is made.
pub(super) struct Stopwatch {
    clock: Clock,
    submitted: Time,
    first_token: Option<Time>,
}

impl Stopwatch {
    pub(super) fn start(clock: Clock) -> Self {
        Self { submitted: clock.now(), clock, first_token: None }
    }

    /// When it was submitted.
    pub(super) fn submitted(&self) -> Time {
        self.submitted
    }

    fn note_token(&mut self) -> Time {
        let now = self.clock.now();
        self.first_token.get_or_insert(now);
        now
    }

    fn first_token_ms(&self) -> f64 {
        let first = self.first_token.unwrap_or_else(|| self.clock.now());
        first.saturating_sub(self.submitted).as_secs_f64() * 1e3
    }

    fn since_first_token_ms(&self) -> f64 {
        self.first_token
            .map_or(0.0, |first| self.clock.now().saturating_sub(first).as_secs_f64() * 1e3)
    }
}
