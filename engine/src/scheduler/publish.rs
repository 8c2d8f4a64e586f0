//! What the scheduler shows of itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::archive::Archive;
use super::plan::waiting_reasons;
use super::rows::{Row, Stage};
use super::{Executor, Scheduler};
use crate::clock::Time;
use crate::limits;
use crate::telemetry::{BatchSnapshot, RowSnapshot, Snapshot};

/// Where the last snapshot hangs for everybody to read. Reading never waits for the engine thread,
/// and all clones show the same one.
#[derive(Debug, Clone)]
pub struct Board(watch::Sender<Arc<Snapshot>>);

impl Board {
    /// A board with an empty snapshot.
    pub fn new() -> Self {
        Self(watch::Sender::new(Arc::default()))
    }

    /// The last snapshot.
    pub fn read(&self) -> Arc<Snapshot> {
        self.0.borrow().clone()
    }

    /// A receiver that is woken by each snapshot.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.0.subscribe()
    }

    /// Replaces the snapshot.
    pub fn post(&self, snapshot: Snapshot) {
        self.0.send_replace(Arc::new(snapshot));
    }

    /// Takes down the rows of a scheduler that is gone: they count as failed. The other counters stay,
    /// for the scheduler that follows to go on from.
    pub fn bury_rows(&self) {
        let last = self.read();
        let mut totals = last.totals;
        let lost_rows = last.batch.submitted_rows - totals.finished_rows;
        totals.finished_rows += lost_rows;
        totals.failed_rows += lost_rows;
        let BatchSnapshot { configured, mode, submitted_rows, kv_budget_bytes, max_gap_ms, .. } =
            last.batch;
        let batch = BatchSnapshot {
            configured,
            mode,
            submitted_rows,
            kv_budget_bytes,
            max_gap_ms,
            ..BatchSnapshot::default()
        };
        let progressed_at = last.progressed_at;
        self.post(Snapshot { batch, totals, progressed_at, ..Snapshot::default() });
    }
}

impl Default for Board {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Executor> Scheduler<E> {
    /// What the scheduler does at this moment. Made between two ticks, so its numbers agree.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            rows: self.row_snapshots(self.clock.now()),
            batch: self.batch_snapshot(),
            step: self.steps.times(),
            totals: self.totals,
            prompt_cache: self.prompts.counts(),
            disk_cache: self.archive.as_ref().map(Archive::snapshot),
            memory: self.executor.memory(),
            progressed_at: self.progressed_at,
        }
    }

    /// Posts a snapshot if rows came, moved or went, or if the last one is old.
    pub(super) fn publish_when_due(&mut self) {
        let period = Duration::from_millis(limits::SNAPSHOT_PERIOD_MS);
        let age = self.posted_at.map(|posted| self.clock.now().saturating_sub(posted));
        let changes = self.live_rows() > 0 || self.archive.is_some();
        if age.is_none_or(|age| age >= period && changes) {
            self.publish();
        }
    }

    pub(super) fn publish(&mut self) {
        self.board.post(self.snapshot());
        self.posted_at = Some(self.clock.now());
    }

    fn batch_snapshot(&self) -> BatchSnapshot {
        let now = self.clock.now();
        let rates = self.running.iter().map(|row| row.tokens_per_second_now(now));
        BatchSnapshot {
            configured: self.config.batch_rows_max,
            mode: if self.config.batch_rows_max > 1 { "batch" } else { "off" },
            batched: self.running.len() > 1,
            active_rows: self.running.len(),
            pending_rows: self.waiting.len() + self.prefilling.len(),
            submitted_rows: self.submitted,
            kv_bytes: self.live_kv_bytes(),
            kv_projected_bytes: self.occupancy().projection.bytes(),
            kv_budget_bytes: self.config.kv_budget_bytes,
            prefill_chunk_tokens: self.pacer.chunks().beside_tokens,
            max_gap_ms: self.config.max_gap.map(whole_milliseconds),
            tokens_per_second_now: rates.sum(),
        }
    }

    /// All live rows in the order of their arrival.
    fn row_snapshots(&self, now: Time) -> Vec<RowSnapshot> {
        let share_bytes = match self.running.len() as u64 {
            0 => 0,
            rows => self.executor.batch_kv_bytes() / rows,
        };
        let running = self.running.iter().map(|row| (row, share_bytes, None));
        let prefilling = self.prefilling.iter().map(|row| (row, self.solo_kv_bytes(row), None));
        let candidates = self.waiting.in_turn().map(Row::candidate);
        let waits = waiting_reasons(&self.occupancy(), candidates);
        let waits = waits.into_iter().zip(1..).map(|(why, place)| Wait { why, place });
        let waiting = self.waiting.in_turn().zip(waits).map(|(row, wait)| (row, 0, Some(wait)));
        let mut rows: Vec<_> = running.chain(prefilling).chain(waiting).collect();
        rows.sort_by_key(|(row, ..)| row.number);
        rows.into_iter().map(|(row, bytes, wait)| row.snapshot(now, bytes, wait)).collect()
    }

    pub(super) fn solo_kv_bytes(&self, row: &Row<E::Solo>) -> u64 {
        match &row.stage {
            Stage::Restoring { solo, .. } | Stage::Prefilling { solo, .. } => {
                self.executor.solo_kv_bytes(solo)
            }
            Stage::Waiting | Stage::Decoding { .. } => 0,
        }
    }
}

fn whole_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Why a row waits, and which one of the queue it is.
struct Wait {
    why: String,
    place: usize,
}

impl<S> Row<S> {
    fn snapshot(&self, now: Time, kv_bytes: u64, wait: Option<Wait>) -> RowSnapshot {
        let usage = self.usage(now);
        let (waiting_reason, queue_place) = wait.map(|wait| (wait.why, wait.place)).unzip();
        RowSnapshot {
            id: self.spec.id.clone(),
            client: self.spec.client.clone(),
            state: match self.stage {
                Stage::Waiting => "waiting",
                Stage::Restoring { .. } => "restoring",
                Stage::Prefilling { .. } => "prefilling",
                Stage::Decoding { .. } => "decoding",
            },
            lane: self.spec.lane.name(),
            lane_reasons: self.spec.lane_reasons.clone(),
            priority: self.spec.priority.name(),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            prefilled_tokens: self.prefilled_tokens(),
            generated_tokens: self.generated(),
            max_tokens: self.spec.max_tokens,
            tokens_per_second_now: self.tokens_per_second_now(now),
            tokens_per_second_mean: self.tokens_per_second_mean(now),
            kv_bytes,
            kv_projected_bytes: self.kv_bytes_max(),
            waiting_reason,
            queue_place,
            queue_ms: usage.queue_ms,
            prefill_ms: usage.prefill_ms,
            decode_ms: usage.decode_ms,
            age_ms: self.age_ms(now),
        }
    }
}
