//! The disk tier: prompts that outlive the process.
//!
//! It owns a folder. An **entry** is a row's tokens and the tensors of its caches, one file each; it
//! holds no arrays and knows nothing of MLX. An **identity** names everything that must agree before one
//! row may use what another left (weights, configuration, tokenizer, scheme, types, adapters); a tier
//! serves entries of its own identity only, and those of others in its folder merely take room.
//!
//! ```text
//! <folder>/.lock                          held while the account or the set of files is changed
//! <folder>/usage.json                     what was written today and in all
//! <folder>/<identity>/<id>.slipcache      an entry; `format.rs` has its layout
//! <folder>/<identity>/<id>.pin            empty: the entry is pinned
//! <folder>/<identity>/<id>.slipcache.tmp  one that is being written, locked by who writes it
//! ```
//!
//! Life of an entry:
//! 1. [`DiskTier::save`] admits it, or says no: it is there already, the queue has no room, the day's
//!    bytes are spent, or the tier is read-only. Nothing of this touches a file.
//! 2. [`Saving::tensor`] hands its tensors over, and [`Saving::finish`] ends them. A thread of the tier's
//!    own, the *writer*, enters the bytes into the account, makes room for them and writes. The caller
//!    never waits for it. A saving that is dropped unfinished leaves no file.
//! 3. The whole file is flushed and renamed, and its folder flushed. From then on it is found.
//! 4. [`DiskTier::find`] asks the index, in memory; [`DiskTier::restore`] opens the file, and the caller
//!    reads it tensor by tensor at its own pace. Each is held against its checksum before it is handed
//!    out. Being restored is being used.
//! 5. It goes when it is removed, when an entry was saved that begins with it and can be trimmed back to it,
//!    when it was used least recently of *all* in the folder and room is needed, or when any of its bytes
//!    turns out not to be what was written. It is never served then.
//!
//! A **pinned** entry does not go for others: neither one that begins with it nor one that needs room. Only when
//! the folder is opened with a smaller cap than its pinned entries need do they go, the rest before them. A pin
//! holds from the next start on as well, once the writer has come to it.
//!
//! Invariants: a file under its final name is whole, whenever the process ends. Files of the folder take
//! at most `max_bytes`, those being written included with all bytes that they will have. Bytes are in the
//! account before they are written, and the account outlives the process. Once the disk fails a write, for
//! want of room or otherwise, nothing is written any more, and what is there is still served. Several
//! processes may use one folder: they share the account and the cap, and a file that one of them removed
//! is a miss to the others.

mod board;
mod files;
mod folder;
mod format;
mod index;
mod reader;
mod saving;
mod usage;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use self::board::{Board, Lost, Message, Outcome};
use self::files::{Files, MachineFiles};
use self::folder::Folder;
pub use self::format::DiskId;
pub use self::index::Found;
use self::index::{Entry, Index};
pub use self::reader::Reader;
pub use self::saving::Saving;
use self::writer::Writer;
use crate::clock::{self, Clock};
use crate::error::{Code, Error, Result};
use crate::prompt_cache::{Origin, PromptId};

/// One tensor as it lies in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The name of its elements' type; the tier only keeps it.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements in row-major order.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// What a manifest says of it.
    pub fn spec(&self) -> TensorSpec {
        let bytes = self.bytes.len() as u64;
        TensorSpec { dtype: self.dtype.clone(), shape: self.shape.clone(), bytes }
    }
}

/// A tensor without its elements.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TensorSpec {
    /// The name of its elements' type.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// How many bytes its elements take.
    pub bytes: u64,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The tokens that its caches have seen.
    pub tokens: Vec<u32>,
    /// What the snapshot says of itself. The tier does not look inside; whole numbers, texts, lists and
    /// maps come back as they were.
    pub state: Value,
    /// Whether its last tokens can be taken back.
    pub can_trim: bool,
    /// Where in a row's life they were taken.
    pub origin: Origin,
    /// Its tensors, in the order in which they are handed over.
    pub tensors: Vec<TensorSpec>,
}

/// Where a tier lives and how much it may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its folder; it is made if there is none.
    pub folder: PathBuf,
    /// Bytes of all files in the folder.
    pub max_bytes: u64,
    /// Bytes that may be written in a day, which begins at midnight UTC; none is no limit.
    pub day_limit_bytes: Option<u64>,
    /// Bytes of tensors that may wait to be written.
    pub queue_bytes: u64,
}

