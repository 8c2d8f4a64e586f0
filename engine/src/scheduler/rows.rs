//! The whole state of one row, which moves as one value from list to list.

use super::archive::Restore;
use super::executor::{Answer, Said};
use super::plan::Candidate;
use super::queue::{Queued, RowNumber};
use super::row::{EventSender, FinishReason, Priority, Purpose, RowEvent, RowSpec, RowUsage};
use crate::clock::Time;
use crate::error::Error;
use crate::prompt_cache::Divergence;
use crate::telemetry::RateWindow;

/// One sequence, from submission to its end. `S` is its device side before it joins the batch.
///
/// Life of a row:
/// 1. `Waiting`: submitted, in the queue; nothing was computed for it.
/// 2. `Restoring`, if the disk has more of its prompt than the memory: opened on the device, which takes what is
///    read tensor by tensor.
/// 3. `Prefilling`: opened on the device; `done` prompt tokens are in its solo caches.
/// 4. `Decoding`: token 0 was sampled if there is one, the solo caches went to the batch.
/// 5. Ended: [`Row::finish`] or [`Row::fail`] took the row by value and sent its one end event.
///
/// A row for a vector ends with its prompt and never decodes. A row may end in any of the others. A row that is dropped without an end (the engine thread
/// failed) closes its channel, which its client must take for a failure of the engine.
#[derive(Debug)]
pub(super) struct Row<S> {
    pub(super) number: RowNumber,
    pub(super) spec: RowSpec,
    pub(super) stage: Stage<S>,
    events: EventSender,
    arrived: Time,
    /// Every token it generated, a stop token included.
    said: Vec<u32>,
    /// Prompt tokens that were not run because a cache had them.
    cached_tokens: usize,
    /// After how many prompt tokens its caches are kept.
    boundaries: Vec<usize>,
    near: Option<Divergence>,
    rate: RateWindow,
}

/// How a row ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Finished(FinishReason),
    Failed(Error),
}

/// Where a row is in its life.
#[derive(Debug)]
pub(super) enum Stage<S> {
    Waiting,
    Restoring { solo: S, restore: Box<Restore>, started: Time },
    Prefilling { solo: S, done: usize, started: Time },
    Decoding { started: Time, first_token: Time },
}

impl<S> Row<S> {
    /// A waiting row.
    pub(super) fn new(
        number: RowNumber,
        spec: RowSpec,
        events: EventSender,
        arrived: Time,
    ) -> Self {
        Self {
            number,
            spec,
            stage: Stage::Waiting,
            events,
            arrived,
            said: Vec::new(),
            cached_tokens: 0,
            boundaries: Vec::new(),
            near: None,
            rate: RateWindow::default(),
        }
    }

    /// Starts the prefill on `solo`, which holds the first `cached_tokens` of the prompt.
    pub(super) fn begin_prefill(
        &mut self,
        solo: S,
        (cached_tokens, near): (usize, Option<Divergence>),
        boundaries: Vec<usize>,
        started: Time,
    ) {
        (self.cached_tokens, self.near, self.boundaries) = (cached_tokens, near, boundaries);
        self.stage = Stage::Prefilling { solo, done: cached_tokens, started };
    }

    /// Starts to restore, on the empty `solo`, what the disk has of the prompt.
    pub(super) fn begin_restore(&mut self, solo: S, restore: Restore, started: Time) {
        self.stage = Stage::Restoring { solo, restore: Box::new(restore), started };
    }

    /// Tells the client that its prompt is done and what that took.
    pub(super) fn tell_prefilled(&self, now: Time) {
        let RowUsage { cached_tokens, queue_ms, prefill_ms, .. } = self.usage(now);
        let near = self.near.clone();
        self.events.send(RowEvent::Prefilled { cached_tokens, queue_ms, prefill_ms, near });
    }

    /// Takes one token: delivers it unless it ends the row as a stop token, and says whether and why the
    /// row is at its end.
    ///
    /// A stop token at the very length limit is a stop, and so is the token that makes the answer whole
    /// there. A token that nobody takes is a cancellation.
    pub(super) fn take_token(&mut self, said: Said, now: Time) -> Option<End> {
        let Said { sampled, answer } = said;
        self.said.push(sampled.token);
        self.rate.record(now);
        if self.spec.stop_tokens.contains(&sampled.token) {
            Some(End::Finished(FinishReason::Stop))
        } else if !self.events.send(RowEvent::Token(sampled)) {
            Some(End::Finished(FinishReason::Cancelled))
        } else if answer == Answer::Whole {
            Some(End::Finished(FinishReason::Stop))
        } else if self.left_tokens() == 0 {
            Some(End::Finished(FinishReason::Length))
        } else if let Answer::Stuck(error) = answer {
            Some(End::Failed(error))
        } else {
            None
        }
    }

    /// Delivers the vector of its prompt, and says how the row ends with it.
    pub(super) fn take_vector(&self, vector: Vec<f32>) -> End {
        End::Finished(match self.events.send(RowEvent::Vector(vector)) {
            true => FinishReason::Stop,
            false => FinishReason::Cancelled,
        })
    }

