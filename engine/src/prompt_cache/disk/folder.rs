//! The folder: names, what is in it, and what has to go.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::files::{self, Files};
use super::format::DiskId;
use super::index::Entry;
use super::reader::{Unreadable, read_header};
use super::usage::Usage;
use crate::error::{Code, Error, Result};

const LOCK_FILE: &str = ".lock";
const USAGE_FILE: &str = "usage.json";
const EXTENSION: &str = ".slipcache";
const UNFINISHED_EXTENSION: &str = ".slipcache.tmp";
const PIN_EXTENSION: &str = ".pin";
const IDENTITY_DIGITS: std::ops::RangeInclusive<usize> = 8..=128;

/// What all files of the folder come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Total {
    pub files: usize,
    pub bytes: u64,
}

/// One file of the folder that a tier wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    path: PathBuf,
    id: DiskId,
    /// Of this tier's identity.
    own: bool,
    unfinished: bool,
    pinned: bool,
    bytes: u64,
    used_at: Duration,
}

/// What opening found.
#[derive(Debug)]
pub(super) struct Opened {
    pub entries: Vec<(DiskId, Entry)>,
    pub usage: Usage,
    pub total: Total,
    /// Own entries that went to make room.
    pub evicted: u64,
    /// Own entries that were none.
    pub dropped: u64,
}

/// The folder, of whose entries those of one identity are this tier's own.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    root: PathBuf,
    identity: String,
    files: Arc<dyn Files>,
}

impl Folder {
    pub(super) fn open(root: &Path, identity: &str, files: Arc<dyn Files>) -> Result<Self> {
        if !is_identity(identity) {
            let message = format!("`{identity}` is no fingerprint for cached prompts");
            return Err(Error::new(Code::Internal, message));
        }
        let folder = Self { root: root.to_owned(), identity: identity.to_owned(), files };
        let made = folder.create();
        made.map_err(|error| io_error("make", &folder.own_folder(), &error))?;
        Ok(folder)
    }

    /// Makes the folder, if somebody removed it.
    pub(super) fn create(&self) -> io::Result<()> {
        let own = self.own_folder();
        if !own.is_dir() {
            self.files.create_folder(&own)?;
            self.files.sync_folder(&self.root)?;
        }
        Ok(())
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) fn files(&self) -> &dyn Files {
        &*self.files
    }

    pub(super) fn own_folder(&self) -> PathBuf {
        self.root.join(&self.identity)
    }

    pub(super) fn entry_path(&self, id: DiskId) -> PathBuf {
        self.own_folder().join(format!("{id}{EXTENSION}"))
    }

    pub(super) fn pin_path(&self, id: DiskId) -> PathBuf {
        self.own_folder().join(format!("{id}{PIN_EXTENSION}"))
    }

    pub(super) fn unfinished_path(&self, id: DiskId) -> PathBuf {
        self.own_folder().join(format!("{id}{UNFINISHED_EXTENSION}"))
    }

    /// Keeps other processes from changing the account and the set of files while the lock lives.
    pub(super) fn lock(&self) -> io::Result<File> {
        files::lock(&self.root.join(LOCK_FILE))
    }

    /// Clears and reads the folder: see [`super::DiskTier::open`].
    pub(super) fn read(&self, max_bytes: u64) -> Result<Opened> {
        // On a disk that cannot be written there is no lock, and nobody to hold it against.
        let lock = self.lock();
        self.reap().map_err(|error| io_error("read", &self.root, &error))?;
        let room = self.make_room(0, max_bytes);
        let room = room.map_err(|error| io_error("read", &self.root, &error))?;
        let usage = self.usage().unwrap_or_default();
        drop(lock);
        let (entries, dropped) =
            self.read_entries().map_err(|error| io_error("read", &self.root, &error))?;
        let total = self.total().map_err(|error| io_error("read", &self.root, &error))?;
        Ok(Opened { entries, usage, total, evicted: room.evicted.len() as u64, dropped })
    }

    /// Pins or unpins an entry of this tier's identity.
    pub(super) fn set_pinned(&self, id: DiskId, pinned: bool) -> io::Result<()> {
        let path = self.pin_path(id);
        let (changed, already) = match pinned {
            true => (self.files.create(&path).map(drop), ErrorKind::AlreadyExists),
            false => (self.files.remove(&path), ErrorKind::NotFound),
        };
        match changed {
            Err(error) if error.kind() == already => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.files.sync_folder(&self.own_folder()),
        }
    }