/// One entry, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskEntry<'a> {
    /// Its name.
    pub id: DiskId,
    /// The name of its tokens.
    pub prompt: PromptId,
    /// Its tokens.
    pub tokens: &'a [u32],
    /// Whether its last tokens can be taken back.
    pub can_trim: bool,
    /// Where in a row's life its caches were taken.
    pub origin: Origin,
    /// Bytes of its file.
    pub bytes: u64,
    /// When it was saved, since the Unix epoch.
    pub created_at: Duration,
    /// When it was last used, since the Unix epoch.
    pub used_at: Duration,
    /// How often it was restored, since the tier was opened.
    pub hits: u64,
    /// Whether it is pinned.
    pub pinned: bool,
}

impl<'a> DiskEntry<'a> {
    fn new(id: DiskId, entry: &'a Entry) -> Self {
        Self {
            id,
            prompt: entry.prompt,
            tokens: &entry.tokens,
            can_trim: entry.can_trim,
            origin: entry.origin,
            bytes: entry.bytes,
            created_at: entry.created_at,
            used_at: entry.used_at,
            hits: entry.hits,
            pinned: entry.pinned,
        }
    }
}

/// What the tier has and has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskStats {
    /// Bytes of the folder's files, of whatever identity.
    pub bytes: u64,
    /// Files of the folder.
    pub files: usize,
    /// The cap on `bytes`.
    pub max_bytes: u64,
    /// Entries that this tier can serve.
    pub entries: usize,
    /// Bytes of tensors that wait to be written.
    pub queued_bytes: u64,
    /// Bytes written today.
    pub written_today_bytes: u64,
    /// How many it may be.
    pub day_limit_bytes: Option<u64>,
    /// Bytes written since the folder was made: what the cache has worn of the drive.
    pub written_bytes: u64,
    /// Entries saved, since the tier was opened.
    pub saved: u64,
    /// Entries that went to make room, of this tier's identity.
    pub evicted: u64,
    /// Entries dropped because they were damaged, foreign, stale or unreadable.
    pub dropped: u64,
    /// Entries that were admitted and then not written, whatever for.
    pub failed: u64,
    /// Why nothing is written any more.
    pub read_only: Option<String>,
}

/// The tier: see the module's words. It belongs to one thread; files are written on another.
#[derive(Debug)]
pub struct DiskTier {
    folder: Folder,
    config: DiskConfig,
    clock: Clock,
    index: Index,
    /// Entries that are being saved.
    pending: HashMap<DiskId, Entry>,
    board: Arc<Board>,
    writer: Option<JoinHandle<()>>,
    saved: u64,
    evicted: u64,
    dropped: u64,
    failed: u64,
}

impl DiskTier {
    /// Opens the folder in whatever state it is: clears away what writers left that were killed, drops
    /// what is no whole entry, makes room if there is too much, and reads the headers of the others.
    /// `identity` is a fingerprint in hexadecimal digits.
    ///
    /// # Errors
    /// `Internal` if `identity` is no fingerprint; `Io` if the folder can be neither made nor read.
    pub fn open(config: DiskConfig, identity: &str, clock: Clock) -> Result<Self> {
        Self::open_with(config, identity, clock, Arc::new(MachineFiles))
    }

    fn open_with(
        config: DiskConfig,
        identity: &str,
        clock: Clock,
        files: Arc<dyn Files>,
    ) -> Result<Self> {
        let folder = Folder::open(&config.folder, identity, files)?;
        let opened = folder.read(config.max_bytes)?;
        let board = Arc::new(Board::new(opened.usage, opened.total, config.queue_bytes));
        let writer = Writer::new(folder.clone(), &config, clock.clone(), Arc::clone(&board));
        let mut tier = Self {
            folder,
            config,
            clock,
            index: Index::default(),
            pending: HashMap::new(),
            board,
            writer: Some(writer.start()?),
            saved: 0,
            evicted: opened.evicted,
            dropped: opened.dropped,
            failed: 0,
        };
        for (id, entry) in opened.entries {
            tier.index.insert(id, entry);
        }
        Ok(tier)
    }

