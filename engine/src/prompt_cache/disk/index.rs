//! Which entry spares most of a prompt. Pure, in memory: four bytes for each token of each entry.
//!
//! An entry serves as far as it agrees with the prompt, short of the prompt's last token; one that cannot
//! be trimmed serves whole or not at all. So there are two questions. The longest entry that is itself a
//! prefix is found by one walk over the prompt, whose running hash is looked up at every length that an
//! entry has. The trimmable entry that agrees longest is a neighbour of the prompt in their sorted order,
//! and those that agree as long stand around it.

use std::collections::btree_set::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::format::DiskId;
use super::{Manifest, Origin, PromptId};

/// What the index knows of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub prompt: PromptId,
    pub tokens: Arc<[u32]>,
    pub can_trim: bool,
    pub origin: Origin,
    /// Bytes of its file.
    pub bytes: u64,
    /// When it was saved, since the Unix epoch.
    pub created_at: Duration,
    /// When it was last used, since the Unix epoch.
    pub used_at: Duration,
    /// How often it was restored, since the tier was opened.
    pub hits: u64,
    /// Whether it makes room after all that are not pinned.
    pub pinned: bool,
}

impl Entry {
    /// The entry of `manifest`, in a file of `bytes`, which was saved and used last at `created_at`.
    pub(super) fn new(manifest: &Manifest, bytes: u64, created_at: Duration) -> Self {
        Self {
            prompt: PromptId::of(&manifest.tokens),
            tokens: manifest.tokens.as_slice().into(),
            can_trim: manifest.can_trim,
            origin: manifest.origin,
            bytes,
            created_at,
            used_at: created_at,
            hits: 0,
            pinned: false,
        }
    }
}

/// An entry that spares tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Which one.
    pub id: DiskId,
    /// Tokens of the prompt that it spares.
    pub usable_tokens: usize,
    /// Its tokens; those beyond the usable ones are to be trimmed.
    pub entry_tokens: usize,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<DiskId, Entry>,
    /// Entries by the hash of their tokens.
    by_hash: HashMap<u64, Vec<DiskId>>,
    /// How many entries have a number of tokens.
    lengths: BTreeMap<usize, usize>,
    /// Those that can be trimmed, in the order of their tokens.
    trimmable: BTreeSet<(Arc<[u32]>, DiskId)>,
}

