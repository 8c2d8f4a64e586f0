//! How many prompt tokens fit between two decode steps without anybody noticing.
//!
//! A [`Pacer`] learns from the chunks that ran how fast prompts run, and cuts the next ones so that
//! the rows which decode meanwhile wait no longer than the configured gap. It reads no clock: times
//! come in, chunk sizes go out.
//!
//! What it cannot promise: a chunk is never below [`PREFILL_GRANULE_TOKENS`], so on a device that
//! needs longer for those the gap is what they take; and a device that suddenly slows down is noticed
//! one chunk late.

use std::time::Duration;

use super::plan::Chunks;
use crate::config::SchedulerConfig;
use crate::limits::PREFILL_GRANULE_TOKENS;

/// The part of the gap that chunks are cut to fill. Later chunks of a prompt attend to more tokens
/// and take longer than the ones that were measured.
const AIM: f64 = 0.8;
/// How much of a measurement that is better than the estimate is believed. A worse one is believed
/// at once: it costs somebody a late token.
const TRUST: f64 = 0.5;

/// See the module's words.
#[derive(Debug, Clone)]
pub(super) struct Pacer {
    chunk_tokens_max: usize,
    /// `None` pins every chunk to `chunk_tokens_max`.
    max_gap: Option<Duration>,
    /// `None` until the first chunk ran.
    tokens_per_second: Option<f64>,
    /// What a call of one token takes.
    call_seconds: f64,
}

impl Pacer {
    pub(super) fn new(config: &SchedulerConfig) -> Self {
        Self {
            chunk_tokens_max: config.prefill_chunk_tokens,
            max_gap: config.max_gap,
            tokens_per_second: None,
            call_seconds: 0.0,
        }
    }

    /// Learns from a slice of `tokens` prompt tokens that took `took`. Slices below a granule are
    /// mostly the cost of the call, and say nothing of larger ones.
    pub(super) fn note_slice(&mut self, tokens: usize, took: Duration) {
        if tokens < self.chunk_tokens_min() || took.is_zero() {
            return;
        }
        let measured = tokens as f64 / took.as_secs_f64();
        self.tokens_per_second = Some(match self.tokens_per_second {
            Some(estimate) if measured > estimate => estimate + TRUST * (measured - estimate),
            Some(_) | None => measured,
        });
    }

    /// Learns from the forward of a last prompt token, which took `took`.
    pub(super) fn note_call(&mut self, took: Duration) {
        let measured = took.as_secs_f64();
        let worse = measured > self.call_seconds;
        let trust = if worse { 1.0 } else { TRUST };
        self.call_seconds += trust * (measured - self.call_seconds);
    }

    /// The sizes to plan with.
    pub(super) fn chunks(&self) -> Chunks {
        let alone_tokens = self.chunk_tokens_max;
        let Some(max_gap) = self.max_gap else {
            return Chunks { alone_tokens, beside_tokens: alone_tokens, call_tokens: 1 };
        };
        let rate = self.tokens_per_second.unwrap_or(0.0);
        let fitting = (rate * max_gap.as_secs_f64() * AIM) as usize;
        let granules = fitting / PREFILL_GRANULE_TOKENS * PREFILL_GRANULE_TOKENS;
        let beside_tokens = granules.clamp(self.chunk_tokens_min(), self.chunk_tokens_max);
        let call_tokens = ((rate * self.call_seconds).ceil() as usize).clamp(1, beside_tokens);
        Chunks { alone_tokens, beside_tokens, call_tokens }
    }

    fn chunk_tokens_min(&self) -> usize {
        PREFILL_GRANULE_TOKENS.min(self.chunk_tokens_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(chunk_tokens_max: usize, max_gap_ms: u64) -> Pacer {
        Pacer::new(&SchedulerConfig {
            prefill_chunk_tokens: chunk_tokens_max,
            max_gap: Some(Duration::from_millis(max_gap_ms)),
            ..SchedulerConfig::default()
        })
    }

    /// The chunk beside others after slices of so many tokens took so many milliseconds.
    #[track_caller]
    fn check(mut pacer: Pacer, slices: &[(usize, u64)], beside_tokens: usize) {
        for (tokens, took_ms) in slices {
            pacer.note_slice(*tokens, Duration::from_millis(*took_ms));
        }
        assert_eq!(pacer.chunks().beside_tokens, beside_tokens);
        assert_eq!(pacer.chunks().alone_tokens, pacer.chunk_tokens_max);
    }

    #[test]
    fn an_unknown_speed_is_tried_with_the_smallest_chunk() {
        check(pacer(2048, 250), &[], 32);
    }

    #[test]
    fn a_chunk_fills_its_part_of_the_gap_in_whole_granules() {
        // 1000 tokens per second, 0.2 s: 200 tokens, which are six granules.
        check(pacer(2048, 250), &[(500, 500)], 192);
    }

    #[test]
    fn a_chunk_stays_between_a_granule_and_the_configured_size() {
        check(pacer(2048, 250), &[(2048, 1)], 2048);
        check(pacer(2048, 250), &[(32, 60_000)], 32);
        check(pacer(100, 250), &[(100, 1)], 100);
        check(pacer(7, 250), &[(7, 60_000)], 7);
    }

    #[test]
    fn a_slowdown_is_believed_at_once_and_a_speedup_by_half() {
        check(pacer(2048, 1000), &[(1000, 1000), (500, 1000)], 384);
        check(pacer(2048, 1000), &[(500, 1000), (1000, 1000)], 576);
    }

    #[test]
    fn a_slice_below_a_granule_and_a_clock_that_stands_still_teach_nothing() {
        check(pacer(2048, 1000), &[(500, 1000), (31, 1000), (700, 0)], 384);
    }

    #[test]
    fn a_call_costs_the_tokens_that_would_run_in_its_time() {
        let mut pacer = pacer(2048, 1000);
        pacer.note_slice(500, Duration::from_millis(500));
        assert_eq!(pacer.chunks().call_tokens, 1);
        pacer.note_call(Duration::from_millis(40));
        assert_eq!(pacer.chunks().call_tokens, 40);
        pacer.note_call(Duration::from_millis(20));
        assert_eq!(pacer.chunks().call_tokens, 30);
    }

    #[test]
    fn a_pinned_size_stays_whatever_is_measured() {
        let config = SchedulerConfig { prefill_chunk_tokens: 77, ..SchedulerConfig::default() };
        let mut pacer = Pacer::new(&config);
        pacer.note_slice(77, Duration::from_secs(9));
        pacer.note_call(Duration::from_secs(9));
        let pinned = Chunks { alone_tokens: 77, beside_tokens: 77, call_tokens: 1 };
        assert_eq!(pacer.chunks(), pinned);
    }

    #[test]
    fn chunks_settle_where_they_fill_the_gap_on_a_device_with_a_cost_per_call() {
        // 30 ms per call and 2 ms per token: 0.8 * 250 ms leave room for 85 tokens.
        let mut pacer = pacer(2048, 250);
        for _ in 0..20 {
            let tokens = pacer.chunks().beside_tokens;
            pacer.note_slice(tokens, Duration::from_millis(30 + 2 * tokens as u64));
        }
        assert_eq!(pacer.chunks().beside_tokens, 64);
    }
}
