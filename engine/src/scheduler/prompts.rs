//! What rows leave behind: their caches go to the prompt cache, and later rows start from there.
//!
//! A row's caches are kept at the boundaries of its prompt while it prefills, and at its end, whatever ended it
//! but an error. The key is always the tokens that were fed, so a token that was sampled last and not yet fed is
//! no part of it. A row of a batch is copied out for that, unless its prompt is so short that the copy costs more
//! than reading it again.
//!
//! Rows and prompt cache share one ceiling, the KV budget: what live rows take, the cache gives up.

use super::row::{Purpose, RowSpec};
use super::rows::{End, Row, Stage};
use super::{Executor, Scheduler};
use crate::prompt_cache::{Divergence, Origin, Snapshot, Taken};

/// What the cache has of a prompt.
pub(super) struct Prefix<S> {
    pub(super) snapshot: Option<S>,
    pub(super) cached_tokens: usize,
    pub(super) near: Option<Divergence>,
}

impl<E: Executor> Scheduler<E> {
    /// The longest kept prefix of a row's prompt. A failure costs time, never the request. The vector of a text
    /// is of all its tokens, read anew.
    pub(super) fn prefix_of(&mut self, spec: &RowSpec) -> Prefix<E::Snapshot> {
        let taken = match spec.purpose {
            Purpose::Answer => self.prompts.take(&spec.prompt, self.clock.now()),
            Purpose::Vector { .. } => Ok(Taken::default()),
        };
        let taken = taken.unwrap_or_else(|error| {
            tracing::error!(%error, "a kept prompt could not be taken");
            Taken::default()
        });
        let Taken { snapshot, cached_tokens, near } = taken;
        self.totals.cached_tokens += cached_tokens as u64;
        Prefix { snapshot, cached_tokens, near }
    }

    /// After how many tokens the caches of a row are kept that has `cached_tokens` already. What little is left
    /// of a prompt is not kept apart.
    pub(super) fn boundaries_to_keep(&self, spec: &RowSpec, cached_tokens: usize) -> Vec<usize> {
        let left_tokens = spec.prompt.len() - cached_tokens;
        let is_kept = self.prompts.is_on() && spec.purpose == Purpose::Answer;
        if !is_kept || left_tokens < self.config.kept_prompt_tokens_min {
            return Vec::new();
        }
        let ahead = cached_tokens + 1..spec.prompt.len();
        spec.boundaries.iter().copied().filter(|boundary| ahead.contains(boundary)).collect()
    }

    /// Keeps what a prefilling row has read.
    pub(super) fn keep_prompt(&mut self, row: &Row<E::Solo>, origin: Origin) {
        if let Stage::Prefilling { solo, .. } = &row.stage
            && row.prefilled_tokens() > 0
            && row.spec.purpose == Purpose::Answer
            && self.prompts.is_on()
        {
            let snapshot = self.executor.keep(solo);
            self.keep(row, snapshot, origin);
        }
    }

    /// Keeps what row `index` of a batch of `rows` rows holds at its end.
    pub(super) fn keep_running(
        &mut self,
        (index, rows): (usize, usize),
        row: &Row<E::Solo>,
        end: &End,
    ) {
        let is_worth_it = rows == 1 || row.spec.prompt.len() >= self.config.kept_prompt_tokens_min;
        if !matches!(end, End::Finished(_)) || !is_worth_it || !self.prompts.is_on() {
            return;
        }
        match self.executor.extract(index) {
            Ok(snapshot) => self.keep(row, snapshot, Origin::Finished),
            Err(error) => tracing::error!(%error, "the caches of `{}` were lost", row.spec.id),
        }
    }

    /// Puts `snapshot` under the tokens of `row` that it holds.
    pub(super) fn keep(
        &mut self,
        row: &Row<E::Solo>,
        snapshot: Option<E::Snapshot>,
        origin: Origin,
    ) {
        let Some(snapshot) = snapshot else { return };
        let tokens = row.tokens(snapshot.tokens());
        self.prompts.put(tokens, snapshot, origin, self.clock.now());
    }

    /// Has the prompt cache give up what the live rows take of the KV budget.
    pub(super) fn make_room(&mut self) {
        let Some(budget_bytes) = self.config.kv_budget_bytes else { return };
        let free_bytes = budget_bytes.saturating_sub(self.live_kv_bytes());
        if self.prompts.bytes() > free_bytes {
            self.prompts.trim_to(free_bytes);
        }
    }

    /// KV bytes of prefilling and running rows.
    pub(super) fn live_kv_bytes(&self) -> u64 {
        let solo_bytes: u64 = self.prefilling.iter().map(|row| self.solo_kv_bytes(row)).sum();
        solo_bytes + self.executor.batch_kv_bytes()
    }
}
