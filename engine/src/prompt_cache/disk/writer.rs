//! The writer: the one thread that changes files.
//!
//! It takes messages in the order in which they were posted and does what else is left to do between two
//! of them. It ends with the tier, and removes what it has not finished.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::board::{Board, Chores, Lost, Message, Outcome, Work};
use super::files::{self, NewFile};
use super::folder::Folder;
use super::format::{self, Checksum, DiskId, Layout};
use super::usage;
use super::{DiskConfig, Manifest};
use crate::clock::Clock;
use crate::error::{Code, Error, Result};

/// A file that is being written.
#[derive(Debug)]
struct Draft {
    file: Box<dyn NewFile>,
    path: PathBuf,
    layout: Layout,
    checksums: Vec<u128>,
    written_bytes: u64,
    created_at: Duration,
    pinned: bool,
    /// The day on whose account its bytes are.
    entered_on: Option<u64>,
}

/// Why an entry was not written.
#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(&'static str),
}

pub(super) struct Writer {
    folder: Folder,
    max_bytes: u64,
    day_limit_bytes: Option<u64>,
    clock: Clock,
    board: Arc<Board>,
    drafts: HashMap<DiskId, Draft>,
}

impl Writer {
    pub(super) fn new(
        folder: Folder,
        config: &DiskConfig,
        clock: Clock,
        board: Arc<Board>,
    ) -> Self {
        let (max_bytes, day_limit_bytes) = (config.max_bytes, config.day_limit_bytes);
        let drafts = HashMap::new();
        Self { folder, max_bytes, day_limit_bytes, clock, board, drafts }
    }

    pub(super) fn start(self) -> Result<JoinHandle<()>> {
        let thread = thread::Builder::new().name("slipstream-disk".to_owned());
        thread.spawn(|| self.run()).map_err(|error| {
            Error::new(Code::Io, format!("failed to start the thread that saves prompts: {error}"))
        })
    }