impl Index {
    /// Adds an entry, or replaces the one of this name.
    pub(super) fn insert(&mut self, id: DiskId, entry: Entry) {
        self.remove(id);
        self.by_hash.entry(hash(&entry.tokens)).or_default().push(id);
        *self.lengths.entry(entry.tokens.len()).or_default() += 1;
        if entry.can_trim {
            self.trimmable.insert((Arc::clone(&entry.tokens), id));
        }
        self.entries.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: DiskId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        let key = hash(&entry.tokens);
        if let Some(ids) = self.by_hash.get_mut(&key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_hash.remove(&key);
            }
        }
        let length = entry.tokens.len();
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
        self.trimmable.remove(&(Arc::clone(&entry.tokens), id));
        Some(entry)
    }

    pub(super) fn get(&self, id: DiskId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: DiskId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DiskId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// Moves an entry's last use to `now`; says whether there is such an entry.
    pub(super) fn touch(&mut self, id: DiskId, now: Duration) -> bool {
        let entry = self.entries.get_mut(&id);
        entry.map(|entry| entry.used_at = now).is_some()
    }

    /// An entry of exactly these tokens.
    pub(super) fn with_tokens(&self, tokens: &[u32]) -> Option<DiskId> {
        self.one_of(hash(tokens), tokens)
    }

    /// The entry that spares most of `prompt`, if that is more than `longer_than` tokens; of those that
    /// spare as much the one with fewest tokens, and of these always the same one.
    pub(super) fn find(&self, prompt: &[u32], longer_than: usize) -> Option<Found> {
        let usable_max = prompt.len().checked_sub(1)?;
        let whole = self.longest_prefix(&prompt[..usable_max]);
        let trimmed = self.longest_agreement(prompt, usable_max);
        let found = match (whole, trimmed) {
            (Some(whole), Some(trimmed)) if trimmed.usable_tokens > whole.usable_tokens => trimmed,
            (whole, trimmed) => whole.or(trimmed)?,
        };
        (found.usable_tokens > longer_than).then_some(found)
    }

    /// The longest entry that `tokens` begins with.
    fn longest_prefix(&self, tokens: &[u32]) -> Option<Found> {
        let lengths = self.lengths.keys().copied().skip_while(|length| *length == 0);
        let mut lengths = lengths.peekable();
        let (mut longest, mut running) = (None, HASH_START);
        for (index, token) in tokens.iter().enumerate() {
            let length = index + 1;
            running = hash_step(running, *token);
            if lengths.next_if_eq(&length).is_some() {
                let id = self.one_of(running, &tokens[..length]);
                let found = |id| Found { id, usable_tokens: length, entry_tokens: length };
                longest = id.map(found).or(longest);
            }
        }
        longest
    }

    /// One entry with these tokens and this hash, always the same.
    fn one_of(&self, hash: u64, tokens: &[u32]) -> Option<DiskId> {
        let ids = self.by_hash.get(&hash)?.iter().copied();
        ids.filter(|id| *self.entries[id].tokens == *tokens).min()
    }

    /// The trimmable entry that agrees longest with `prompt`.
    fn longest_agreement(&self, prompt: &[u32], usable_max: usize) -> Option<Found> {
        let place: (Arc<[u32]>, _) = (prompt.into(), DiskId::LEAST);
        let before = self.trimmable.range(..&place).next_back();
        let after = self.trimmable.range(&place..).next();
        let agreed = |entry: &(Arc<[u32]>, DiskId)| agreement(&entry.0, prompt).min(usable_max);
        let usable_tokens = before.into_iter().chain(after).map(agreed).max()?;
        if usable_tokens == 0 {
            return None;
        }
        let least = |entry: &&(Arc<[u32]>, DiskId)| (entry.0.len(), entry.1);
        let (tokens, id) = self.beginning_with(&prompt[..usable_tokens]).min_by_key(least)?;
        Some(Found { id: *id, usable_tokens, entry_tokens: tokens.len() })
    }

    /// The trimmable entries that begin with `prefix`, which is not empty.
    fn beginning_with(&self, prefix: &[u32]) -> Range<'_, (Arc<[u32]>, DiskId)> {
        let start = Bound::Included((prefix.into(), DiskId::LEAST));
        let end = successor(prefix).map_or(Bound::Unbounded, |end| {
            Bound::Excluded((end.as_slice().into(), DiskId::LEAST))
        });
        self.trimmable.range((start, end))
    }
}

