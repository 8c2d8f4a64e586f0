//! The cache as a flat list: every answer is found by looking at all entries.

use std::cmp::Reverse;

use super::Fed;
use crate::clock::Time;
use crate::limits::{DIVERGENCE_TOKENS, LISTED_TOKENS_MAX};
use crate::prompt_cache::{
    DiskCopy, Divergence, EntryId, EntryView, Evicted, Origin, PromptId, Reason, Snapshot,
};
use crate::telemetry::PromptCacheSnapshot;

#[derive(Debug, Clone)]
pub(super) struct ModelEntry {
    pub(super) tokens: Vec<u32>,
    snapshot: Fed,
    /// Counts uses of all entries.
    use_number: u64,
    origin: Origin,
    pub(super) id: EntryId,
    kept_at: Time,
    used_at: Time,
    hits: u64,
    pinned: bool,
    on_disk: DiskCopy,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) cap_bytes: u64,
    pub(super) entries: Vec<ModelEntry>,
    pub(super) counts: PromptCacheSnapshot,
    uses: u64,
}

/// What the model says of a look-up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) cached_tokens: usize,
    pub(super) near: Option<Divergence>,
}

impl Model {
    pub(super) fn new(cap_bytes: u64) -> Self {
        Self { cap_bytes, entries: Vec::new(), counts: PromptCacheSnapshot::default(), uses: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.snapshot.bytes).sum()
    }

    /// What the cache must say of itself.
    pub(super) fn counts(&self) -> PromptCacheSnapshot {
        PromptCacheSnapshot {
            entries: self.entries.len(),
            bytes: self.bytes(),
            cap_bytes: self.cap_bytes,
            ..self.counts
        }
    }

    pub(super) fn find(&self, tokens: &[u32]) -> Option<EntryId> {
        self.entries.iter().find(|entry| entry.tokens == tokens).map(|entry| entry.id)
    }

    pub(super) fn take(&mut self, prompt: &[u32], now: Time) -> Answer {
        if self.cap_bytes == 0 {
            return Answer { cached_tokens: 0, near: None };
        }
        let served = self.best(prompt);
        let cached_tokens = served.map_or(0, |index| usable(&self.entries[index], prompt));
        let near = self.near(prompt, cached_tokens);
        match served {
            None => self.counts.misses += 1,
            Some(index) => {
                self.counts.hits += 1;
                self.counts.hit_tokens += cached_tokens as u64;
                self.uses += 1;
                let entry = &mut self.entries[index];
                (entry.use_number, entry.used_at) = (self.uses, now);
                entry.hits += 1;
            }
        }
        Answer { cached_tokens, near }
    }

    /// The index of the entry that serves.
    pub(super) fn best(&self, prompt: &[u32]) -> Option<usize> {
        let serves = |index: &usize| {
            let (entry, usable) = (&self.entries[*index], usable(&self.entries[*index], prompt));
            usable > 0 && (entry.tokens.len() == usable || entry.snapshot.can_trim())
        };
        (0..self.entries.len()).filter(serves).max_by_key(|index| {
            let (entry, usable) = (&self.entries[*index], usable(&self.entries[*index], prompt));
            (usable, entry.tokens.len() == usable, entry.use_number)
        })
    }

    fn near(&self, prompt: &[u32], cached: usize) -> Option<Divergence> {
        let index = self.entries.iter().map(|entry| shared(entry, prompt)).max()?;
        let equally_near = self.entries.iter().filter(|entry| shared(entry, prompt) == index);
        let nearest = equally_near
            .max_by_key(|entry| (entry.tokens.len() > index, entry.use_number))
            .filter(|entry| entry.tokens.len() != cached)?;
        if index == 0 || cached + 1 >= prompt.len() {
            return None;
        }
        let on = |tokens: &[u32]| {
            tokens.iter().copied().skip(index).take(DIVERGENCE_TOKENS).collect::<Vec<u32>>()
        };
        Some(Divergence {
            index,
            before: prompt[index.saturating_sub(DIVERGENCE_TOKENS)..index].to_vec(),
            prompt: on(prompt),
            kept: on(&nearest.tokens),
            reason: if cached == index { Reason::Differs } else { Reason::CannotTrim },
        })
    }