    fn run(mut self) {
        loop {
            match self.board.next_work() {
                Work::Chores(chores) => self.do_chores(chores),
                Work::Message(message) => self.handle(message),
                Work::Stop => break,
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Begin { id, manifest, created_at } => {
                let begun = self.begin(id, &manifest, created_at);
                self.conclude(id, begun);
            }
            Message::Tensor { id, bytes } => {
                let written = self.write_tensor(id, &bytes);
                self.board.wrote(id, bytes.len() as u64);
                self.conclude(id, written);
            }
            Message::Pin { id, pinned } => self.pin(id, pinned),
            Message::Finish { id } => {
                let finished = self.finish(id);
                self.board.release(id);
                self.conclude(id, finished);
            }
            Message::Abandon { id } => {
                self.board.release(id);
                self.lose(id, Lost::Abandoned);
            }
        }
    }

    /// Makes room, enters the bytes into the account, and writes the header.
    fn begin(
        &mut self,
        id: DiskId,
        manifest: &Manifest,
        created_at: Duration,
    ) -> Result<(), Unwritten> {
        if self.board.is_read_only() {
            return Err(Unwritten::Refused("nothing is written any more"));
        }
        let identity = self.folder.identity();
        let header = format::encode_header(manifest, identity, id, created_at)
            .map_err(|_| Unwritten::Refused("it cannot be described"))?;
        self.prepare(id, header.layout, created_at)?;
        match self.drafts.get_mut(&id) {
            Some(draft) => Ok(draft.write(&header.bytes)?),
            None => Ok(()),
        }
    }

    /// Has the entry's bytes in the account and an empty file of all its bytes in the folder, so that
    /// from now on every process counts them.
    fn prepare(
        &mut self,
        id: DiskId,
        layout: Layout,
        created_at: Duration,
    ) -> Result<(), Unwritten> {
        self.folder.create()?;
        self.apply_chores();
        let _lock = self.folder.lock()?;
        let day = usage::day(self.clock.unix_time());
        let mut usage = self.folder.usage().unwrap_or_else(|| self.board.usage());
        if !usage.allows(layout.file_bytes, day, self.day_limit_bytes) {
            self.board.set_usage(usage);
            return Err(Unwritten::Refused("the bytes of this day are spent"));
        }
        self.make_room(layout.file_bytes)?;
        let path = self.folder.unfinished_path(id);
        let file = self.folder.files().create(&path)?;
        let draft = Draft {
            file,
            path,
            layout,
            checksums: Vec::new(),
            written_bytes: 0,
            created_at,
            pinned: false,
            entered_on: None,
        };
        let draft = self.drafts.entry(id).insert_entry(draft).into_mut();
        draft.file.set_length(layout.file_bytes)?;
        usage.enter(layout.file_bytes, day);
        self.folder.store_usage(usage)?;
        draft.entered_on = Some(day);
        self.board.accounted(id, usage);
        Ok(())
    }

    fn make_room(&self, bytes: u64) -> Result<(), Unwritten> {
        let room = self.folder.make_room(bytes, self.max_bytes)?;
        self.board.set_total(room.total);
        for id in room.evicted {
            self.board.report(Outcome::Lost { id, lost: Lost::Evicted });
        }
        if room.enough { Ok(()) } else { Err(Unwritten::Refused("the folder has no room")) }
    }

    fn write_tensor(&mut self, id: DiskId, bytes: &[u8]) -> Result<(), Unwritten> {
        // What belongs to an entry that is lost already is of no use.
        let Some(draft) = self.drafts.get_mut(&id) else {
            return Ok(());
        };
        let zeros = &format::ZEROS[..format::padding(bytes.len() as u64)];
        let mut checksum = Checksum::of(id);
        checksum.update(bytes);
        checksum.update(zeros);
        draft.checksums.push(checksum.value());
        draft.write(bytes)?;
        Ok(draft.write(zeros)?)
    }

    /// Writes the trailer and puts the file in place.
    fn finish(&mut self, id: DiskId) -> Result<(), Unwritten> {
        let Some(draft) = self.drafts.get_mut(&id) else {
            return Ok(());
        };
        let file_bytes = draft.layout.file_bytes;
        let trailer = format::encode_trailer(id, &draft.checksums, file_bytes);
        draft.write(&trailer)?;
        draft.file.set_used_at(draft.created_at)?;
        draft.file.sync()?;
        if draft.pinned {
            // Before the entry can be found and evicted.
            log_unpinned(id, self.folder.set_pinned(id, true));
        }
        self.folder.files().rename(&draft.path, &self.folder.entry_path(id))?;
        self.drafts.remove(&id);
        self.folder.files().sync_folder(&self.folder.own_folder())?;
        self.board.report(Outcome::Saved { id });
        self.refresh_total();
        Ok(())
    }

    /// Pins or unpins an entry that is there, or will be.
    fn pin(&mut self, id: DiskId, pinned: bool) {
        if let Some(draft) = self.drafts.get_mut(&id) {
            draft.pinned = pinned;
            return;
        }
        let set = self.folder.lock().and_then(|_lock| {
            // With the lock nobody evicts it in between.
            let is_there = self.folder.entry_path(id).exists();
            if is_there { self.folder.set_pinned(id, pinned) } else { Ok(()) }
        });
        log_unpinned(id, set);
    }

    /// Gives an entry up whose writing failed, and all writing if the disk takes no more.
    fn conclude(&mut self, id: DiskId, result: Result<(), Unwritten>) {
        let Err(unwritten) = result else {
            return;
        };
        self.lose(id, Lost::NotWritten);
        match unwritten {
            Unwritten::Io(error) if files::is_final(&error) => self.stop_writing(&error),
            other => tracing::info!(%id, reason = %other, "a prompt was not saved"),
        }
    }

    fn stop_writing(&mut self, error: &io::Error) {
        let folder = self.folder.own_folder();
        if self.board.set_read_only(&error.to_string()) {
            tracing::warn!(folder = %folder.display(), %error,
                "prompts are not saved any more; those that are there still serve");
        }
        for id in self.drafts.keys().copied().collect::<Vec<_>>() {
            self.lose(id, Lost::NotWritten);
        }
    }

    /// Removes what there is of an entry that will not be finished, and corrects the account.
    fn lose(&mut self, id: DiskId, lost: Lost) {
        if let Some(draft) = self.drafts.remove(&id) {
            self.folder.remove(&draft.path);
            if draft.pinned {
                self.folder.remove(&self.folder.pin_path(id));
            }
            let unwritten = draft.layout.file_bytes - draft.written_bytes;
            let corrected = draft.entered_on.map_or(Ok(()), |day| self.take_back(day, unwritten));
            if let Err(error) = corrected {
                tracing::debug!(%error, "the account of bytes written says too much");
            }
        }
        self.board.report(Outcome::Lost { id, lost });
        self.refresh_total();
    }

    fn take_back(&self, day: u64, bytes: u64) -> io::Result<()> {
        let _lock = self.folder.lock()?;
        let mut usage = self.folder.usage().unwrap_or_else(|| self.board.usage());
        usage.take_back(bytes, day);
        self.folder.store_usage(usage)?;
        self.board.set_usage(usage);
        Ok(())
    }

    fn apply_chores(&mut self) {
        let chores = self.board.take_chores();
        self.do_chores(chores);
    }

    fn do_chores(&mut self, chores: Chores) {
        for (id, used_at) in chores.touched {
            // It may be gone, or on a disk that cannot be written: then it is only older than it could be.
            let _ = self.folder.files().set_used_at(&self.folder.entry_path(id), used_at);
        }
        let removed = !chores.doomed.is_empty();
        for id in chores.doomed {
            self.folder.remove_entry(&self.folder.entry_path(id));
        }
        if removed {
            self.refresh_total();
        }
    }

    /// Tells the board what the files come to; unless that cannot be known now.
    fn refresh_total(&self) {
        if let Ok(total) = self.folder.total() {
            self.board.set_total(total);
        }
    }
}

/// An entry serves as well if its pin cannot be changed on disk; only the next start will not know.
fn log_unpinned(id: DiskId, set: io::Result<()>) {
    if let Err(error) = set {
        tracing::warn!(%id, %error, "failed to pin or unpin a cached prompt on disk");
    }
}

impl Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // A write that fails may have gone any part of the way.
        self.written_bytes += bytes.len() as u64;
        self.file.write(bytes)
    }
}

impl Drop for Writer {
    /// However the thread ends, nobody waits for it, and nothing unfinished stays.
    fn drop(&mut self) {
        for id in self.drafts.keys().copied().collect::<Vec<_>>() {
            self.lose(id, Lost::Abandoned);
        }
        if thread::panicking() {
            self.board.set_read_only("the thread that saves prompts failed");
        }
        self.board.writer_ended();
    }
}
