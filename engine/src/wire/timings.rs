//! Where an answer ran and where its time went.

use serde::Serialize;

use crate::gateway::Usage;

/// An extension of ours in every dialect, which its clients ignore.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Timings {
    lane: &'static str,
    lane_reasons: Vec<String>,
    cached_tokens: usize,
    queue_ms: f64,
    prefill_ms: f64,
    first_token_ms: f64,
    decode_ms: f64,
    decode_tokens_per_second: f64,
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
