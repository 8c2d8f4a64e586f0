//! Prompts that were computed before, kept so that the next one that begins alike need not be.
//!
//! - An **entry** is tokens and a snapshot. A [`Snapshot`] is the solo caches of a row after exactly those
//!   tokens; what it is made of is not known here.
//! - The **usable prefix** of an entry is what it has in common with a prompt, without the prompt's last
//!   token: that one is always run, for its logits. An entry that has more tokens than its usable prefix
//!   serves only if its snapshot can be trimmed.
//! - A **boundary** is a token index at which the chat template ends the system part or the last user
//!   turn. An entry that ends there serves without a trim, so it serves rows whose caches have none.
//! - A **share** is a second owner of a snapshot's buffers, written by copy.
//! - An entry is **pinned** so that all others are evicted before it.
//!
//! Invariants: snapshots never hold more than the cap together, pinned ones included. What is stored never
//! changes: [`PromptCache::take`] lends a share and trims that. One sequence of tokens has one entry. The
//! longest usable prefix serves, among equal ones that which needs no trim, then the most recently used.
//! Who serves is used, and who was used the longest ago is evicted first.
//!
//! The cache knows no arrays, reads no clock and does no file work: what it evicts it hands back, for the
//! caller to keep elsewhere. One cache is for one identity: the same weights, settings, tokenizer, adapters
//! and KV scheme; nothing here tells entries of two apart.

pub mod disk;
mod divergence;
mod entries;
mod lookups;
mod prompt_id;
mod recency;
mod snapshot;
mod trie;

#[cfg(test)]
mod tests;

use self::entries::{Entries, Entry, Record};
use self::recency::Recency;
use self::trie::{Mark, Match, Serving, Trie};
use crate::clock::Time;
use crate::error::Result;
use crate::limits::LISTED_TOKENS_MAX;
use crate::telemetry::PromptCacheSnapshot;

pub use self::divergence::{Divergence, Reason};
pub use self::entries::{DiskCopy, EntryId, EntryView, Evicted, Origin, Unsaved};
pub use self::lookups::{LookupLoad, LookupTimes, measure_lookups};
pub use self::prompt_id::PromptId;
pub use self::snapshot::{Snapshot, Unkept, UnreadTensor, Written};

/// What a look-up is served.
#[derive(Debug)]
pub struct Taken<S> {
    /// A share of the entry's snapshot, trimmed to `cached_tokens`.
    pub snapshot: Option<S>,
    /// How many first tokens of the prompt it holds; 0 without a snapshot.
    pub cached_tokens: usize,
    /// Why it is not all that can be had, if an entry has first tokens in common with the prompt and goes on
    /// otherwise.
    pub near: Option<Divergence>,
}

impl<S> Default for Taken<S> {
    fn default() -> Self {
        Self { snapshot: None, cached_tokens: 0, near: None }
    }
}

/// Entries in memory, up to a cap in bytes: see the module's words.
#[derive(Debug)]
pub struct PromptCache<S> {
    cap_bytes: u64,
    trie: Trie,
    entries: Entries<S>,
    recency: Recency,
    counts: PromptCacheSnapshot,
    /// Entries that were named.
    names: u64,
}

impl<S: Snapshot> PromptCache<S> {
    /// An empty cache whose snapshots may hold `cap_bytes` together; with 0 it stores nothing.
    pub fn new(cap_bytes: u64) -> Self {
        Self {
            cap_bytes,
            trie: Trie::new(),
            entries: Entries::new(),
            recency: Recency::default(),
            counts: PromptCacheSnapshot::default(),
            names: 0,
        }
    }

    /// Whether it stores anything at all.
    pub fn is_on(&self) -> bool {
        self.cap_bytes > 0
    }

    /// Lends the longest usable prefix of `prompt`, which counts as a use of its entry.
    ///
    /// # Errors
    /// The snapshot could not be trimmed; the cache is then as before.
    pub fn take(&mut self, prompt: &[u32], now: Time) -> Result<Taken<S>> {
        if !self.is_on() {
            return Ok(Taken::default());
        }
        let found = self.trie.look_up(prompt);
        let near = self.divergence(prompt, &found);
        let snapshot = found.serving.map(|serving| self.lend(serving, now)).transpose()?;
        let cached_tokens = found.usable();
        self.count_lookup(cached_tokens);
        Ok(Taken { snapshot, cached_tokens, near })
    }

    /// How many tokens [`PromptCache::take`] would serve; no use, and not counted.
    pub fn usable_tokens(&self, prompt: &[u32]) -> usize {
        self.trie.look_up(prompt).usable()
    }

