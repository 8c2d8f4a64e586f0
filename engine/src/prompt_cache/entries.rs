//! What is stored: entries, and what is told of them.

use std::collections::HashMap;

use super::disk::DiskId;
use super::prompt_id::PromptId;
use super::recency::Stamp;
use super::trie::NodeId;
use crate::clock::Time;

/// Names an entry for as long as the cache lives; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64);

/// Where in a row's life its snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// At a boundary of the prompt, during prefill.
    Boundary,
    /// When the row ended: prompt and answer.
    Finished,
}

impl Origin {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Boundary => "boundary",
            Self::Finished => "finished",
        }
    }
}

/// What the disk tier made of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskCopy {
    /// It was not asked.
    #[default]
    Unsaved,
    /// It did not take it.
    Refused,
    /// This is its copy, unless that went since.
    File(DiskId),
}

/// An entry as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryView {
    /// Names it.
    pub id: EntryId,
    /// Names its tokens.
    pub prompt: PromptId,
    /// How many tokens it has.
    pub tokens: usize,
    /// The first of them, [`LISTED_TOKENS_MAX`](crate::limits::LISTED_TOKENS_MAX) at most.
    pub first_tokens: Vec<u32>,
    /// The last of them, as many.
    pub last_tokens: Vec<u32>,
    /// Bytes of its snapshot.
    pub bytes: u64,
    /// When its tokens were stored first.
    pub kept_at: Time,
    /// When it was stored or served last.
    pub used_at: Time,
    /// How often it served.
    pub hits: u64,
    /// Whether it is evicted after all that are not pinned.
    pub pinned: bool,
    /// Where its snapshot was taken.
    pub origin: Origin,
    /// What the disk tier made of it.
    pub on_disk: DiskCopy,
}

/// An entry that the disk tier was not offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsaved {
    /// Names it.
    pub id: EntryId,
    /// When it was stored or served last.
    pub used_at: Time,
    /// Bytes of its snapshot.
    pub bytes: u64,
}

/// An entry that left the cache, or found no room in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted<S> {
    /// What it was called; a new name if it found no room.
    pub id: EntryId,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The caches after them.
    pub snapshot: S,
    /// Where the snapshot was taken.
    pub origin: Origin,
    /// Whether it was pinned.
    pub pinned: bool,
    /// What the disk tier made of it.
    pub on_disk: DiskCopy,
}

/// A stored entry; its tokens lie in the trie.
#[derive(Debug)]
pub(super) struct Entry<S> {
    pub(super) node: NodeId,
    pub(super) stamp: Stamp,
    pub(super) snapshot: S,
    pub(super) bytes: u64,
    pub(super) origin: Origin,
    pub(super) record: Record,
}

impl<S> Entry<S> {
    /// Its bytes if it is pinned.
    pub(super) fn pinned_bytes(&self) -> u64 {
        if self.record.pinned { self.bytes } else { 0 }
    }
}

/// What an entry keeps when its snapshot is replaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) id: EntryId,
    pub(super) prompt: PromptId,
    pub(super) kept_at: Time,
    pub(super) used_at: Time,
    pub(super) hits: u64,
    pub(super) pinned: bool,
    pub(super) on_disk: DiskCopy,
}

impl Record {
    /// The record of an entry of `tokens` that is stored for the first time.
    pub(super) fn new(id: EntryId, tokens: &[u32], now: Time) -> Self {
        Self {
            id,
            prompt: PromptId::of(tokens),
            kept_at: now,
            used_at: now,
            hits: 0,
            pinned: false,
            on_disk: DiskCopy::Unsaved,
        }
    }
}

/// All entries by their ids.
#[derive(Debug)]
pub(super) struct Entries<S> {
    stored: HashMap<EntryId, Entry<S>>,
    bytes: u64,
    pinned_bytes: u64,
}

impl<S> Entries<S> {
    pub(super) fn new() -> Self {
        Self { stored: HashMap::new(), bytes: 0, pinned_bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.stored.len()
    }

    /// Bytes of all snapshots.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the pinned ones.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    pub(super) fn insert(&mut self, entry: Entry<S>) {
        self.bytes += entry.bytes;
        self.pinned_bytes += entry.pinned_bytes();
        let replaced = self.stored.insert(entry.record.id, entry);
        debug_assert!(replaced.is_none(), "an entry is removed before it is replaced");
    }

    pub(super) fn remove(&mut self, id: EntryId) -> Option<Entry<S>> {
        let entry = self.stored.remove(&id)?;
        self.bytes -= entry.bytes;
        self.pinned_bytes -= entry.pinned_bytes();
        Some(entry)
    }

    /// Pins or unpins an entry; false if there is none of that name.
    pub(super) fn pin(&mut self, id: EntryId, pinned: bool) -> bool {
        let Some(entry) = self.stored.get_mut(&id) else {
            return false;
        };
        self.pinned_bytes -= entry.pinned_bytes();
        entry.record.pinned = pinned;
        self.pinned_bytes += entry.pinned_bytes();
        true
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&Entry<S>> {
        self.stored.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: EntryId) -> Option<&mut Entry<S>> {
        self.stored.get_mut(&id)
    }
}