    /// Removes what writers left unfinished that are gone, and pins of no entry, of all identities.
    fn reap(&self) -> io::Result<()> {
        for seen in self.scan()?.iter().filter(|seen| seen.unfinished) {
            if files::is_orphan(&seen.path) {
                tracing::info!(path = %seen.path.display(), "an unfinished cached prompt was removed");
                self.remove(&seen.path);
            }
        }
        self.identities()?.iter().try_for_each(|folder| self.reap_pins(folder))
    }

    fn reap_pins(&self, folder: &Path) -> io::Result<()> {
        for (id, _) in scan_names(folder)?.iter().filter(|(_, kind)| *kind == Kind::Pin) {
            let path = |kind: Kind| folder.join(format!("{id}{}", kind.extension()));
            // In this order: what is unfinished now may have its final name a moment later.
            let is_stray =
                ![Kind::Unfinished, Kind::Entry].into_iter().any(|kind| path(kind).exists());
            if is_stray {
                self.remove(&path(Kind::Pin));
            }
        }
        Ok(())
    }

    /// The headers of all own entries, and how many files were none and are gone.
    fn read_entries(&self) -> io::Result<(Vec<(DiskId, Entry)>, u64)> {
        let (mut entries, mut dropped) = (Vec::new(), 0);
        for seen in self.scan()?.iter().filter(|seen| seen.own && !seen.unfinished) {
            match self.read_entry(seen) {
                Ok(entry) => entries.push((seen.id, entry)),
                Err(Unreadable::Io(error)) if error.kind() == ErrorKind::NotFound => {}
                Err(unreadable) => {
                    tracing::warn!(path = %seen.path.display(), reason = %unreadable,
                        "a cached prompt was dropped");
                    dropped += 1;
                    if matches!(unreadable, Unreadable::Damage(_)) {
                        self.remove_entry(&seen.path);
                    }
                }
            }
        }
        Ok((entries, dropped))
    }

    fn read_entry(&self, seen: &Seen) -> Result<Entry, Unreadable> {
        let mut file = File::open(&seen.path)?;
        let header = read_header(&mut file, seen.id, &self.identity)?;
        let created = Entry::new(&header.manifest, seen.bytes, header.created_at);
        Ok(Entry { used_at: seen.used_at, pinned: seen.pinned, ..created })
    }

    /// Removes the entries used least recently, of whatever identity, until `bytes` more fit into
    /// `max_bytes`. None that is pinned goes for others, so if all others are not enough none goes.
    pub(super) fn make_room(&self, bytes: u64, max_bytes: u64) -> io::Result<Room> {
        let seen = self.scan()?;
        let plan = plan_evictions(&seen, bytes, max_bytes);
        let mut evicted = Vec::new();
        for entry in &plan {
            if self.remove_entry(&entry.path) && entry.own {
                evicted.push(entry.id);
            }
        }
        let total = if plan.is_empty() { total(&seen) } else { self.total()? };
        let enough = total.bytes.saturating_add(bytes) <= max_bytes;
        Ok(Room { evicted, total, enough })
    }

    pub(super) fn total(&self) -> io::Result<Total> {
        Ok(total(&self.scan()?))
    }

    /// Removes an entry's file and its pin; says whether the file is gone.
    pub(super) fn remove_entry(&self, path: &Path) -> bool {
        let gone = self.remove(path);
        let pin = path.with_extension(&PIN_EXTENSION[1..]);
        if gone && pin.exists() {
            self.remove(&pin);
        }
        gone
    }