    /// Stores the solo caches of a row after `tokens`, as the most recently used entry.
    ///
    /// An entry of the same tokens is replaced: it keeps its id, its hits and its pin. If the snapshot can
    /// be trimmed it serves whatever its strict prefixes do, so those that are not pinned are dropped.
    /// Others are evicted until the cap holds, and come back. What finds no room beside the pinned entries
    /// changes nothing and comes back itself; an entry without tokens is of no use and is dropped.
    pub fn put(
        &mut self,
        tokens: Vec<u32>,
        snapshot: S,
        origin: Origin,
        now: Time,
    ) -> Vec<Evicted<S>> {
        debug_assert_eq!(tokens.len(), snapshot.tokens(), "a snapshot of other tokens");
        if tokens.is_empty() {
            return Vec::new();
        }
        let replaced = self.trie.find(&tokens);
        if !self.has_room(snapshot.bytes(), replaced) {
            self.counts.refusals += 1;
            return vec![Evicted {
                id: self.name(),
                tokens,
                snapshot,
                origin,
                pinned: false,
                on_disk: DiskCopy::Unsaved,
            }];
        }
        let record = replaced.and_then(|id| self.detach(id)).map(|entry| entry.record);
        let record = record.unwrap_or_else(|| Record::new(self.name(), &tokens, now));
        let can_trim = snapshot.can_trim();
        self.attach(&tokens, snapshot, origin, Record { used_at: now, ..record });
        if can_trim {
            // Afterwards, because what is not the newest leaves the trie at less cost.
            self.drop_prefixes(&tokens);
        }
        self.trim_to(self.cap_bytes)
    }

    /// Evicts entries until the snapshots hold `bytes` at most.
    pub fn trim_to(&mut self, bytes: u64) -> Vec<Evicted<S>> {
        let mut evicted = Vec::new();
        while self.bytes() > bytes
            && let Some(first) = self.recency.first()
        {
            evicted.extend(self.remove(first));
        }
        self.counts.evictions += evicted.len() as u64;
        evicted
    }

    /// Sets what the snapshots may hold together, from now on.
    pub fn set_cap_bytes(&mut self, bytes: u64) -> Vec<Evicted<S>> {
        self.cap_bytes = bytes;
        self.trim_to(bytes)
    }

    /// What the snapshots may hold together.
    pub fn cap_bytes(&self) -> u64 {
        self.cap_bytes
    }

    /// What the snapshots hold together.
    pub fn bytes(&self) -> u64 {
        self.entries.bytes()
    }

    /// How many entries are stored.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it holds, and what became of look-ups and entries since it was made.
    pub fn counts(&self) -> PromptCacheSnapshot {
        PromptCacheSnapshot {
            entries: self.len(),
            bytes: self.bytes(),
            cap_bytes: self.cap_bytes,
            ..self.counts
        }
    }

    /// All entries, the most recently used first.
    pub fn entries(&self) -> impl Iterator<Item = EntryView> {
        self.newest_first().map(|entry| self.view(entry))
    }

    /// The entry of exactly `tokens`.
    pub fn find(&self, tokens: &[u32]) -> Option<EntryId> {
        self.trie.find(tokens)
    }

    /// Pins or unpins an entry; false if there is none of that name.
    pub fn pin(&mut self, id: EntryId, pinned: bool) -> bool {
        let Some(entry) = self.entries.get(id) else {
            return false;
        };
        self.recency.remove(entry.record.pinned, entry.stamp);
        self.recency.insert(pinned, entry.stamp, id);
        self.entries.pin(id, pinned)
    }

    /// Takes an entry out, pinned or not.
    pub fn remove(&mut self, id: EntryId) -> Option<Evicted<S>> {
        let tokens = self.tokens(id)?;
        let Entry { snapshot, origin, record, .. } = self.detach(id)?;
        let Record { pinned, on_disk, .. } = record;
        Some(Evicted { id, tokens, snapshot, origin, pinned, on_disk })
    }

    /// Drops all entries but those that `stays` names, pinned or not, and says which.
    pub fn retain(&mut self, stays: impl Fn(PromptId) -> bool) -> Vec<PromptId> {
        let goes = |entry: &Entry<S>| !stays(entry.record.prompt);
        let gone: Vec<EntryId> =
            self.newest_first().filter(|entry| goes(entry)).map(|entry| entry.record.id).collect();
        let gone = gone.into_iter().filter_map(|id| self.detach(id));
        gone.map(|entry| entry.record.prompt).collect()
    }

    /// The tokens of an entry.
    pub fn tokens(&self, id: EntryId) -> Option<Vec<u32>> {
        let node = self.entries.get(id)?.node;
        Some(self.trie.tokens(node, 0..self.trie.depth(node)))
    }

    /// The entry of the tokens that `prompt` names.
    pub fn named(&self, prompt: PromptId) -> Option<EntryId> {
        self.newest_first().map(|entry| entry.record).find_map(|record| {
            let Record { id, prompt: name, .. } = record;
            (name == prompt).then_some(id)
        })
    }

    /// An entry as it is listed.
    pub fn entry(&self, id: EntryId) -> Option<EntryView> {
        self.entries.get(id).map(|entry| self.view(entry))
    }

    /// A share of an entry's snapshot; no use, and not counted.
    pub fn share(&self, id: EntryId) -> Option<S> {
        self.entries.get(id).map(|entry| entry.snapshot.share())
    }

