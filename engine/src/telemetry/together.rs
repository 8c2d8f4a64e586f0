//! The figures of several models as those of one server.

use std::sync::Arc;

use super::{
    BatchSnapshot, DiskCacheSnapshot, MemorySnapshot, PromptCacheSnapshot, Snapshot, Totals,
};

impl Snapshot {
    /// What the models of a server do together. The first one lends its settings; step times are those of the
    /// model that moved last. Of one model it is that model's own.
    pub fn together(models: &[Arc<Self>], memory: MemorySnapshot) -> Self {
        let Some(first) = models.first() else { return Self { memory, ..Self::default() } };
        let moved = models.iter().map(|one| one.progressed_at).max().unwrap_or_default();
        let last = models.iter().find(|one| one.progressed_at == moved).unwrap_or(first);
        let others = || models.iter().skip(1);
        let disks = others().filter_map(|one| one.disk_cache.as_ref());
        Self {
            rows: models.iter().flat_map(|one| one.rows.iter().cloned()).collect(),
            batch: others().fold(first.batch.clone(), |sum, one| sum.and(&one.batch)),
            step: last.step,
            totals: others().fold(first.totals, |sum, one| sum.and(&one.totals)),
            prompt_cache: others().fold(first.prompt_cache, |sum, one| sum.and(&one.prompt_cache)),
            disk_cache: disks.fold(first.disk_cache.clone(), |sum, one| match sum {
                Some(sum) => Some(sum.and(one)),
                None => Some(one.clone()),
            }),
            memory,
            progressed_at: moved,
        }
    }
}

impl BatchSnapshot {
    fn and(self, other: &Self) -> Self {
        Self {
            batched: self.batched || other.batched,
            active_rows: self.active_rows + other.active_rows,
            pending_rows: self.pending_rows + other.pending_rows,
            submitted_rows: self.submitted_rows + other.submitted_rows,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            kv_projected_bytes: self.kv_projected_bytes + other.kv_projected_bytes,
            tokens_per_second_now: self.tokens_per_second_now + other.tokens_per_second_now,
            ..self
        }
    }
}

impl Totals {
    fn and(self, other: &Self) -> Self {
        Self {
            finished_rows: self.finished_rows + other.finished_rows,
            cancelled_rows: self.cancelled_rows + other.cancelled_rows,
            failed_rows: self.failed_rows + other.failed_rows,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            cached_tokens: self.cached_tokens + other.cached_tokens,
            generated_tokens: self.generated_tokens + other.generated_tokens,
            decode_steps: self.decode_steps + other.decode_steps,
            prefill_chunks: self.prefill_chunks + other.prefill_chunks,
            joins: self.joins + other.joins,
            peak_rows: self.peak_rows.max(other.peak_rows),
        }
    }
}

impl PromptCacheSnapshot {
    /// The figures of this cache and of `other`, which share one cap.
    pub fn and(self, other: &Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            bytes: self.bytes + other.bytes,
            cap_bytes: self.cap_bytes.max(other.cap_bytes),
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            hit_tokens: self.hit_tokens + other.hit_tokens,
            evictions: self.evictions + other.evictions,
            refusals: self.refusals + other.refusals,
        }
    }
}

impl DiskCacheSnapshot {
    /// The figures of this tier and of `other`, which share one folder.
    pub fn and(self, other: &Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            bytes: self.bytes.max(other.bytes),
            max_bytes: self.max_bytes,
            queued_bytes: self.queued_bytes + other.queued_bytes,
            written_today_bytes: self.written_today_bytes.max(other.written_today_bytes),
            day_limit_bytes: self.day_limit_bytes,
            written_bytes: self.written_bytes.max(other.written_bytes),
            saved: self.saved + other.saved,
            restored: self.restored + other.restored,
            restored_tokens: self.restored_tokens + other.restored_tokens,
            evicted: self.evicted + other.evicted,
            dropped: self.dropped + other.dropped,
            failed: self.failed + other.failed,
            read_only: self.read_only.or_else(|| other.read_only.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn model(
        active_rows: usize,
        kv_budget_bytes: u64,
        moved_s: u64,
        steps: usize,
    ) -> Arc<Snapshot> {
        let mut shown = Snapshot::default();
        shown.batch.active_rows = active_rows;
        shown.batch.kv_budget_bytes = Some(kv_budget_bytes);
        shown.totals.peak_rows = active_rows;
        shown.totals.decode_steps = 10;
        shown.prompt_cache.bytes = 5;
        shown.prompt_cache.cap_bytes = 100;
        shown.step.steps = steps;
        shown.progressed_at = Duration::from_secs(moved_s);
        Arc::new(shown)
    }

    #[test]
    fn one_model_alone_is_the_server() {
        let one = model(3, 70, 9, 4);
        assert_eq!(Snapshot::together(std::slice::from_ref(&one), one.memory), *one);
    }

    #[test]
    fn counters_add_up_budgets_are_shared_and_steps_are_the_latest() {
        let together = Snapshot::together(
            &[model(3, 70, 9, 4), model(2, 70, 12, 6)],
            MemorySnapshot::default(),
        );
        let batch = &together.batch;
        assert_eq!((batch.active_rows, batch.kv_budget_bytes), (5, Some(70)));
        assert_eq!((together.totals.peak_rows, together.totals.decode_steps), (3, 20));
        assert_eq!((together.prompt_cache.bytes, together.prompt_cache.cap_bytes), (10, 100));
        assert_eq!((together.step.steps, together.progressed_at.as_secs()), (6, 12));
    }
}