    /// Ends the row without an error.
    pub(super) fn finish(self, reason: FinishReason, now: Time) {
        let usage = self.usage(now);
        self.events.send(RowEvent::Finished { reason, usage });
    }

    /// Ends the row with an error.
    pub(super) fn fail(self, error: Error) {
        self.events.send(RowEvent::Failed(error));
    }

    /// Whether its client dropped the other end.
    pub(super) fn client_left(&self) -> bool {
        self.events.is_closed()
    }

    /// Tokens it may still generate.
    pub(super) fn left_tokens(&self) -> usize {
        self.spec.max_tokens.saturating_sub(self.said.len())
    }

    /// Tokens it generated, a stop token included.
    pub(super) fn generated(&self) -> usize {
        self.said.len()
    }

    /// The first `count` tokens of its prompt and answer, the first that were fed.
    pub(super) fn tokens(&self, count: usize) -> Vec<u32> {
        self.spec.prompt.iter().chain(&self.said).copied().take(count).collect()
    }

    /// How many tokens come before the next boundary at which its caches are kept, if one comes before the last
    /// token.
    fn boundary_tokens(&self) -> Option<usize> {
        let (done, prompt_tokens) = (self.prefilled_tokens(), self.spec.prompt.len());
        let ahead = |boundary: &&usize| (done + 1..prompt_tokens).contains(*boundary);
        self.boundaries.iter().find(ahead).map(|boundary| boundary - done)
    }

    /// Whether its caches stand at a boundary at which they are kept.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.boundaries.contains(&self.prefilled_tokens())
    }

    /// Prompt tokens that are in its KV cache.
    pub(super) fn prefilled_tokens(&self) -> usize {
        match self.stage {
            Stage::Waiting | Stage::Restoring { .. } => 0,
            Stage::Prefilling { done, .. } => done,
            Stage::Decoding { .. } => self.spec.prompt.len(),
        }
    }

    /// What its caches may come to, alone: a restored entry is longer than what is left of it, at times.
    pub(super) fn kv_bytes_max(&self) -> u64 {
        match &self.stage {
            Stage::Restoring { restore, .. } => self.spec.kv_bytes.max(restore.bytes()),
            Stage::Waiting | Stage::Prefilling { .. } | Stage::Decoding { .. } => {
                self.spec.kv_bytes
            }
        }
    }

    /// The row as the planner sees it.
    pub(super) fn candidate(&self) -> Candidate {
        let left_tokens = self.spec.prompt.len() - self.prefilled_tokens();
        let RowSpec { lane, purpose, .. } = self.spec;
        let (boundary_tokens, joins) = (self.boundary_tokens(), purpose == Purpose::Answer);
        let kv_bytes = self.kv_bytes_max();
        let (number, restores) = (self.number, matches!(self.stage, Stage::Restoring { .. }));
        Candidate { number, lane, left_tokens, boundary_tokens, kv_bytes, joins, restores }
    }

    /// What the row cost up to `now`; a phase that it did not reach took no time.
    pub(super) fn usage(&self, now: Time) -> RowUsage {
        let (started, first_token) = match self.stage {
            Stage::Waiting => (now, now),
            Stage::Restoring { started, .. } | Stage::Prefilling { started, .. } => (started, now),
            Stage::Decoding { started, first_token } => (started, first_token),
        };
        RowUsage {
            prompt_tokens: self.spec.prompt.len(),
            cached_tokens: self.cached_tokens,
            generated_tokens: self.said.len(),
            queue_ms: milliseconds(self.arrived, started),
            prefill_ms: milliseconds(started, first_token),
            decode_ms: milliseconds(first_token, now),
        }
    }

    /// When it arrived.
    pub(super) fn arrived(&self) -> Time {
        self.arrived
    }

    /// Milliseconds since it arrived.
    pub(super) fn age_ms(&self, now: Time) -> u64 {
        milliseconds(self.arrived, now) as u64
    }

    /// Tokens per second over the last moments.
    pub(super) fn tokens_per_second_now(&self, now: Time) -> f64 {
        self.rate.per_second(now)
    }

    /// Tokens per second since its first token, that one not counted.
    pub(super) fn tokens_per_second_mean(&self, now: Time) -> f64 {
        let Stage::Decoding { first_token, .. } = self.stage else {
            return 0.0;
        };
        let seconds = milliseconds(first_token, now) / 1e3;
        let tokens = self.said.len().saturating_sub(1);
        if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
    }
}

impl<S> Queued for Row<S> {
    fn number(&self) -> RowNumber {
        self.number
    }

    fn priority(&self) -> Priority {
        self.spec.priority
    }
}

