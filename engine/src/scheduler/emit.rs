//! Tokens out, ended rows away.
//!
//! Every row ends here, through [`Scheduler::finish`] or [`Scheduler::fail`], in the tick in which
//! its end was known; the executor drops it in the same tick.

use super::row::FinishReason;
use super::rows::{End, Row};
use super::{Executor, Said, Scheduler};
use crate::error::Error;
use crate::prompt_cache::Origin;

impl<E: Executor> Scheduler<E> {
    /// Hands each row of the batch its token (or none at all, when no step was in flight) and
    /// releases the rows that it ended.
    pub(super) fn emit(&mut self, said: Vec<Said>) {
        if said.is_empty() {
            return;
        }
        let now = self.note_progress();
        if let Some(heard_at) = self.heard_at.replace(now) {
            self.steps.note_gap(now.saturating_sub(heard_at));
        }
        self.totals.generated_tokens += said.len() as u64;
        let ends = self.running.iter_mut().zip(said);
        let ends = ends.map(|(row, said)| row.take_token(said, now)).collect();
        self.release(ends);
    }

    /// Hands the one row of the batch the tokens of a finished block (or none at all, while it is not),
    /// up to the one that ends the row: what comes behind that was never said.
    pub(super) fn emit_block(&mut self, block: Vec<Said>) {
        if block.is_empty() {
            return;
        }
        let now = self.note_progress();
        if let Some(heard_at) = self.heard_at.replace(now) {
            self.steps.note_gap(now.saturating_sub(heard_at));
        }
        let Some(row) = self.running.first_mut() else { return };
        let before = row.generated();
        let end = block.into_iter().find_map(|said| row.take_token(said, now));
        self.totals.generated_tokens += (row.generated() - before) as u64;
        self.release(vec![end]);
    }

    /// Ends the rows whose client left, wherever they are.
    pub(super) fn evict_departed(&mut self) {
        for row in self.waiting.take_where(Row::client_left) {
            self.finish(row, FinishReason::Cancelled);
        }
        while let Some(index) = self.prefilling.iter().position(Row::client_left) {
            let row = self.prefilling.remove(index).expect("the index was just found");
            self.keep_prompt(&row, Origin::Boundary);
            self.finish(row, FinishReason::Cancelled);
        }
        let cancelled = End::Finished(FinishReason::Cancelled);
        let departed = |row: &Row<E::Solo>| row.client_left().then(|| cancelled.clone());
        self.release(self.running.iter().map(departed).collect());
    }

    /// Ends a row that is in no list any more.
    pub(super) fn end(&mut self, row: Row<E::Solo>, end: End) {
        match end {
            End::Finished(reason) => self.finish(row, reason),
            End::Failed(error) => self.fail(row, error),
        }
    }

    /// Ends a row that is in no list any more, without an error.
    pub(super) fn finish(&mut self, row: Row<E::Solo>, reason: FinishReason) {
        let now = self.note_progress();
        self.totals.finished_rows += 1;
        self.totals.cancelled_rows += u64::from(reason == FinishReason::Cancelled);
        self.posted_at = None;
        row.finish(reason, now);
    }

    /// Ends a row that is in no list any more, with an error.
    pub(super) fn fail(&mut self, row: Row<E::Solo>, error: Error) {
        self.note_progress();
        self.totals.finished_rows += 1;
        self.totals.failed_rows += 1;
        self.posted_at = None;
        row.fail(error);
    }

    /// Ends the running rows that have a reason to, one entry per row, and keeps the others.
    fn release(&mut self, ends: Vec<Option<End>>) {
        if ends.iter().all(Option::is_none) {
            return;
        }
        let keep: Vec<usize> = (0..ends.len()).filter(|index| ends[*index].is_none()).collect();
        let count = ends.len();
        let rows = std::mem::take(&mut self.running).into_iter().zip(ends);
        for (index, (row, end)) in rows.enumerate() {
            match end {
                Some(end) => {
                    self.keep_running((index, count), &row, &end);
                    self.end(row, end);
                }
                None => self.running.push(row),
            }
        }
        self.in_flight &= !keep.is_empty();
        if let Err(error) = self.executor.filter(&keep) {
            self.fail_batch("filter", &error);
        }
    }
}
