//! Prompt work: a row starts, prefills slice by slice, samples token 0 and joins the batch.
//!
//! The last prompt token runs alone, as a forward pass of one token (unless that is switched off), and
//! token 0 is sampled from it on the row's own caches (mlx-lm's `insert_segments` and
//! `GenerationBatch`, 0.32.2). So what a row says first cannot depend on the batch that it joins.
//!
//! A row that writes in blocks has no token 0: its last prompt tokens are prefilled like the others, and it
//! joins without having said anything.
//!
//! A row for a vector ends with its prompt: its last tokens run together, what the model made of the very last
//! one is read and told, and the row is gone. It touches nothing of the batch, so no step in flight is read.
//!
//! A row of whose prompt the disk has much more than the memory restores that first, a piece in each tick.
//!
//! An error here has one row at fault and fails that one.

use std::time::Duration;

use super::archive::Restore;
use super::queue::RowNumber;
use super::row::Purpose;
use super::rows::{Row, Stage};
use super::{Executor, Scheduler, Yield};
use crate::clock::Time;
use crate::error::Result;
use crate::limits;
use crate::prompt_cache::{Origin, Taken};

impl<E: Executor> Scheduler<E> {
    /// Opens the head of the queue on the device.
    pub(super) fn start(&mut self, number: RowNumber) {
        let head = self.waiting.pop().filter(|row| row.number == number);
        let row = head.expect("only the head of the queue is planned to start");
        let started = self.clock.now();
        self.open(row, started);
    }

    /// Has a row go on from what is kept of its prompt, in memory or on disk.
    fn open(&mut self, mut row: Row<E::Solo>, started: Time) {
        let Taken { snapshot, cached_tokens, near } = self.prefix_of(&row.spec);
        let restore = self.stored_prefix_of(&row.spec, cached_tokens);
        let snapshot = snapshot.filter(|_| restore.is_none());
        match self.executor.open(&row.spec, snapshot) {
            Ok(solo) => {
                self.note_progress();
                match restore {
                    Some(restore) => row.begin_restore(solo, restore, started),
                    None => {
                        let boundaries = self.boundaries_to_keep(&row.spec, cached_tokens);
                        row.begin_prefill(solo, (cached_tokens, near), boundaries, started);
                        self.totals.cached_tokens += cached_tokens as u64;
                    }
                }
                self.posted_at = None;
                self.prefilling.push_back(row);
            }
            Err(error) => {
                let error = error.while_doing(format_args!("failed to start `{}`", row.spec.id));
                self.fail(row, error);
            }
        }
    }

    /// Reads more of what the disk has of the row's prompt. If that is not what was written, the row starts anew
    /// from what else there is.
    pub(super) fn restore(&mut self, number: RowNumber) {
        let Some(mut row) = self.take_prefilling(number) else {
            return;
        };
        let Stage::Restoring { solo, restore, started } = &mut row.stage else {
            unreachable!("only a row that restores is planned to go on with that")
        };
        let started = *started;
        match self.read_back(solo, restore) {
            Ok(None) => self.prefilling.push_back(row),
            Ok(Some(snapshot)) => self.go_on_restored(row, snapshot),
            Err(error) => {
                let id = &row.spec.id;
                tracing::warn!(%error, "what the disk had of `{id}` is of no use");
                // Whole or not, it would only be found again.
                let file = restore.reader.id();
                self.archive.iter_mut().for_each(|archive| archive.forget(file));
                self.open(row, started);
            }
        }
        self.note_progress();
    }

