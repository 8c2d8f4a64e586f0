//! Where an answer ran and where its time went.

use serde::Serialize;

use crate::gateway::{CacheMiss, Usage};
use crate::prompt_cache::Reason;

/// An extension of ours in every dialect, which its clients ignore.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Timings {
    lane: &'static str,
    lane_reasons: Vec<String>,
    cached_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_miss: Option<CacheMissBody>,
    queue_ms: f64,
    prefill_ms: f64,
    first_token_ms: f64,
    decode_ms: f64,
    decode_tokens_per_second: f64,
}

/// Where the prompt parts from the kept one that is nearest to it.
#[derive(Debug, Clone, Serialize)]
struct CacheMissBody {
    token_index: usize,
    /// `differs`, or `cannot_trim`: the kept one goes on behind what it shares with the prompt, and its caches
    /// cannot be taken back to there.
    reason: &'static str,
    before: String,
    prompt: String,
    kept: String,
}

impl From<&CacheMiss> for CacheMissBody {
    fn from(miss: &CacheMiss) -> Self {
        let CacheMiss { token_index, reason, before, prompt, kept } = miss.clone();
        let reason = match reason {
            Reason::Differs => "differs",
            Reason::CannotTrim => "cannot_trim",
        };
        Self { token_index, reason, before, prompt, kept }
    }
}

impl From<&Usage> for Timings {
    fn from(usage: &Usage) -> Self {
        Self {
            lane: usage.lane.name(),
            lane_reasons: usage.lane_reasons.clone(),
            cached_tokens: usage.cached_tokens,
            cache_miss: usage.cache_miss.as_ref().map(CacheMissBody::from),
            queue_ms: usage.queue_ms,
            prefill_ms: usage.prefill_ms,
            first_token_ms: usage.first_token_ms,
            decode_ms: usage.decode_ms,
            decode_tokens_per_second: usage.decode_tokens_per_second(),
        }
    }
}