    /// Whether an entry of `tokens` would be stored.
    pub(super) fn has_room(&self, tokens: &[u32], bytes: u64) -> bool {
        let beside = self.entries.iter().filter(|entry| entry.pinned && entry.tokens != tokens);
        bytes + beside.map(|entry| entry.snapshot.bytes).sum::<u64>() <= self.cap_bytes
    }

    /// Stores what has room, under `id` unless its tokens have one.
    pub(super) fn put(
        &mut self,
        id: EntryId,
        tokens: &[u32],
        snapshot: Fed,
        origin: Origin,
        now: Time,
    ) -> Vec<Evicted<Fed>> {
        self.uses += 1;
        let old = self.entries.iter().find(|entry| entry.tokens == tokens).cloned();
        let can_trim = snapshot.can_trim();
        let new = ModelEntry {
            tokens: tokens.to_vec(),
            snapshot,
            use_number: self.uses,
            origin,
            id: old.as_ref().map_or(id, |old| old.id),
            kept_at: old.as_ref().map_or(now, |old| old.kept_at),
            used_at: now,
            hits: old.as_ref().map_or(0, |old| old.hits),
            pinned: old.as_ref().is_some_and(|old| old.pinned),
            on_disk: old.map_or(DiskCopy::Unsaved, |old| old.on_disk),
        };
        self.entries.retain(|entry| {
            let dropped = can_trim && !entry.pinned && tokens.starts_with(&entry.tokens);
            entry.tokens != tokens && !dropped
        });
        self.entries.push(new);
        self.trim_to(self.cap_bytes)
    }

    pub(super) fn trim_to(&mut self, bytes: u64) -> Vec<Evicted<Fed>> {
        let mut evicted = Vec::new();
        while self.bytes() > bytes {
            let entries = self.entries.iter();
            let first = entries.min_by_key(|entry| (entry.pinned, entry.use_number)).unwrap();
            evicted.push(self.remove(first.id).unwrap());
        }
        self.counts.evictions += evicted.len() as u64;
        evicted
    }

    pub(super) fn remove(&mut self, id: EntryId) -> Option<Evicted<Fed>> {
        let index = self.entries.iter().position(|entry| entry.id == id)?;
        let ModelEntry { tokens, snapshot, origin, pinned, on_disk, .. } =
            self.entries.remove(index);
        Some(Evicted { id, tokens, snapshot, origin, pinned, on_disk })
    }

    pub(super) fn pin(&mut self, id: EntryId, pinned: bool) -> bool {
        self.get(id).map(|entry| entry.pinned = pinned).is_some()
    }

    pub(super) fn mark_saved(&mut self, id: EntryId, file: DiskCopy) -> bool {
        self.get(id).map(|entry| entry.on_disk = file).is_some()
    }

    pub(super) fn retain(&mut self, stays: impl Fn(PromptId) -> bool) -> Vec<PromptId> {
        let views = self.views().into_iter().map(|view| view.prompt);
        let gone = views.filter(|prompt| !stays(*prompt)).collect();
        self.entries.retain(|entry| stays(PromptId::of(&entry.tokens)));
        gone
    }

    pub(super) fn views(&self) -> Vec<EntryView> {
        let mut entries: Vec<&ModelEntry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| Reverse(entry.use_number));
        entries.into_iter().map(ModelEntry::view).collect()
    }

    fn get(&mut self, id: EntryId) -> Option<&mut ModelEntry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }
}

impl ModelEntry {
    fn view(&self) -> EntryView {
        EntryView {
            id: self.id,
            prompt: PromptId::of(&self.tokens),
            tokens: self.tokens.len(),
            first_tokens: self.tokens.iter().copied().take(LISTED_TOKENS_MAX).collect(),
            last_tokens: self.tokens[self.tokens.len().saturating_sub(LISTED_TOKENS_MAX)..]
                .to_vec(),
            bytes: self.snapshot.bytes,
            kept_at: self.kept_at,
            used_at: self.used_at,
            hits: self.hits,
            pinned: self.pinned,
            origin: self.origin,
            on_disk: self.on_disk,
        }
    }
}

fn shared(entry: &ModelEntry, prompt: &[u32]) -> usize {
    entry.tokens.iter().zip(prompt).take_while(|(left, right)| left == right).count()
}

fn usable(entry: &ModelEntry, prompt: &[u32]) -> usize {
    shared(entry, prompt).min(prompt.len().saturating_sub(1))
}
