//! The disk tier beside the scheduler: what is written down, when, and what comes back.
//!
//! An entry of the prompt cache is written down once nobody has used it for a while, the longer the larger it is, so
//! that the states between two turns of a busy conversation never reach the disk. Its tensors are read from the device one by one between
//! two steps; while rows are live, a hundred times as long passes between two of them as reading one took, so
//! they pay a hundredth at most. What is evicted before its time, or larger than the whole cache, is *spilled*:
//! it is written down from where it was, and its bytes count until it is. Only so many wait for that; others are
//! lost, which costs somebody the time of reading a prompt again.
//!
//! Who asks for a *flush* has everything that is unsaved then written down without further waiting, at the pace
//! that live rows allow, and hears when that is done or has taken too long.
//!
//! What comes back does so in the stage `Restoring` of a row, a few milliseconds of each tick. A file that is not
//! what was written is forgotten, and the row looks elsewhere.

use std::collections::VecDeque;
use std::time::Duration;

use super::kept::{Flushed, Reply};
use crate::clock::{Clock, Time};
use crate::error::Result;
use crate::limits;
use crate::mlx::thread::Activity;
use crate::prompt_cache::disk::{DiskId, DiskStats, DiskTier, Found, Manifest, Reader, Saving};
use crate::prompt_cache::{
    DiskCopy, EntryId, EntryView, Evicted, Origin, PromptCache, PromptId, Snapshot, UnreadTensor,
    Unsaved, Written,
};
use crate::telemetry::DiskCacheSnapshot;

/// What a row takes from the disk.
#[derive(Debug)]
pub(super) struct Restore {
    pub(super) reader: Reader,
    /// Tokens of its prompt that this spares.
    pub(super) usable_tokens: usize,
}

impl Restore {
    /// Bytes of the whole entry on the device.
    pub(super) fn bytes(&self) -> u64 {
        self.reader.manifest().tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Tokens of the entry that the row cannot use.
    pub(super) fn surplus_tokens(&self) -> usize {
        self.reader.manifest().tokens.len() - self.usable_tokens
    }
}

/// The disk tier and what is on its way there.
#[derive(Debug)]
pub(super) struct Archive<S> {
    disk: DiskTier,
    shipment: Option<Shipment>,
    /// Evicted entries that wait to be written down.
    spilled: VecDeque<Evicted<S>>,
    /// Who waits for what was unsaved.
    flushes: Vec<Flush>,
    /// While rows are live, no tensor is read from the device before.
    reads_from: Time,
    /// Nothing in the prompt cache is due before.
    due_from: Time,
    restored: u64,
    restored_tokens: u64,
    /// As of the last tick.
    stats: DiskStats,
}

/// Somebody who waits until all that was unsaved at `asked_at` is on disk.
#[derive(Debug)]
struct Flush {
    asked_at: Time,
    /// What the tier had saved by then.
    saved_before: u64,
    reply: Reply<Result<Flushed>>,
}

/// An entry whose tensors are being handed over.
#[derive(Debug)]
struct Shipment {
    saving: Saving,
    tensors: std::vec::IntoIter<UnreadTensor>,
    /// Whether the prompt cache no longer has it.
    spilled: bool,
}

impl Shipment {
    /// Bytes of what was not handed over yet and is held by nobody else.
    fn own_bytes(&self) -> u64 {
        let left = self.tensors.as_slice().iter().map(|tensor| tensor.spec.bytes);
        if self.spilled { left.sum() } else { 0 }
    }
}

impl<S: Snapshot> Archive<S> {
    pub(super) fn new(mut disk: DiskTier) -> Self {
        Self {
            stats: disk.stats(),
            disk,
            shipment: None,
            spilled: VecDeque::new(),
            flushes: Vec::new(),
            reads_from: Time::ZERO,
            due_from: Time::ZERO,
            restored: 0,
            restored_tokens: 0,
        }
    }

    /// What the disk has of `prompt`, if that spares `spared_tokens_min` more than the `cached_tokens` that the
    /// memory has, and `fits` there.
    pub(super) fn find(
        &mut self,
        prompt: &[u32],
        cached_tokens: usize,
        spared_tokens_min: usize,
        fits: impl Fn(u64) -> bool,
    ) -> Option<Restore> {
        let longer_than = (cached_tokens + spared_tokens_min).saturating_sub(1);
        let Found { id, usable_tokens, entry_tokens } = self.disk.find(prompt, longer_than)?;
        if (usable_tokens - cached_tokens) * limits::DISK_TOKENS_PER_SPARED_TOKEN < entry_tokens {
            return None;
        }
        // One that fails is forgotten, and was logged.
        let reader = self.disk.restore(id).ok()?;
        let restore = Restore { reader, usable_tokens };
        fits(restore.bytes()).then_some(restore)
    }