    /// The entry that spares most of `prompt`'s tokens, if it spares more than `longer_than`. At least one
    /// token is always left to run. At equal worth the entry with fewest tokens wins, because less is
    /// read. Asks the index only.
    pub fn find(&mut self, prompt: &[u32], longer_than: usize) -> Option<Found> {
        self.settle();
        self.index.find(prompt, longer_than)
    }

    /// Opens an entry to read it, on the calling thread; this counts as a use.
    ///
    /// # Errors
    /// `Io` if it is gone or not what was written. It is not found again then.
    pub fn restore(&mut self, id: DiskId) -> Result<Reader> {
        self.settle();
        if self.index.get(id).is_none() {
            return Err(Error::new(Code::Io, format!("no cached prompt `{id}` is on disk")));
        }
        let path = self.folder.entry_path(id);
        let opened = Reader::open(path, id, self.folder.identity(), &self.board);
        match &opened {
            Ok(_) => {
                self.touch(id);
                self.index.get_mut(id).into_iter().for_each(|entry| entry.hits += 1);
            }
            Err(_) => self.settle(),
        }
        opened
    }

    /// Begins to save an entry. None if it is there already (which counts as a use), is larger than the
    /// folder may be, does not fit the queue or the day, or if nothing is written any more.
    ///
    /// An entry larger than the whole queue is admitted while nothing else waits; [`Saving::ready`] then
    /// says when its next tensor may come.
    ///
    /// # Errors
    /// `Internal` if the manifest cannot be a file.
    pub fn save(&mut self, manifest: Manifest) -> Result<Option<Saving>> {
        self.settle();
        let size = format::Layout::of_manifest(&manifest, self.folder.identity())?.file_bytes;
        if let Some(id) = self.index.with_tokens(&manifest.tokens) {
            self.touch(id);
            return Ok(None);
        }
        let waits = self.pending.values().any(|entry| *entry.tokens == *manifest.tokens);
        if waits || manifest.tokens.is_empty() || size > self.config.max_bytes {
            return Ok(None);
        }
        let now = self.clock.unix_time();
        let limit = self.config.day_limit_bytes;
        let tensor_bytes = manifest.tensors.iter().map(|tensor| tensor.bytes).sum();
        let id = DiskId::new();
        let Some(reserved) = self.board.admit(id, tensor_bytes, size, limit, now) else {
            return Ok(None);
        };
        self.pending.insert(id, Entry::new(&manifest, size, now));
        let specs = manifest.tensors.clone();
        self.board.post(Message::Begin { id, manifest, created_at: now });
        Ok(Some(Saving::new(id, specs, reserved, Arc::clone(&self.board))))
    }

    /// Whether `id` is on disk or on its way there.
    pub fn contains(&mut self, id: DiskId) -> bool {
        self.settle();
        self.index.get(id).is_some() || self.pending.contains_key(&id)
    }