    /// Removes a file; says whether it is gone.
    pub(super) fn remove(&self, path: &Path) -> bool {
        match self.files.remove(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "failed to remove a cached prompt");
                false
            }
        }
    }

    /// The account; none if there is none that can be read.
    pub(super) fn usage(&self) -> Option<Usage> {
        let path = self.root.join(USAGE_FILE);
        let usage = Usage::parse(&fs::read(&path).ok()?);
        if usage.is_none() {
            tracing::warn!(path = %path.display(), "the account of bytes written is damaged");
        }
        usage
    }

    /// Replaces the account in one step. The caller has the lock.
    pub(super) fn store_usage(&self, usage: Usage) -> io::Result<()> {
        let path = self.root.join(USAGE_FILE);
        let unfinished = self.root.join(format!("{USAGE_FILE}.tmp"));
        match self.files.remove(&unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = self.files.create(&unfinished)?;
        file.write(&usage.to_json()?)?;
        file.sync()?;
        self.files.rename(&unfinished, &path)?;
        self.files.sync_folder(&self.root)
    }

    /// All files that tiers wrote. Whatever else is in the folder is nobody's business here.
    fn scan(&self) -> io::Result<Vec<Seen>> {
        let (mut seen, own) = (Vec::new(), self.own_folder());
        for folder in self.identities()? {
            scan_identity(&folder, folder == own, &mut seen)?;
        }
        Ok(seen)
    }

    /// The folders of all identities.
    fn identities(&self) -> io::Result<Vec<PathBuf>> {
        let mut identities = Vec::new();
        for folder in fs::read_dir(&self.root)? {
            let folder = folder?;
            let named = folder.file_name().to_str().is_some_and(is_identity);
            if named && folder.file_type().is_ok_and(|kind| kind.is_dir()) {
                identities.push(folder.path());
            }
        }
        Ok(identities)
    }
}

/// What making room came to.
#[derive(Debug)]
pub(super) struct Room {
    /// Own entries that are gone.
    pub evicted: Vec<DiskId>,
    pub total: Total,
    /// Whether there is room now.
    pub enough: bool,
}

fn is_identity(name: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    IDENTITY_DIGITS.contains(&name.len()) && name.bytes().all(digit)
}

/// What a file in the folder of an identity is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Entry,
    Unfinished,
    Pin,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Self::Entry => EXTENSION,
            Self::Unfinished => UNFINISHED_EXTENSION,
            Self::Pin => PIN_EXTENSION,
        }
    }
}

/// Adds the entries in `folder`; those that vanish meanwhile are left out.
fn scan_identity(folder: &Path, own: bool, seen: &mut Vec<Seen>) -> io::Result<()> {
    let names = scan_names(folder)?;
    let pins = names.iter().filter(|(_, kind)| *kind == Kind::Pin).map(|(id, _)| *id);
    let pins: HashSet<DiskId> = pins.collect();
    for (id, kind) in names.into_iter().filter(|(_, kind)| *kind != Kind::Pin) {
        let path = folder.join(format!("{id}{}", kind.extension()));
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_file() {
            let used_at = metadata.modified().ok();
            let used_at = used_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let (bytes, used_at) = (metadata.len(), used_at.unwrap_or_default());
            let (unfinished, pinned) = (kind == Kind::Unfinished, pins.contains(&id));
            seen.push(Seen { path, id, own, unfinished, pinned, bytes, used_at });
        }
    }
    Ok(())
}

fn scan_names(folder: &Path) -> io::Result<Vec<(DiskId, Kind)>> {
    let mut names = Vec::new();
    for file in fs::read_dir(folder)? {
        names.extend(file?.file_name().to_str().and_then(parse_name));
    }
    Ok(names)
}

/// The entry that a file name names, and what the file is of it.
fn parse_name(name: &str) -> Option<(DiskId, Kind)> {
    [Kind::Unfinished, Kind::Entry, Kind::Pin].into_iter().find_map(|kind| {
        let id = name.strip_suffix(kind.extension())?;
        Some((id.parse().ok()?, kind))
    })
}

fn total(seen: &[Seen]) -> Total {
    Total { files: seen.len(), bytes: seen.iter().map(|seen| seen.bytes).sum() }
}

/// Which entries have to go so that `bytes` more fit: those used least recently. With nothing to come it is the
/// cap that was lowered, and then pinned ones go after all others.
fn plan_evictions(seen: &[Seen], bytes: u64, max_bytes: u64) -> Vec<&Seen> {
    let may_go = |seen: &&Seen| !seen.unfinished && (bytes == 0 || !seen.pinned);
    let mut entries: Vec<&Seen> = seen.iter().filter(may_go).collect();
    entries.sort_by_key(|seen| (seen.pinned, seen.used_at, seen.id));
    let mut left = total(seen).bytes.saturating_add(bytes);
    let gain: u64 = entries.iter().map(|seen| seen.bytes).sum();
    if bytes > 0 && left - gain > max_bytes {
        return Vec::new();
    }
    let goes = |seen: &&&Seen| {
        let over = left > max_bytes;
        left -= if over { seen.bytes } else { 0 };
        over
    };
    entries.iter().take_while(goes).copied().collect()
}

fn io_error(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(Code::Io, format!("failed to {verb} the prompt cache `{}`: {error}", path.display()))
}
