//! The entries, their order of use, and their bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Snapshot;
use super::trie::{Lookup, Trie};
use crate::clock::Time;
use crate::error::Result;
use crate::limits::DIVERGENCE_TOKENS;
use crate::telemetry::PromptCacheSnapshot;

/// An entry's number, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64);

/// What an entry was kept at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The end of a part of a prompt.
    Boundary,
    /// The end of an answer.
    Finished,
}

/// Where a prompt parts from the kept tokens that are nearest to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The index of the first token that differs: so many are alike.
    pub index: usize,
    /// The prompt's tokens from there on, a few; none where the prompt ends.
    pub prompt: Vec<u32>,
    /// The kept ones.
    pub kept: Vec<u32>,
}

/// What the cache lends to a prompt.
#[derive(Debug)]
pub struct Taken<S> {
    /// The caches of its first `cached_tokens` tokens.
    pub snapshot: Option<S>,
    /// How many tokens need not be run.
    pub cached_tokens: usize,
    /// Why not more, when a kept prompt goes on otherwise.
    pub near: Option<Divergence>,
}

impl<S> Default for Taken<S> {
    fn default() -> Self {
        Self { snapshot: None, cached_tokens: 0, near: None }
    }
}

/// A kept sequence of tokens.
#[derive(Debug)]
pub struct Entry<S> {
    /// Its tokens.
    pub tokens: Arc<[u32]>,
    /// What caches hold after them.
    pub snapshot: S,
    /// What it was kept at.
    pub origin: Origin,
    /// When it was kept.
    pub kept_at: Time,
    /// When it was last kept or lent.
    pub used_at: Time,
    /// How often it was lent.
    pub hits: u64,
    /// Whether it goes after all that are not.
    pub pinned: bool,
    bytes: u64,
    /// Its place in the order of use.
    turn: u64,
}

/// See the [module's](super) words.
#[derive(Debug)]
pub struct PromptCache<S> {
    cap_bytes: u64,
    bytes: u64,
    trie: Trie,
    entries: BTreeMap<EntryId, Entry<S>>,
    next_id: u64,
    turns: u64,
    counts: PromptCacheSnapshot,
}

impl<S: Snapshot> PromptCache<S> {
    /// An empty one that never holds more than `cap_bytes`; with 0 it keeps nothing.
    pub fn new(cap_bytes: u64) -> Self {
        Self {
            cap_bytes,
            bytes: 0,
            trie: Trie::new(),
            entries: BTreeMap::new(),
            next_id: 0,
            turns: 0,
            counts: PromptCacheSnapshot::default(),
        }
    }

    /// Whether it keeps anything at all.
    pub fn is_on(&self) -> bool {
        self.cap_bytes > 0
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it holds and did.
    pub fn snapshot(&self) -> PromptCacheSnapshot {
        PromptCacheSnapshot {
            entries: self.entries.len(),
            bytes: self.bytes,
            cap_bytes: self.cap_bytes,
            ..self.counts
        }
    }

    /// The entries in the order in which they were first kept.
    pub fn entries(&self) -> impl Iterator<Item = (EntryId, &Entry<S>)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// Lends the caches of the longest usable prefix of `prompt`, and says where the nearest entry parts from
    /// it.
    ///
    /// # Errors
    /// Those of [`Snapshot::trim`]; the entry stays as it is.
    pub fn take(&mut self, prompt: &[u32], now: Time) -> Result<Taken<S>> {
        if !self.is_on() {
            return Ok(Taken::default());
        }
        let Lookup { found, near } = self.trie.look_up(prompt);
        let near = near.and_then(|(id, shared)| self.divergence(EntryId(id), prompt, shared));
        let Some(found) = found else {
            self.counts.misses += 1;
            return Ok(Taken { near, ..Taken::default() });
        };
        let turn = self.next_turn();
        let Some(entry) = self.entries.get_mut(&EntryId(found.id)) else {
            return Ok(Taken::default());
        };
        let mut snapshot = entry.snapshot.share();
        if entry.tokens.len() > found.usable_tokens {
            snapshot.trim(entry.tokens.len() - found.usable_tokens)?;
        }
        (entry.used_at, entry.turn) = (now, turn);
        entry.hits += 1;
        self.counts.hits += 1;
        self.counts.hit_tokens += found.usable_tokens as u64;
        Ok(Taken { snapshot: Some(snapshot), cached_tokens: found.usable_tokens, near })
    }

    /// Keeps `snapshot` under its `tokens`, in place of what was there, and of what it serves better. An entry
    /// that is larger than the cap is not kept.
    pub fn put(&mut self, tokens: Vec<u32>, snapshot: S, origin: Origin, now: Time) {
        let bytes = snapshot.bytes();
        if bytes > self.cap_bytes || tokens.is_empty() {
            return;
        }
        let (mut hits, mut pinned) = (0, false);
        if let Some(id) = self.id_of(&tokens)
            && let Some(old) = self.remove(id)
        {
            (hits, pinned) = (old.hits, old.pinned);
        }
        if snapshot.can_trim() {
            self.drop_prefixes(&tokens);
        }
        let (id, turn) = (EntryId(self.next_id), self.next_turn());
        self.next_id += 1;
        self.trie.insert(&tokens, id.0, snapshot.can_trim());
        let tokens = tokens.into();
        let (kept_at, used_at) = (now, now);
        let entry = Entry { tokens, snapshot, origin, kept_at, used_at, hits, pinned, bytes, turn };
        self.bytes += bytes;
        self.entries.insert(id, entry);
        self.trim_to(self.cap_bytes);
    }

    /// Lets go of entries until they take no more than `bytes`: what was used first, what is pinned last.
    pub fn trim_to(&mut self, bytes: u64) {
        while self.bytes > bytes {
            let order = |(_, entry): &(&EntryId, &Entry<S>)| (entry.pinned, entry.turn);
            let Some(id) = self.entries.iter().min_by_key(order).map(|(id, _)| *id) else { return };
            self.remove(id);
            self.counts.evictions += 1;
        }
    }

    /// Has an entry go after all others, or not; `false` when there is none.
    pub fn pin(&mut self, id: EntryId, pinned: bool) -> bool {
        let entry = self.entries.get_mut(&id);
        entry.map(|entry| entry.pinned = pinned).is_some()
    }

    /// Takes an entry out.
    pub fn remove(&mut self, id: EntryId) -> Option<Entry<S>> {
        let entry = self.entries.remove(&id)?;
        self.trie.remove(&entry.tokens);
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Lets go of all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.trie = Trie::new();
        self.bytes = 0;
    }

    /// The entry under just these tokens.
    fn id_of(&self, tokens: &[u32]) -> Option<EntryId> {
        self.trie.entry_at(tokens).map(EntryId)
    }

    /// Lets go of what an entry under `tokens` that can be trimmed serves as well.
    fn drop_prefixes(&mut self, tokens: &[u32]) {
        for id in self.trie.prefixes(tokens).into_iter().map(EntryId) {
            if self.entries.get(&id).is_some_and(|entry| !entry.pinned) {
                self.remove(id);
            }
        }
    }

    fn divergence(&self, id: EntryId, prompt: &[u32], index: usize) -> Option<Divergence> {
        let kept = &self.entries.get(&id)?.tokens;
        let some = |tokens: &[u32]| {
            tokens.iter().skip(index).take(DIVERGENCE_TOKENS).copied().collect::<Vec<u32>>()
        };
        let near = index > 0;
        near.then(|| Divergence { index, prompt: some(prompt), kept: some(kept) })
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}