    /// Reads tensors for as long as a tick may; after the last one, the snapshot that they are, from which `solo`
    /// goes on.
    fn read_back(
        &mut self,
        solo: &mut E::Solo,
        restore: &mut Restore,
    ) -> Result<Option<E::Snapshot>> {
        let until = self.clock.now() + Duration::from_millis(limits::DISK_RESTORE_SLICE_MS);
        while self.clock.now() < until {
            match restore.reader.next_tensor()? {
                Some(tensor) => self.executor.restore(solo, tensor)?,
                None => {
                    let surplus_tokens = restore.surplus_tokens();
                    let state = &restore.reader.manifest().state;
                    return self.executor.restored(solo, state, surplus_tokens).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn go_on_restored(&mut self, mut row: Row<E::Solo>, snapshot: E::Snapshot) {
        let Stage::Restoring { solo, restore, started } =
            std::mem::replace(&mut row.stage, Stage::Waiting)
        else {
            unreachable!("only a row that restores is done with that")
        };
        let cached_tokens = restore.usable_tokens;
        let boundaries = self.boundaries_to_keep(&row.spec, cached_tokens);
        row.begin_prefill(solo, (cached_tokens, None), boundaries, started);
        self.totals.cached_tokens += cached_tokens as u64;
        self.keep_restored(&restore.reader, cached_tokens, snapshot);
        self.prefilling.push_back(row);
    }

    /// Runs the row's next `tokens` prompt tokens and sends it to the back of the line. A row that
    /// failed to start has no slice to run.
    pub(super) fn prefill(&mut self, number: RowNumber, tokens: usize) {
        let Some(mut row) = self.take_prefilling(number) else {
            return;
        };
        let (solo, slice) = row.next_slice(tokens);
        let began = self.clock.now();
        match self.executor.prefill(solo, slice) {
            Ok(()) => {
                row.advance(tokens);
                let now = self.note_progress();
                self.pacer.note_slice(tokens, now.saturating_sub(began));
                self.totals.prefill_chunks += 1;
                self.totals.prompt_tokens += tokens as u64;
                if row.is_at_boundary() {
                    self.keep_prompt(&row);
                }
                self.prefilling.push_back(row);
            }
            Err(error) => {
                let error = error.while_doing(format_args!("failed to prefill `{}`", row.spec.id));
                self.fail(row, error);
            }
        }
    }

    /// Runs the row's last `tokens` prompt tokens, samples and emits its token 0 if it has one; unless that ends it,
    /// the row joins the batch.
    pub(super) fn first_token(&mut self, number: RowNumber, tokens: usize) {
        let Some(mut row) = self.take_prefilling(number) else {
            return;
        };
        let (solo, slice) = row.next_slice(tokens);
        let began = self.clock.now();
        let said = match self.executor.yields() {
            Yield::TokenPerStep => self.executor.first_token(solo, slice).map(Some),
            Yield::Blocks => self.executor.prefill(solo, slice).map(|()| None),
        };
        match said {
            Ok(said) => {
                let now = self.note_progress();
                self.note_first_token(tokens, now.saturating_sub(began));
                self.totals.generated_tokens += u64::from(said.is_some());
                let solo = row.begin_decoding(now);
                row.tell_prefilled(now);
                match said.and_then(|said| row.take_token(said, now)) {
                    Some(end) => {
                        self.keep_solo(&row, &solo, Origin::Finished);
                        self.end(row, end);
                    }
                    None => self.join(row, solo),
                }
            }
            Err(error) => {
                let error = error
                    .while_doing(format_args!("failed to sample token 0 of `{}`", row.spec.id));
                self.fail(row, error);
            }
        }
    }

    /// Runs the last `tokens` of a row for a vector, tells that and ends the row.
    pub(super) fn vector(&mut self, number: RowNumber, tokens: usize) {
        let Some(mut row) = self.take_prefilling(number) else {
            return;
        };
        let Purpose::Vector { dimensions } = row.spec.purpose else {
            unreachable!("only a row for a vector is planned to end with one")
        };
        let (solo, slice) = row.next_slice(tokens);
        let began = self.clock.now();
        match self.executor.vector(solo, slice, dimensions) {
            Ok(vector) => {
                let now = self.note_progress();
                self.note_first_token(tokens, now.saturating_sub(began));
                row.tell_prefilled(now);
                let end = row.take_vector(vector);
                self.end(row, end);
            }
            Err(error) => {
                let error = error
                    .while_doing(format_args!("failed to make the vector of `{}`", row.spec.id));
                self.fail(row, error);
            }
        }
    }

    fn note_first_token(&mut self, tokens: usize, took: Duration) {
        match tokens {
            1 => self.pacer.note_call(took),
            _ => self.pacer.note_slice(tokens, took),
        }
        self.totals.prompt_tokens += tokens as u64;
    }

    /// Adds a row to the batch, which must have nothing in flight for that.
    fn join(&mut self, row: Row<E::Solo>, solo: E::Solo) {
        self.settle();
        self.posted_at = None;
        let beside_others = !self.running.is_empty();
        if !beside_others {
            self.heard_at = Some(self.clock.now());
        }
        self.running.push(row);
        match self.executor.join(solo) {
            Ok(()) => self.totals.joins += u64::from(beside_others),
            Err(error) => self.fail_batch("join", &error),
        }
    }

    fn take_prefilling(&mut self, number: RowNumber) -> Option<Row<E::Solo>> {
        let index = self.prefilling.iter().position(|row| row.number == number)?;
        self.prefilling.remove(index)
    }
}

impl<S> Row<S> {
    /// The device side of a prefilling row and its next `tokens` prompt tokens.
    fn next_slice(&mut self, tokens: usize) -> (&mut S, &[u32]) {
        match &mut self.stage {
            Stage::Prefilling { solo, done, .. } => {
                (solo, &self.spec.prompt[*done..*done + tokens])
            }
            Stage::Waiting | Stage::Restoring { .. } | Stage::Decoding { .. } => {
                unreachable!("only prefilling rows are in the prefill line")
            }
        }
    }

    fn advance(&mut self, tokens: usize) {
        if let Stage::Prefilling { done, .. } = &mut self.stage {
            *done += tokens;
        }
    }

    /// Turns a prefilling row into a decoding one and hands out its device side.
    fn begin_decoding(&mut self, first_token: Time) -> S {
        match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Prefilling { solo, started, .. } => {
                self.stage = Stage::Decoding { started, first_token };
                solo
            }
            Stage::Waiting | Stage::Restoring { .. } | Stage::Decoding { .. } => {
                unreachable!("only prefilling rows are in the prefill line")
            }
        }
    }
}