fn milliseconds(from: Time, to: Time) -> f64 {
    to.saturating_sub(from).as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Code;
    use crate::sampling::{Sampled, SamplingParams};
    use crate::scheduler::row::{EventReceiver, Lane, event_channel};

    const STOP: u32 = 9;

    fn row(max_tokens: usize) -> (Row<()>, EventReceiver) {
        let (events, receiver) = event_channel(max_tokens);
        let spec = RowSpec {
            id: "row".to_owned(),
            client: "test".into(),
            lane: Lane::Continuous,
            lane_reasons: [].into(),
            priority: Priority::Interactive,
            prompt: vec![1, 2, 3],
            boundaries: Vec::new(),
            max_tokens,
            kv_bytes: 0,
            stop_tokens: vec![STOP].into(),
            sampling: SamplingParams::default(),
            grammar: None,
            purpose: Purpose::Answer,
        };
        (Row::new(RowNumber(0), spec, events, Duration::ZERO), receiver)
    }

    fn said(token: u32) -> Said {
        Sampled::from(token).into()
    }

    #[track_caller]
    fn check(max_tokens: usize, tokens: &[u32], end: Option<FinishReason>, delivered: &[u32]) {
        let (mut row, mut receiver) = row(max_tokens);
        let last = tokens.iter().map(|token| row.take_token(said(*token), Duration::ZERO)).last();
        assert_eq!(last.flatten(), end.map(End::Finished));
        assert_eq!(row.generated(), tokens.len());
        let heard: Vec<RowEvent> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        let expected: Vec<RowEvent> =
            delivered.iter().map(|token| RowEvent::Token((*token).into())).collect();
        assert_eq!(heard, expected);
    }

    #[test]
    fn a_token_is_delivered_and_the_row_goes_on() {
        check(3, &[5, 6], None, &[5, 6]);
    }

    #[test]
    fn the_last_allowed_token_is_delivered_and_ends_the_row() {
        check(2, &[5, 6], Some(FinishReason::Length), &[5, 6]);
    }

    #[test]
    fn a_stop_token_counts_but_is_not_delivered() {
        check(3, &[5, STOP], Some(FinishReason::Stop), &[5]);
    }

    #[test]
    fn a_stop_token_at_the_length_limit_is_a_stop() {
        check(2, &[5, STOP], Some(FinishReason::Stop), &[5]);
    }

    #[test]
    fn a_token_that_nobody_takes_cancels_the_row() {
        let (mut row, receiver) = row(3);
        drop(receiver);
        let cancelled = Some(End::Finished(FinishReason::Cancelled));
        assert_eq!(row.take_token(said(5), Duration::ZERO), cancelled);
    }

    #[test]
    fn the_token_that_makes_an_answer_whole_is_delivered_and_stops_the_row_even_at_the_limit() {
        for max_tokens in [1, 2] {
            let (mut row, mut receiver) = row(max_tokens);
            let end = row.take_token(Said { answer: Answer::Whole, ..said(5) }, Duration::ZERO);
            assert_eq!(end, Some(End::Finished(FinishReason::Stop)));
            assert_eq!(receiver.try_recv(), Ok(RowEvent::Token(5.into())));
        }
    }

    #[test]
    fn a_row_whose_grammar_is_stuck_fails_unless_it_ends_with_that_token_anyway() {
        let stuck = || {
            let error = Error::new(Code::Unsupported, "no token can follow");
            Said { answer: Answer::Stuck(error), ..said(5) }
        };
        let (mut going_on, _receiver) = row(2);
        let end = going_on.take_token(stuck(), Duration::ZERO);
        assert!(matches!(end, Some(End::Failed(error)) if error.code() == Code::Unsupported));
        let (mut at_its_limit, _receiver) = row(1);
        let end = at_its_limit.take_token(stuck(), Duration::ZERO);
        assert_eq!(end, Some(End::Finished(FinishReason::Length)));
    }

    #[test]
    fn the_end_finds_room_behind_the_longest_answer() {
        let (mut row, mut receiver) = row(2);
        row.tell_prefilled(Duration::ZERO);
        row.take_token(said(5), Duration::ZERO);
        row.take_token(said(6), Duration::ZERO);
        row.finish(FinishReason::Length, Duration::ZERO);
        let heard: Vec<RowEvent> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        assert!(matches!(heard[..], [_, _, _, RowEvent::Finished { .. }]), "{heard:?}");
    }

    #[test]
    fn usage_splits_the_time_at_the_start_of_the_prefill_and_at_the_first_token() {
        let at = Duration::from_millis;
        let (mut row, _receiver) = row(2);
        let usage = row.usage(at(5));
        assert_eq!((usage.queue_ms, usage.prefill_ms, usage.decode_ms), (5.0, 0.0, 0.0));
        row.stage = Stage::Prefilling { solo: (), done: 1, started: at(7) };
        let usage = row.usage(at(10));
        assert_eq!((usage.queue_ms, usage.prefill_ms, usage.decode_ms), (7.0, 3.0, 0.0));
        row.stage = Stage::Decoding { started: at(7), first_token: at(20) };
        let usage = row.usage(at(50));
        assert_eq!((usage.queue_ms, usage.prefill_ms, usage.decode_ms), (7.0, 13.0, 30.0));
    }
}