    /// Removes an entry that no row can go on from.
    pub(super) fn forget(&mut self, id: DiskId) {
        self.disk.remove(id);
    }

    pub(super) fn note_restored(&mut self, tokens: usize) {
        self.restored += 1;
        self.restored_tokens += tokens as u64;
    }

    /// Takes what the prompt cache gave up.
    pub(super) fn spill(&mut self, evicted: Vec<Evicted<S>>) {
        for entry in evicted {
            match (entry.on_disk, &mut self.shipment) {
                (DiskCopy::File(file), Some(shipment)) if shipment.saving.id() == file => {
                    shipment.spilled = true;
                }
                (DiskCopy::Unsaved, _) if self.spilled.len() < limits::DISK_SPILLED_MAX => {
                    self.spilled.push_back(entry);
                }
                (DiskCopy::Unsaved | DiskCopy::Refused | DiskCopy::File(_), _) => {}
            }
        }
    }

    /// Bytes of the device that are held only until they are written down.
    pub(super) fn held_bytes(&self) -> u64 {
        let waiting: u64 = self.spilled.iter().map(|entry| entry.snapshot.bytes()).sum();
        waiting + self.shipment.as_ref().map_or(0, Shipment::own_bytes)
    }

    /// Gives up what waits, the oldest first, until it holds `bytes` at most.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        while self.held_bytes() > bytes && self.spilled.pop_front().is_some() {}
        if self.held_bytes() > bytes {
            self.shipment = None;
        }
    }

    /// Does a piece of what is to be done, and says when there is more. `live` is whether rows wait meanwhile.
    pub(super) fn tick(
        &mut self,
        prompts: &mut PromptCache<S>,
        clock: &Clock,
        live: bool,
    ) -> Activity {
        let activity = self.advance(prompts, clock, live);
        self.answer_flushes(prompts, clock.now());
        // Last, because whoever rests from now on shows these figures for long.
        self.stats = self.disk.stats();
        activity
    }

    fn advance(&mut self, prompts: &mut PromptCache<S>, clock: &Clock, live: bool) -> Activity {
        let now = clock.now();
        if live && now < self.reads_from {
            return Activity::Resting(self.reads_from - now);
        }
        // One entry is written at a time, so that no other is refused for want of room in the queue.
        if self.shipment.is_none() && self.disk.is_busy() {
            return Activity::Resting(PAUSE);
        }
        let may_begin = !self.spilled.is_empty() || now >= self.due_from;
        let begun = may_begin && self.shipment.is_none() && self.begin_next(prompts, now);
        match &self.shipment {
            // It was refused, and another one may not be.
            None if begun => Activity::Busy,
            None => self.rest(prompts, now),
            Some(shipment) if !shipment.saving.ready() => Activity::Resting(PAUSE),
            Some(_) => {
                self.hand_over_next(clock);
                Activity::Busy
            }
        }
    }

    /// Has all that the disk does not have now written down, what it refused before too, and answers `reply` when
    /// that is done.
    pub(super) fn ask_flush(
        &mut self,
        prompts: &mut PromptCache<S>,
        now: Time,
        reply: Reply<Result<Flushed>>,
    ) {
        for id in self.unstored(prompts) {
            prompts.mark_saved(id, DiskCopy::Unsaved);
        }
        self.due_from = now;
        let saved_before = self.disk.stats().saved;
        self.flushes.push(Flush { asked_at: now, saved_before, reply });
    }

    /// Answers those who waited long enough, or for what is done.
    fn answer_flushes(&mut self, prompts: &PromptCache<S>, now: Time) {
        if self.flushes.is_empty() {
            return;
        }
        let at_rest = self.shipment.is_none() && self.spilled.is_empty() && !self.disk.is_busy();
        for index in (0..self.flushes.len()).rev() {
            let Flush { asked_at, saved_before, .. } = self.flushes[index];
            let complete = at_rest && !prompts.unsaved().any(|entry| entry.used_at <= asked_at);
            if complete || now >= asked_at + FLUSH_PATIENCE {
                self.stats = self.disk.stats();
                let flushed = Flushed {
                    complete,
                    saved: self.stats.saved - saved_before,
                    unsaved: self.unstored(prompts).len(),
                    disk: self.snapshot(),
                };
                // A caller who left does not want the answer.
                let _ = self.flushes.swap_remove(index).reply.send(Ok(flushed));
            }
        }
    }