/// How many tokens two sequences have in common at their start.
fn agreement(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// The least sequence that is greater than every one which begins with `prefix`, if there is one.
fn successor(prefix: &[u32]) -> Option<Vec<u32>> {
    let last = prefix.iter().rposition(|token| *token < u32::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

const HASH_START: u64 = 0;

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(HASH_START, |hash, token| hash_step(hash, *token))
}

/// A polynomial in an odd constant; who looks something up compares tokens, so collisions cost time only.
fn hash_step(hash: u64, token: u32) -> u64 {
    (hash ^ u64::from(token) ^ (hash >> 29)).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};
    use serde_json::Value;

    use super::*;

    /// The index as its words have it: all entries, looked at one by one.
    #[derive(Default)]
    struct Naive(Vec<(DiskId, Entry)>);

    impl Naive {
        fn find(&self, prompt: &[u32], longer_than: usize) -> Option<Found> {
            let usable = |entry: &Entry| {
                let agreed = agreement(&entry.tokens, prompt).min(prompt.len().saturating_sub(1));
                if agreed == entry.tokens.len() || entry.can_trim { agreed } else { 0 }
            };
            let better = |(id, entry): &&(DiskId, Entry)| {
                (usable(entry), std::cmp::Reverse((entry.tokens.len(), *id)))
            };
            let (id, entry) = self.0.iter().max_by_key(better)?;
            let (usable_tokens, entry_tokens) = (usable(entry), entry.tokens.len());
            let found = Found { id: *id, usable_tokens, entry_tokens };
            (usable_tokens > longer_than).then_some(found)
        }
    }

    fn entry(tokens: Vec<u32>, can_trim: bool, now: Duration) -> Entry {
        let (state, tensors, origin) = (Value::Null, Vec::new(), Origin::Finished);
        Entry::new(&Manifest { tokens, state, can_trim, origin, tensors }, 1, now)
    }

    fn tokens(random: &mut StdRng, length_max: usize) -> Vec<u32> {
        let (length, high) = (random.random_range(0..=length_max), random.random_bool(0.2));
        // The greatest token has no successor, which the sorted order must bear.
        let vocabulary = if high { [u32::MAX - 1, u32::MAX] } else { [0, u32::MAX] };
        (0..length).map(|_| *vocabulary.choose(random).unwrap()).collect()
    }

    fn round(random: &mut StdRng, index: &mut Index, naive: &mut Naive, time: u64) {
        let now = Duration::from_secs(time / 3);
        let held = naive.0.choose(random).map(|(id, _)| *id);
        match random.random_range(0..8) {
            0 | 1 => {
                let (id, tokens) = (DiskId::new(), tokens(random, 12));
                let can_trim = random.random();
                let entry = entry(tokens, can_trim, now);
                index.insert(id, entry.clone());
                naive.0.push((id, entry));
            }
            2 | 3 if naive.0.len() > 20 => {
                let id = held.unwrap();
                let place = naive.0.iter().position(|(other, _)| *other == id).unwrap();
                assert_eq!(index.remove(id), Some(naive.0.swap_remove(place).1));
                assert_eq!(index.remove(id), None);
            }
            4 => {
                let touched = held.is_some_and(|id| index.touch(id, now));
                assert_eq!(touched, held.is_some());
                let entry = naive.0.iter_mut().find(|(id, _)| Some(*id) == held);
                entry.into_iter().for_each(|(_, entry)| entry.used_at = now);
            }
            _ => {
                let (prompt, longer_than) = (tokens(random, 14), random.random_range(0..4));
                let found = index.find(&prompt, longer_than);
                assert_eq!(found, naive.find(&prompt, longer_than), "{prompt:?}");
                let same = naive.0.iter().any(|(_, entry)| *entry.tokens == *prompt);
                assert_eq!(index.with_tokens(&prompt).is_some(), same);
            }
        }
        assert_eq!(index.len(), naive.0.len());
    }

    #[test]
    fn the_index_finds_what_a_look_at_every_entry_finds() {
        let replay = std::env::var("SLIPSTREAM_SEED").ok().map(|seed| seed.parse().unwrap());
        for seed in replay.map_or(0..100, |seed: u64| seed..seed + 1) {
            let outcome = std::panic::catch_unwind(|| {
                let mut random = StdRng::seed_from_u64(seed);
                let (mut index, mut naive) = (Index::default(), Naive::default());
                (0..1000).for_each(|time| round(&mut random, &mut index, &mut naive, time));
            });
            if let Err(panic) = outcome {
                eprintln!("replay: SLIPSTREAM_SEED={seed} cargo test prompt_cache::disk::index");
                std::panic::resume_unwind(panic);
            }
        }
    }

    #[test]
    fn entries_with_one_hash_are_told_apart_by_their_tokens() {
        let mut index = Index::default();
        let now = Duration::ZERO;
        let entry = |tokens: &[u32]| entry(tokens.to_vec(), false, now);
        let (id, other) = (DiskId::new(), DiskId::new());
        index.insert(id, entry(&[1, 2]));
        index.insert(other, entry(&[3, 4]));
        index.by_hash.insert(hash(&[1, 2]), vec![id, other]);
        index.by_hash.insert(hash(&[3, 4]), vec![id, other]);
        assert_eq!(index.find(&[3, 4, 5], 0).map(|found| found.id), Some(other));
        assert_eq!(index.find(&[1, 2, 5], 0).map(|found| found.id), Some(id));
    }
}