    /// The entries that were not offered to the disk tier, the most recently used first.
    pub fn unsaved(&self) -> impl Iterator<Item = Unsaved> {
        let unsaved = self.newest_first().filter(|entry| entry.record.on_disk == DiskCopy::Unsaved);
        unsaved.map(|entry| Unsaved {
            id: entry.record.id,
            used_at: entry.record.used_at,
            bytes: entry.bytes,
        })
    }

    /// Says what the disk tier made of an entry; false if there is no entry of that name.
    pub fn mark_saved(&mut self, id: EntryId, on_disk: DiskCopy) -> bool {
        let entry = self.entries.get_mut(id);
        entry.map(|entry| entry.record.on_disk = on_disk).is_some()
    }
}

impl<S: Snapshot> PromptCache<S> {
    fn name(&mut self) -> EntryId {
        self.names += 1;
        EntryId(self.names)
    }

    fn count_lookup(&mut self, cached_tokens: usize) {
        match cached_tokens {
            0 => self.counts.misses += 1,
            _ => self.counts.hits += 1,
        }
        self.counts.hit_tokens += cached_tokens as u64;
    }

    /// Whether `bytes` fit beside the pinned entries but the `replaced` one.
    fn has_room(&self, bytes: u64, replaced: Option<EntryId>) -> bool {
        let replaced = replaced.and_then(|id| self.entries.get(id));
        let beside = self.entries.pinned_bytes() - replaced.map_or(0, Entry::pinned_bytes);
        bytes.saturating_add(beside) <= self.cap_bytes
    }

    fn drop_prefixes(&mut self, tokens: &[u32]) {
        for id in self.trie.prefixes(tokens) {
            if self.entries.get(id).is_some_and(|entry| !entry.record.pinned) {
                self.detach(id);
            }
        }
    }

    fn attach(&mut self, tokens: &[u32], snapshot: S, origin: Origin, record: Record) {
        let (id, stamp) = (record.id, self.recency.next());
        let mark = Mark { stamp, id, tokens: tokens.len(), can_trim: snapshot.can_trim() };
        let node = self.trie.insert(tokens, mark);
        self.recency.insert(record.pinned, stamp, id);
        let bytes = snapshot.bytes();
        self.entries.insert(Entry { node, stamp, snapshot, bytes, origin, record });
    }

    fn detach(&mut self, id: EntryId) -> Option<Entry<S>> {
        let entry = self.entries.remove(id)?;
        self.trie.remove(entry.node);
        self.recency.remove(entry.record.pinned, entry.stamp);
        Some(entry)
    }

    /// A share of the snapshot that serves, without its excess.
    fn lend(&mut self, serving: Serving, now: Time) -> Result<S> {
        let entry = self.entries.get_mut(serving.id).expect("the trie names stored entries only");
        let mut snapshot = entry.snapshot.share();
        if serving.excess > 0 {
            snapshot.trim(serving.excess)?;
        }
        self.recency.remove(entry.record.pinned, entry.stamp);
        entry.stamp = self.recency.next();
        self.recency.insert(entry.record.pinned, entry.stamp, serving.id);
        self.trie.touch(entry.node, entry.stamp);
        entry.record.used_at = now;
        entry.record.hits += 1;
        Ok(snapshot)
    }

    /// Where the nearest entry parts from `prompt`, unless nothing is near, all that can be had was served, or
    /// `prompt` only goes on where all entries end.
    fn divergence(&self, prompt: &[u32], found: &Match) -> Option<Divergence> {
        let (index, usable) = (found.shared, found.usable());
        let node = self.entries.get(found.nearest?)?.node;
        let length = self.trie.depth(node);
        let goes_on = length > index || usable < index;
        if usable + 1 >= prompt.len() || !goes_on {
            return None;
        }
        Some(Divergence {
            index,
            before: prompt[divergence::before(index)].to_vec(),
            prompt: prompt[divergence::after(index, prompt.len())].to_vec(),
            kept: self.trie.tokens(node, divergence::after(index, length)),
            reason: if usable == index { Reason::Differs } else { Reason::CannotTrim },
        })
    }

    fn newest_first(&self) -> impl Iterator<Item = &Entry<S>> {
        self.recency.newest_first().filter_map(|id| self.entries.get(id))
    }

    fn view(&self, entry: &Entry<S>) -> EntryView {
        let Record { id, prompt, kept_at, used_at, hits, pinned, on_disk } = entry.record;
        let tokens = self.trie.depth(entry.node);
        let listed = tokens.min(LISTED_TOKENS_MAX);
        EntryView {
            id,
            prompt,
            tokens,
            first_tokens: self.trie.tokens(entry.node, 0..listed),
            last_tokens: self.trie.tokens(entry.node, tokens - listed..tokens),
            bytes: entry.bytes,
            kept_at,
            used_at,
            hits,
            pinned,
            origin: entry.origin,
            on_disk,
        }
    }
}
