//! `/health` and `/stats`.

use std::sync::Arc;

use serde::Serialize;

use crate::gateway::{Health, ModelCard, Overview};
use crate::telemetry::{
    BatchSnapshot, DiskCacheSnapshot, MemorySnapshot, PromptCacheSnapshot, RowSnapshot, Snapshot,
    StepTimes, Totals,
};

/// Whether requests are worth sending.
#[derive(Debug, Clone, Serialize)]
pub struct HealthBody {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<Health> for HealthBody {
    fn from(health: Health) -> Self {
        match health {
            Health::Serving => Self { status: "ok", reason: None },
            Health::Unavailable { reason } => Self { status: "unavailable", reason: Some(reason) },
        }
    }
}

/// That a live request was told to end.
#[derive(Debug, Clone, Serialize)]
pub struct CancelledBody {
    id: String,
    object: &'static str,
    cancelled: bool,
}

impl CancelledBody {
    /// The request `id` was.
    pub fn new(id: String) -> Self {
        Self { id, object: "request", cancelled: true }
    }
}

/// What the server does now. Figures are those of all models together but for `model`, the default one's.
#[derive(Debug, Clone, Serialize)]
pub struct StatsBody {
    uptime_seconds: f64,
    model: Option<ModelStats>,
    batch: BatchStats,
    rows: Vec<RowStats>,
    step: StepStats,
    totals: TotalStats,
    prompt_cache: PromptCacheStats,
    disk_cache: Option<DiskCacheStats>,
    memory: MemoryStats,
    /// Each model's own, of a server that has loaded several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<ShareStats>,
}

/// One model's part of the figures.
#[derive(Debug, Clone, Serialize)]
struct ShareStats {
    model: ModelStats,
    batch: BatchStats,
    step: StepStats,
    totals: TotalStats,
    prompt_cache: PromptCacheStats,
}

#[derive(Debug, Clone, Serialize)]
struct ModelStats {
    id: String,
    context_tokens: usize,
    vocab_size: usize,
    dtype: String,
    back_end: String,
    kv_scheme: String,
    serial_because: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct BatchStats {
    configured: usize,
    mode: &'static str,
    batched: bool,
    active_rows: usize,
    pending_rows: usize,
    submitted_rows: u64,
    kv_bytes: u64,
    kv_projected_bytes: u64,
    kv_budget_bytes: Option<u64>,
    prefill_chunk_tokens: usize,
    max_gap_ms: Option<u64>,
    tokens_per_second_now: f64,
}

#[derive(Debug, Clone, Serialize)]
struct RowStats {
    id: String,
    model: String,
    client: String,
    state: &'static str,
    lane: &'static str,
    lane_reasons: Vec<String>,
    priority: &'static str,
    prompt_tokens: usize,
    cached_tokens: usize,
    prefilled_tokens: usize,
    generated_tokens: usize,
    max_tokens: usize,
    tokens_per_second_now: f64,
    tokens_per_second_mean: f64,
    kv_bytes: u64,
    kv_projected_bytes: u64,
    waiting_reason: Option<String>,
    queue_place: Option<usize>,
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    age_ms: u64,
}

#[derive(Debug, Clone, Serialize)]
struct StepStats {
    steps: usize,
    host_ms_p50: f64,
    host_ms_p99: f64,
    build_ms_p50: f64,
    build_ms_p99: f64,
    gap_ms_p50: f64,
    gap_ms_p99: f64,
}

#[derive(Debug, Clone, Serialize)]
struct TotalStats {
    finished_rows: u64,
    cancelled_rows: u64,
    failed_rows: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    decode_steps: u64,
    prefill_chunks: u64,
    joins: u64,
    peak_rows: usize,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct PromptCacheStats {
    entries: usize,
    bytes: u64,
    cap_bytes: u64,
    hits: u64,
    misses: u64,
    hit_tokens: u64,
    evictions: u64,
    refusals: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct DiskCacheStats {
    entries: usize,
    bytes: u64,
    max_bytes: u64,
    queued_bytes: u64,
    written_today_bytes: u64,
    day_limit_bytes: Option<u64>,
    written_bytes: u64,
    saved: u64,
    restored: u64,
    restored_tokens: u64,
    evicted: u64,
    dropped: u64,
    failed: u64,
    read_only: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct MemoryStats {
    active_bytes: u64,
    cache_bytes: u64,
    peak_bytes: u64,
    weights_bytes: u64,
}

impl StatsBody {
    /// What `overview` shows.
    pub fn new(overview: &Overview) -> Self {
        let Overview { models, memory, uptime } = overview;
        let shown: Vec<Arc<Snapshot>> = models.iter().map(|(_, shown)| Arc::clone(shown)).collect();
        let snapshot = Snapshot::together(&shown, *memory);
        let default = models.first().map(|(card, _)| &**card);
        let rows = models.iter().flat_map(|(card, shown)| {
            shown.rows.iter().map(|row| RowStats::new(row, &card.id)).collect::<Vec<_>>()
        });
        let shares = models.iter().map(|(card, shown)| ShareStats::new(card, shown));
        Self {
            uptime_seconds: uptime.as_secs_f64(),
            model: default.map(ModelStats::from),
            batch: BatchStats::new(&snapshot.batch, default),
            rows: rows.collect(),
            step: StepStats::from(&snapshot.step),
            totals: TotalStats::from(&snapshot.totals),
            prompt_cache: PromptCacheStats::from(&snapshot.prompt_cache),
            disk_cache: snapshot.disk_cache.as_ref().map(DiskCacheStats::from),
            memory: MemoryStats::from(&snapshot.memory),
            models: if models.len() > 1 { shares.collect() } else { Vec::new() },
        }
    }
}

impl ShareStats {
    fn new(card: &ModelCard, shown: &Snapshot) -> Self {
        Self {
            model: ModelStats::from(card),
            batch: BatchStats::new(&shown.batch, Some(card)),
            step: StepStats::from(&shown.step),
            totals: TotalStats::from(&shown.totals),
            prompt_cache: PromptCacheStats::from(&shown.prompt_cache),
        }
    }
}

impl From<&ModelCard> for ModelStats {
    fn from(card: &ModelCard) -> Self {
        Self {
            id: card.id.clone(),
            context_tokens: card.context_tokens,
            vocab_size: card.vocab_size,
            dtype: card.dtype.clone(),
            back_end: card.back_end.clone(),
            kv_scheme: card.kv_scheme.clone(),
            serial_because: card.capabilities.serial_because.clone(),
        }
    }
}

impl BatchStats {
    fn new(batch: &BatchSnapshot, card: Option<&ModelCard>) -> Self {
        let reasons = card.map_or(&[][..], |card| &card.capabilities.serial_because);
        let serial = batch.mode == "batch" && !reasons.is_empty();
        Self {
            configured: batch.configured,
            mode: if serial { "serial" } else { batch.mode },
            batched: batch.batched,
            active_rows: batch.active_rows,
            pending_rows: batch.pending_rows,
            submitted_rows: batch.submitted_rows,
            kv_bytes: batch.kv_bytes,
            kv_projected_bytes: batch.kv_projected_bytes,
            kv_budget_bytes: batch.kv_budget_bytes,
            prefill_chunk_tokens: batch.prefill_chunk_tokens,
            max_gap_ms: batch.max_gap_ms,
            tokens_per_second_now: batch.tokens_per_second_now,
        }
    }
}

impl RowStats {
    fn new(row: &RowSnapshot, model: &str) -> Self {
        Self {
            id: row.id.clone(),
            model: model.to_owned(),
            client: row.client.to_string(),
            state: row.state,
            lane: row.lane,
            lane_reasons: row.lane_reasons.to_vec(),
            priority: row.priority,
            prompt_tokens: row.prompt_tokens,
            cached_tokens: row.cached_tokens,
            prefilled_tokens: row.prefilled_tokens,
            generated_tokens: row.generated_tokens,
            max_tokens: row.max_tokens,
            tokens_per_second_now: row.tokens_per_second_now,
            tokens_per_second_mean: row.tokens_per_second_mean,
            kv_bytes: row.kv_bytes,
            kv_projected_bytes: row.kv_projected_bytes,
            waiting_reason: row.waiting_reason.clone(),
            queue_place: row.queue_place,
            queue_ms: row.queue_ms,
            prefill_ms: row.prefill_ms,
            decode_ms: row.decode_ms,
            age_ms: row.age_ms,
        }
    }
}

impl From<&StepTimes> for StepStats {
    fn from(step: &StepTimes) -> Self {
        Self {
            steps: step.steps,
            host_ms_p50: step.host_ms_p50,
            host_ms_p99: step.host_ms_p99,
            build_ms_p50: step.build_ms_p50,
            build_ms_p99: step.build_ms_p99,
            gap_ms_p50: step.gap_ms_p50,
            gap_ms_p99: step.gap_ms_p99,
        }
    }
}

impl From<&Totals> for TotalStats {
    fn from(totals: &Totals) -> Self {
        Self {
            finished_rows: totals.finished_rows,
            cancelled_rows: totals.cancelled_rows,
            failed_rows: totals.failed_rows,
            prompt_tokens: totals.prompt_tokens,
            cached_tokens: totals.cached_tokens,
            generated_tokens: totals.generated_tokens,
            decode_steps: totals.decode_steps,
            prefill_chunks: totals.prefill_chunks,
            joins: totals.joins,
            peak_rows: totals.peak_rows,
        }
    }
}

impl From<&PromptCacheSnapshot> for PromptCacheStats {
    fn from(cache: &PromptCacheSnapshot) -> Self {
        Self {
            entries: cache.entries,
            bytes: cache.bytes,
            cap_bytes: cache.cap_bytes,
            hits: cache.hits,
            misses: cache.misses,
            hit_tokens: cache.hit_tokens,
            evictions: cache.evictions,
            refusals: cache.refusals,
        }
    }
}

impl From<&DiskCacheSnapshot> for DiskCacheStats {
    fn from(cache: &DiskCacheSnapshot) -> Self {
        Self {
            entries: cache.entries,
            bytes: cache.bytes,
            max_bytes: cache.max_bytes,
            queued_bytes: cache.queued_bytes,
            written_today_bytes: cache.written_today_bytes,
            day_limit_bytes: cache.day_limit_bytes,
            written_bytes: cache.written_bytes,
            saved: cache.saved,
            restored: cache.restored,
            restored_tokens: cache.restored_tokens,
            evicted: cache.evicted,
            dropped: cache.dropped,
            failed: cache.failed,
            read_only: cache.read_only.clone(),
        }
    }
}

impl From<&MemorySnapshot> for MemoryStats {
    fn from(memory: &MemorySnapshot) -> Self {
        Self {
            active_bytes: memory.active_bytes,
            cache_bytes: memory.cache_bytes,
            peak_bytes: memory.peak_bytes,
            weights_bytes: memory.weights_bytes,
        }
    }
}