    /// Every entry that can be served, in no order.
    pub fn entries(&mut self) -> impl Iterator<Item = DiskEntry<'_>> {
        self.settle();
        self.index.iter().map(|(id, entry)| DiskEntry::new(id, entry))
    }

    /// One of them.
    pub fn entry(&mut self, id: DiskId) -> Option<DiskEntry<'_>> {
        self.settle();
        self.index.get(id).map(|entry| DiskEntry::new(id, entry))
    }

    /// Notes that an entry was of use, in whatever tier.
    pub fn touch(&mut self, id: DiskId) {
        let now = self.clock.unix_time();
        if self.index.touch(id, now) {
            self.board.touch(id, now);
        }
    }

    /// The entries of the tokens that `prompt` names, those being saved too.
    pub fn named(&mut self, prompt: PromptId) -> Vec<DiskId> {
        self.settle();
        let named = |(id, entry): (DiskId, &Entry)| (entry.prompt == prompt).then_some(id);
        self.known().filter_map(named).collect()
    }

    /// What the pinned entries are called, those being saved too.
    pub fn pinned(&mut self) -> impl Iterator<Item = PromptId> {
        self.settle();
        self.known().filter(|(_, entry)| entry.pinned).map(|(_, entry)| entry.prompt)
    }

    /// Pins or unpins an entry, which may still be on its way; says whether there is one.
    pub fn pin(&mut self, id: DiskId, pinned: bool) -> bool {
        self.settle();
        let entry = self.index.get_mut(id).or(self.pending.get_mut(&id));
        let Some(entry) = entry else {
            return false;
        };
        entry.pinned = pinned;
        self.board.post(Message::Pin { id, pinned });
        true
    }

    /// Removes an entry: it is not found any more, and its file goes soon, or as soon as it is there. Says whether
    /// there was one.
    pub fn remove(&mut self, id: DiskId) -> bool {
        self.settle();
        if self.index.remove(id).is_some() {
            self.board.doom(id);
            return true;
        }
        self.pending.remove(&id).is_some()
    }

    /// Removes all entries of this tier's identity but those that `stays` names, and says which.
    pub fn retain(&mut self, stays: impl Fn(PromptId) -> bool) -> Vec<PromptId> {
        self.settle();
        let goes = self.known().filter(|(_, entry)| !stays(entry.prompt));
        let goes: Vec<(DiskId, PromptId)> = goes.map(|(id, entry)| (id, entry.prompt)).collect();
        for (id, _) in &goes {
            self.remove(*id);
        }
        goes.into_iter().map(|(_, prompt)| prompt).collect()
    }

    /// All entries, those being saved too.
    fn known(&self) -> impl Iterator<Item = (DiskId, &Entry)> {
        self.index.iter().chain(self.pending.iter().map(|(id, entry)| (*id, entry)))
    }

    /// What the tier has and has done.
    pub fn stats(&mut self) -> DiskStats {
        self.settle();
        let view = self.board.view();
        DiskStats {
            bytes: view.total.bytes,
            files: view.total.files,
            max_bytes: self.config.max_bytes,
            entries: self.index.len(),
            queued_bytes: view.queued_bytes,
            written_today_bytes: view.usage.written_on(usage::day(self.clock.unix_time())),
            day_limit_bytes: self.config.day_limit_bytes,
            written_bytes: view.usage.total_bytes,
            saved: self.saved,
            evicted: self.evicted,
            dropped: self.dropped,
            failed: self.failed,
            read_only: view.read_only,
        }
    }

    /// Whether entries are being saved.
    pub fn is_busy(&mut self) -> bool {
        self.settle();
        !self.pending.is_empty()
    }

    /// Waits until all that was handed over is on disk, for as long as `patience` at most. Says whether
    /// it is; entries that were not finished do not count.
    pub fn flush(&mut self, patience: Duration) -> bool {
        let done = self.board.wait_until_idle(clock::instant() + patience);
        self.settle();
        done
    }

    /// Takes note of what the writer and readers have done since.
    fn settle(&mut self) {
        for outcome in self.board.take_outcomes() {
            match outcome {
                Outcome::Saved { id } => match self.pending.remove(&id) {
                    Some(entry) => {
                        self.drop_superseded(&entry);
                        self.index.insert(id, entry);
                        self.saved += 1;
                    }
                    // It was removed on its way.
                    None => self.board.doom(id),
                },
                Outcome::Lost { id, lost } => self.forget(id, lost),
            }
        }
    }

    /// Removes the entries that `longer` serves as well: those that it begins with, unless they are pinned or it
    /// is so much longer that reading it in their place costs much more.
    fn drop_superseded(&mut self, longer: &Entry) {
        if !longer.can_trim {
            return;
        }
        let tokens = &longer.tokens;
        let superseded = |entry: &Entry| {
            let length = entry.tokens.len();
            let near = length < tokens.len() && length * 2 >= tokens.len();
            near && !entry.pinned && tokens.starts_with(&entry.tokens)
        };
        let entries = self.index.iter().filter(|(_, entry)| superseded(entry));
        for id in entries.map(|(id, _)| id).collect::<Vec<_>>() {
            self.index.remove(id);
            self.board.doom(id);
        }
    }

    fn forget(&mut self, id: DiskId, lost: Lost) {
        if self.pending.remove(&id).is_none() && self.index.remove(id).is_none() {
            return;
        }
        match lost {
            Lost::Evicted => self.evicted += 1,
            Lost::Bad => self.dropped += 1,
            Lost::NotWritten => self.failed += 1,
            Lost::Abandoned | Lost::Vanished => {}
        }
    }
}

impl Drop for DiskTier {
    /// Ends the writer after the write that it is at. What still waits is lost: see [`DiskTier::flush`].
    fn drop(&mut self) {
        self.board.close();
        if let Some(writer) = self.writer.take() {
            // A panic there was logged, and has made the tier read-only.
            let _ = writer.join();
        }
    }
}