    /// The entries in memory that the disk neither has nor is getting.
    fn unstored(&mut self, prompts: &PromptCache<S>) -> Vec<EntryId> {
        let mut is_stored = |view: &EntryView| match view.on_disk {
            DiskCopy::File(file) => self.disk.contains(file),
            DiskCopy::Unsaved | DiskCopy::Refused => false,
        };
        let unstored = prompts.entries().filter(|view| !is_stored(view));
        unstored.map(|view| view.id).collect()
    }

    /// Pins or unpins what the disk has of `prompt`, or will have; says whether that is anything.
    pub(super) fn pin(&mut self, prompt: PromptId, pinned: bool) -> bool {
        let files = self.disk.named(prompt);
        for file in &files {
            self.disk.pin(*file, pinned);
        }
        let spilled = self.spilled.iter_mut();
        let spilled = spilled.filter(|entry| PromptId::of(&entry.tokens) == prompt);
        spilled.map(|entry| entry.pinned = pinned).count() + files.len() > 0
    }

    /// The pinned ones of what the disk has or will have.
    pub(super) fn pinned(&mut self) -> Vec<PromptId> {
        let spilled = self.spilled.iter().filter(|entry| entry.pinned);
        let mut pinned: Vec<PromptId> = spilled.map(|entry| PromptId::of(&entry.tokens)).collect();
        pinned.extend(self.disk.pinned());
        pinned
    }

    /// Removes all entries but those that `stays` names, those on their way too, and says which.
    pub(super) fn retain(&mut self, stays: impl Fn(PromptId) -> bool) -> Vec<PromptId> {
        let mut gone = self.disk.retain(&stays);
        let disk = &mut self.disk;
        self.shipment.take_if(|shipment| !disk.contains(shipment.saving.id()));
        self.spilled.retain(|entry| {
            let prompt = PromptId::of(&entry.tokens);
            gone.extend((!stays(prompt)).then_some(prompt));
            stays(prompt)
        });
        gone
    }

    /// Writes down all that is not yet, waiting for the disk for as long as `patience`.
    pub(super) fn flush(
        &mut self,
        prompts: &mut PromptCache<S>,
        clock: &Clock,
        patience: Duration,
    ) {
        let deadline = clock.now() + patience;
        while clock.now() < deadline {
            let ready = self.shipment.as_ref().is_none_or(|shipment| shipment.saving.ready());
            if !ready || (self.shipment.is_none() && self.disk.is_busy()) {
                self.disk.flush(deadline.saturating_sub(clock.now()));
            } else if self.shipment.is_some() {
                self.hand_over_next(clock);
            } else if !self.begin(prompts, |_| true) {
                break;
            }
        }
        if !self.disk.flush(deadline.saturating_sub(clock.now())) {
            tracing::warn!("not all prompts were written down in {} s", patience.as_secs());
        }
    }

    /// Whether an entry is pinned, if there is one.
    pub(super) fn is_pinned(&mut self, id: DiskId) -> Option<bool> {
        self.disk.entry(id).map(|entry| entry.pinned)
    }

    /// The tier itself, for who lists.
    pub(super) fn disk(&mut self) -> &mut DiskTier {
        &mut self.disk
    }

    /// The figures as they are now.
    pub(super) fn stats(&mut self) -> DiskCacheSnapshot {
        self.stats = self.disk.stats();
        self.snapshot()
    }

    /// The figures as of the last tick.
    pub(super) fn snapshot(&self) -> DiskCacheSnapshot {
        let stats = &self.stats;
        DiskCacheSnapshot {
            entries: stats.entries,
            bytes: stats.bytes,
            max_bytes: stats.max_bytes,
            queued_bytes: stats.queued_bytes,
            written_today_bytes: stats.written_today_bytes,
            day_limit_bytes: stats.day_limit_bytes,
            written_bytes: stats.written_bytes,
            saved: stats.saved,
            restored: self.restored,
            restored_tokens: self.restored_tokens,
            evicted: stats.evicted,
            dropped: stats.dropped,
            failed: stats.failed,
            read_only: stats.read_only.clone(),
        }
    }

    fn begin_next(&mut self, prompts: &mut PromptCache<S>, now: Time) -> bool {
        let flushed_until = self.flushes.iter().map(|flush| flush.asked_at).max();
        let is_flushed = |entry: &Unsaved| flushed_until.is_some_and(|at| entry.used_at <= at);
        self.begin(prompts, |entry| due_at(entry) <= now || is_flushed(entry))
    }

