//! Several schedulers under one KV budget.
//!
//! Each is told before a tick what the others hold, and says after it what it holds itself. Rows start while what
//! the rows of all may come to fits the budget. Kept prompts are the first to give way, and whoever shares the
//! memory out decides whose.

use super::archive::Archive;
use super::plan::Hold;
use super::rows::Row;
use super::{Executor, Scheduler};
use crate::clock::Time;

/// What others hold of the budget that a scheduler shares with them; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Others {
    /// What their live rows may come to.
    pub projected_bytes: u64,
    /// What their live rows hold, and what they have to hold until it is on disk.
    pub held_bytes: u64,
    /// What is kept free for a row of theirs that has waited longer than any here.
    pub reserved_bytes: u64,
}

/// What a scheduler holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holdings {
    /// What its live rows may come to.
    pub projected_bytes: u64,
    /// What they hold, and what it has to hold until it is on disk.
    pub held_bytes: u64,
    /// What its kept prompts hold.
    pub kept_bytes: u64,
    /// What the largest of its rows that wait may come to alone.
    pub waiting_bytes: u64,
}

/// A first row that waits for nothing but bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Starved {
    /// When it arrived.
    pub arrived: Time,
    /// What it adds to the projection.
    pub needs_bytes: u64,
}

impl<E: Executor> Scheduler<E> {
    /// Sets what all who share the memory may hold together, and what the others hold of it now.
    pub fn share_memory(
        &mut self,
        kv_budget_bytes: Option<u64>,
        prompt_cache_bytes: u64,
        others: Others,
    ) {
        if self.config.kv_budget_bytes != kv_budget_bytes {
            self.config.kv_budget_bytes = kv_budget_bytes;
            self.posted_at = None;
        }
        self.others = others;
        // A cache that is off, because nothing can be kept, stays off.
        if self.prompts.is_on() && self.prompts.cap_bytes() != prompt_cache_bytes.max(1) {
            let evicted = self.prompts.set_cap_bytes(prompt_cache_bytes.max(1));
            self.spill(evicted);
        }
    }

    /// What it holds now.
    pub fn holdings(&self) -> Holdings {
        let archived_bytes = self.archive.as_ref().map_or(0, Archive::held_bytes);
        let waiting = self.waiting.in_turn().map(Row::kv_bytes_max);
        Holdings {
            projected_bytes: self.occupancy().projection.bytes(),
            held_bytes: self.live_kv_bytes() + archived_bytes,
            kept_bytes: self.prompts.bytes(),
            waiting_bytes: waiting.max().unwrap_or(0),
        }
    }

    /// Its first row, if only the budget keeps that from starting.
    pub fn starved(&self) -> Option<Starved> {
        let head = self.waiting.in_turn().next()?;
        let mut occupancy = self.occupancy();
        occupancy.reserved_bytes = 0;
        match occupancy.hold(&head.candidate())? {
            Hold::KvBudget { needs_bytes, .. } => {
                Some(Starved { arrived: head.arrived(), needs_bytes })
            }
            Hold::SerialLive
            | Hold::Draining { .. }
            | Hold::BatchFull { .. }
            | Hold::PrefillFull { .. } => None,
        }
    }

    /// Gives up kept prompts, those used least recently first, until they hold `bytes` at most.
    pub fn trim_prompts(&mut self, bytes: u64) {
        if self.prompts.bytes() > bytes {
            self.prompts.trim_to(bytes);
            self.posted_at = None;
        }
    }

    /// The KV budget, less what the rows of others may come to.
    pub(super) fn own_budget_bytes(&self) -> Option<u64> {
        let budget_bytes = self.config.kv_budget_bytes?;
        Some(budget_bytes.saturating_sub(self.others.projected_bytes))
    }
}
