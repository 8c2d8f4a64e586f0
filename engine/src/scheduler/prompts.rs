//! What rows leave behind: their caches go to the prompt cache, and later rows start from there.
//!
//! A row's caches are kept at the boundaries of its prompt while it prefills, and at its end, whatever ended it
//! but an error. The key is always the tokens that were fed, so a token that was sampled last and not yet fed is
//! no part of it. A row of a batch is copied out for that, unless its prompt is so short that the copy costs more
//! than reading it again.
//!
//! Rows and prompt cache share one ceiling, the KV budget: what live rows take, the cache gives up.

use std::time::Duration;

use super::archive::{Archive, Restore};
use super::row::{Purpose, RowSpec};
use super::rows::{End, Row, Stage};
use super::{Executor, Scheduler};
use crate::limits;
use crate::mlx::thread::Activity;
use crate::prompt_cache::disk::{Manifest, Reader};
use crate::prompt_cache::{DiskCopy, Evicted, Origin, Snapshot, Taken};

impl<E: Executor> Scheduler<E> {
    /// The longest kept prefix of a row's prompt. A failure costs time, never the request. The vector of a text
    /// is of all its tokens, read anew.
    pub(super) fn prefix_of(&mut self, spec: &RowSpec) -> Taken<E::Snapshot> {
        let taken = match spec.purpose {
            Purpose::Answer => self.prompts.take(&spec.prompt, self.clock.now()),
            Purpose::Vector { .. } => Ok(Taken::default()),
        };
        taken.unwrap_or_else(|error| {
            tracing::error!(%error, "a kept prompt could not be taken");
            Taken::default()
        })
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
    pub(super) fn keep_prompt(&mut self, row: &Row<E::Solo>) {
        if let Stage::Prefilling { solo, .. } = &row.stage
            && row.prefilled_tokens() > 0
            && row.spec.purpose == Purpose::Answer
        {
            self.keep_solo(row, solo, Origin::Boundary);
        }
    }

    /// Keeps what a row holds that has not joined.
    pub(super) fn keep_solo(&mut self, row: &Row<E::Solo>, solo: &E::Solo, origin: Origin) {
        if self.prompts.is_on() {
            self.keep(row, self.executor.keep(solo), origin);
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
    fn keep(&mut self, row: &Row<E::Solo>, snapshot: Option<E::Snapshot>, origin: Origin) {
        let Some(snapshot) = snapshot else { return };
        let tokens = row.tokens(snapshot.tokens());
        let evicted = self.prompts.put(tokens, snapshot, origin, self.clock.now());
        self.spill(evicted);
    }

    /// What the disk has of a row's prompt, if that spares much more than the `cached_tokens` that the memory has
    /// and fits the budget.
    pub(super) fn stored_prefix_of(
        &mut self,
        spec: &RowSpec,
        cached_tokens: usize,
    ) -> Option<Restore> {
        let occupancy = self.occupancy();
        let archive = self.archive.as_mut().filter(|_| spec.purpose == Purpose::Answer)?;
        let spared_tokens_min = self.config.kept_prompt_tokens_min;
        let fits = |bytes| occupancy.fits(bytes);
        archive.find(&spec.prompt, cached_tokens, spared_tokens_min, fits)
    }

    /// Keeps in memory what a row restored, which spared it `cached_tokens`.
    pub(super) fn keep_restored(
        &mut self,
        reader: &Reader,
        cached_tokens: usize,
        snapshot: E::Snapshot,
    ) {
        let Some(archive) = &mut self.archive else { return };
        archive.note_restored(cached_tokens);
        // Whoever deleted it meanwhile does not want it back.
        let Some(pinned) = archive.is_pinned(reader.id()) else { return };
        let Manifest { tokens, origin, .. } = reader.manifest();
        let evicted = self.prompts.put(tokens.clone(), snapshot, *origin, self.clock.now());
        if let Some(id) = self.prompts.find(tokens) {
            self.prompts.mark_saved(id, DiskCopy::File(reader.id()));
            if pinned {
                self.prompts.pin(id, true);
            }
        }
        self.spill(evicted);
    }

    pub(super) fn spill(&mut self, evicted: Vec<Evicted<E::Snapshot>>) {
        if let Some(archive) = &mut self.archive {
            archive.spill(evicted);
        }
    }

    /// Has a piece of what is kept written down, and says when there is more of that to do.
    pub(super) fn write_down(&mut self) -> Activity {
        let live = self.live_rows() > 0;
        let Some(archive) = &mut self.archive else { return Activity::Idle };
        let activity = archive.tick(&mut self.prompts, &self.clock, live);
        // Nobody ticks an idle engine again, so what is shown then must be the last.
        if activity == Activity::Idle && !live {
            let shown = self.board.read();
            let is_shown = shown.disk_cache.as_ref() == Some(&archive.snapshot());
            self.posted_at = self.posted_at.filter(|_| is_shown);
        }
        activity
    }

    /// Has all that is kept written down, as far as a shutdown waits for that.
    pub fn retire(&mut self) {
        self.retire_within(Duration::from_millis(limits::DISK_FLUSH_MS));
    }

    /// The same for a shutdown that waits for as long as `patience`.
    pub fn retire_within(&mut self, patience: Duration) {
        if let Some(archive) = &mut self.archive {
            archive.flush(&mut self.prompts, &self.clock, patience);
        }
    }

    /// Has the prompt cache give up what the live rows take of the KV budget.
    pub(super) fn make_room(&mut self) {
        let held_bytes = self.archive.as_ref().map_or(0, Archive::held_bytes);
        let Some(budget_bytes) =
            self.config.kv_budget_bytes.filter(|_| self.prompts.bytes() + held_bytes > 0)
        else {
            return;
        };
        let taken_bytes = self.live_kv_bytes() + self.others.held_bytes;
        let free_bytes = budget_bytes.saturating_sub(taken_bytes);
        if let Some(archive) = &mut self.archive {
            archive.shrink_to(free_bytes);
        }
        let held_bytes = self.archive.as_ref().map_or(0, Archive::held_bytes);
        // What is evicted here is lost unless it is on disk: there is no room to hold it any longer.
        self.prompts.trim_to(free_bytes - held_bytes);
    }

    /// KV bytes of prefilling and running rows.
    pub(super) fn live_kv_bytes(&self) -> u64 {
        let solo_bytes: u64 = self.prefilling.iter().map(|row| self.solo_kv_bytes(row)).sum();
        solo_bytes + self.executor.batch_kv_bytes()
    }
}
