//! Plain snapshots of what the engine does now, the rate windows behind them, and the meters of
//! requests.
//!
//! A snapshot is data: it holds no array, no lock and no handle, and it is made at one point between
//! two steps, so its numbers agree with each other.

mod meters;
mod rate;
mod steps;
mod together;

use std::sync::Arc;

use crate::clock::Time;

pub use meters::{Meters, OTHER_CLIENTS, RequestMeter};
pub use rate::RateWindow;
pub use steps::{StepTimes, StepWindow};

/// What the engine does now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Live rows in the order of their arrival: waiting, prefilling and decoding ones.
    pub rows: Vec<RowSnapshot>,
    /// The running batch and its queue.
    pub batch: BatchSnapshot,
    /// Times of the last decode steps.
    pub step: StepTimes,
    /// Counters since start.
    pub totals: Totals,
    /// What prompts are kept, and how often that helped.
    pub prompt_cache: PromptCacheSnapshot,
    /// What prompts are on disk, if any are to be.
    pub disk_cache: Option<DiskCacheSnapshot>,
    /// MLX's memory figures.
    pub memory: MemorySnapshot,
    /// When a row last moved (a prompt chunk, a step, an end), on the engine's clock. Live rows and
    /// an old time mean that the engine is stuck.
    pub progressed_at: Time,
}

/// One live row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSnapshot {
    /// The request's id.
    pub id: String,
    /// Who asked: the name of an API key, or what the client calls itself.
    pub client: Arc<str>,
    /// `waiting`, `restoring`, `prefilling` or `decoding`.
    pub state: &'static str,
    /// `serial` or `continuous`.
    pub lane: &'static str,
    /// Why it is not in the continuous lane; empty when it is.
    pub lane_reasons: Arc<[String]>,
    /// `interactive` or `background`.
    pub priority: &'static str,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were not run because a cache had them.
    pub cached_tokens: usize,
    /// Prompt tokens already in the KV cache.
    pub prefilled_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Tokens it may generate at most.
    pub max_tokens: usize,
    /// Emitted tokens per second over the last two seconds.
    pub tokens_per_second_now: f64,
    /// Emitted tokens per second since its first token.
    pub tokens_per_second_mean: f64,
    /// KV bytes it holds (its share of padding included).
    pub kv_bytes: u64,
    /// KV bytes that it may come to alone.
    pub kv_projected_bytes: u64,
    /// Why it waits, when it does.
    pub waiting_reason: Option<String>,
    /// How many rows start before it, itself included, when it waits: 1 is next.
    pub queue_place: Option<usize>,
    /// Milliseconds that it waited before its prefill, so far.
    pub queue_ms: f64,
    /// Milliseconds that its prefill took, so far.
    pub prefill_ms: f64,
    /// Milliseconds since its first token.
    pub decode_ms: f64,
    /// Milliseconds since it arrived.
    pub age_ms: u64,
}

/// The running batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchSnapshot {
    /// The configured cap.
    pub configured: usize,
    /// `off` (cap 1) or `batch`. Whether the model can batch at all is not the scheduler's to know.
    pub mode: &'static str,
    /// Whether more than one row decodes together now.
    pub batched: bool,
    /// Rows that decode.
    pub active_rows: usize,
    /// Rows that wait or prefill.
    pub pending_rows: usize,
    /// Rows submitted since start.
    pub submitted_rows: u64,
    /// KV bytes of the running and prefilling rows.
    pub kv_bytes: u64,
    /// KV bytes that the running and prefilling rows may come to together, padding included.
    pub kv_projected_bytes: u64,
    /// What `kv_projected_bytes` never exceeds, when a budget is set.
    pub kv_budget_bytes: Option<u64>,
    /// Prompt tokens that run between two decode steps at most, as things stand.
    pub prefill_chunk_tokens: usize,
    /// Milliseconds that a prompt may hold up the rows that decode; `None` when chunks are pinned.
    pub max_gap_ms: Option<u64>,
    /// Tokens per second of all decoding rows together, over the last two seconds.
    pub tokens_per_second_now: f64,
}

/// The prompt cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptCacheSnapshot {
    /// Entries that it holds.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What these never exceed; 0 when it is off.
    pub cap_bytes: u64,
    /// Prompts that it had something of.
    pub hits: u64,
    /// Prompts that it had nothing of.
    pub misses: u64,
    /// Tokens that it spared.
    pub hit_tokens: u64,
    /// Entries that it let go of to make room.
    pub evictions: u64,
    /// Entries that found no room in it at all.
    pub refusals: u64,
}

/// The prompts on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskCacheSnapshot {
    /// Entries that it can serve.
    pub entries: usize,
    /// Bytes of all files in its folder, those of other models included.
    pub bytes: u64,
    /// What these never exceed.
    pub max_bytes: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Bytes written today (UTC), by whatever process.
    pub written_today_bytes: u64,
    /// How many it may be; `None` is no limit.
    pub day_limit_bytes: Option<u64>,
    /// Bytes written since the folder was made: what it has worn of the drive.
    pub written_bytes: u64,
    /// Entries written since start.
    pub saved: u64,
    /// Prompts that went on from it since start.
    pub restored: u64,
    /// Tokens that this spared.
    pub restored_tokens: u64,
    /// Entries that went to make room, since start.
    pub evicted: u64,
    /// Entries that were not what was written, since start.
    pub dropped: u64,
    /// Entries that could not be written, since start.
    pub failed: u64,
    /// Why nothing is written any more, if so.
    pub read_only: Option<String>,
}

/// Counters since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows that ended, however they ended.
    pub finished_rows: u64,
    /// Rows that ended because their client left or asked.
    pub cancelled_rows: u64,
    /// Rows that ended in an error.
    pub failed_rows: u64,
    /// Prompt tokens run.
    pub prompt_tokens: u64,
    /// Prompt tokens that were not run because a cache had them.
    pub cached_tokens: u64,
    /// Tokens generated, stop tokens included.
    pub generated_tokens: u64,
    /// Decode steps run.
    pub decode_steps: u64,
    /// Prefill chunks run.
    pub prefill_chunks: u64,
    /// Rows that joined a batch that was already running.
    pub joins: u64,
    /// The largest number of rows in one step so far.
    pub peak_rows: usize,
}

/// MLX's allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// Bytes in live arrays.
    pub active_bytes: u64,
    /// Bytes kept for reuse.
    pub cache_bytes: u64,
    /// The largest `active_bytes` so far.
    pub peak_bytes: u64,
    /// Bytes of the model's weights.
    pub weights_bytes: u64,
}