    /// Begins with the next entry that may be saved, a spilled one first; says whether there was one, be it that
    /// the disk refused it. Nothing is being written.
    fn begin(&mut self, prompts: &mut PromptCache<S>, is_due: impl Fn(&Unsaved) -> bool) -> bool {
        if let Some(Evicted { tokens, snapshot, origin, pinned, .. }) = self.spilled.pop_front() {
            let prompt = PromptId::of(&tokens);
            let begun = self.admit(tokens, &snapshot, origin);
            self.shipment =
                log_failure(begun).flatten().map(|shipment| Shipment { spilled: true, ..shipment });
            self.pin_copies(prompt, pinned);
            return true;
        }
        let next = prompts.unsaved().find(is_due).and_then(|entry| prompts.entry(entry.id));
        let Some(EntryView { id, prompt, origin, pinned, .. }) = next else { return false };
        let (tokens, snapshot) = (prompts.tokens(id), prompts.share(id));
        let begun =
            tokens.zip(snapshot).map(|(tokens, snapshot)| self.admit(tokens, &snapshot, origin));
        self.shipment = begun.and_then(log_failure).flatten();
        // One that was refused is not offered again: it would be refused at every tick.
        let copy = self.pin_copies(prompt, pinned);
        prompts.mark_saved(id, copy.map_or(DiskCopy::Refused, DiskCopy::File));
        true
    }

    fn admit(
        &mut self,
        tokens: Vec<u32>,
        snapshot: &S,
        origin: Origin,
    ) -> Result<Option<Shipment>> {
        let Written { state, tensors } = snapshot.write_down()?;
        let specs = tensors.iter().map(|tensor| tensor.spec.clone()).collect();
        let can_trim = snapshot.can_trim();
        let manifest = Manifest { tokens, state, can_trim, origin, tensors: specs };
        let saving = self.disk.save(manifest)?;
        let shipment = |saving| Shipment { saving, tensors: tensors.into_iter(), spilled: false };
        Ok(saving.map(shipment))
    }

    /// Pins what the disk has of `prompt`, or is getting, if the memory had it `pinned`. Says what that is.
    fn pin_copies(&mut self, prompt: PromptId, pinned: bool) -> Option<DiskId> {
        let files = self.disk.named(prompt);
        for file in files.iter().filter(|_| pinned) {
            self.disk.pin(*file, true);
        }
        files.first().copied()
    }

    /// Hands the next tensor over, or ends the entry after the last one.
    fn hand_over_next(&mut self, clock: &Clock) {
        let Some(mut shipment) = self.shipment.take() else { return };
        let began = clock.now();
        let done = match shipment.tensors.next() {
            None => shipment.saving.finish().map(|()| None),
            Some(tensor) => (tensor.read)()
                .and_then(|tensor| shipment.saving.tensor(tensor))
                .map(|()| Some(shipment)),
        };
        self.shipment = log_failure(done).flatten();
        let now = clock.now();
        self.reads_from = now + (now - began) * limits::DISK_READ_SHARE;
    }

    /// Nothing can be begun now; says when to look again.
    fn rest(&mut self, prompts: &PromptCache<S>, now: Time) -> Activity {
        // What is kept from now on is due later than that.
        let next = prompts.unsaved().map(|entry| due_at(&entry)).min();
        self.due_from = next.unwrap_or(now + SETTLE).min(now + SETTLE);
        match next {
            Some(due_at) => Activity::Resting(due_at.saturating_sub(now).max(PAUSE)),
            None => Activity::Idle,
        }
    }
}

/// When an entry may be written down, unless it is used before.
fn due_at(entry: &Unsaved) -> Time {
    let gibibytes = entry.bytes as f64 / f64::from(1 << 30);
    entry.used_at + SETTLE + SETTLE_GIBIBYTE.mul_f64(gibibytes)
}

const SETTLE: Duration = Duration::from_millis(limits::DISK_SETTLE_MS);
const SETTLE_GIBIBYTE: Duration = Duration::from_millis(limits::DISK_SETTLE_GIBIBYTE_MS);
const FLUSH_PATIENCE: Duration = Duration::from_millis(limits::CACHE_FLUSH_MS);
const PAUSE: Duration = Duration::from_millis(limits::DISK_PAUSE_MS);

/// What was not written down is only read again one day.
fn log_failure<T>(result: Result<T>) -> Option<T> {
    result.inspect_err(|error| tracing::error!(%error, "a prompt was not written down")).ok()
}
