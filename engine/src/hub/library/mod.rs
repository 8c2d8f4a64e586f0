//! The models on this machine: which there are, what they are, and whether they can be served.
//!
//! An **entry** is one model in one place: a folder of ours, or one snapshot in a cache of Hugging Face's tools. It
//! is told from `config.json`, the headers of its safetensors and its small JSON files; tensors are never read.
//! A **stamp** is what the file system says of an entry's files; an entry whose stamp stayed is not read again.
//!
//! Invariants: an entry is [`State::Ready`] only when every file that the loader needs is there and as long as it
//! says it is (the loader checks shards with the same code). What is on its way or being removed is never listed:
//! it lies under names that begin with a dot, or end in `.partial` or `.replaced`. Nothing outside a place is ever removed.

mod candidates;
mod entry;
mod find;
mod inspect;
mod removal;
mod stamp;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

pub use self::entry::{Capabilities, Entry, Facts, Origin, State};
pub(crate) use self::find::find as find_among;
pub use self::inspect::inspect;
pub use self::removal::Removed;

use self::candidates::Candidate;
use self::stamp::Stamp;
use crate::error::{Code, Error, Result};
use crate::hub::places::Places;

/// Threads that read entries at most: more wait for the same disk.
const READERS_MAX: usize = 8;

/// What is known of the models in some places.
#[derive(Debug)]
pub struct Library {
    places: Places,
    known: BTreeMap<String, Known>,
}

#[derive(Debug, Clone)]
struct Known {
    stamp: Stamp,
    entry: Entry,
}

/// What a scan found to be otherwise than the one before it, by the entries' ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// New ones.
    pub added: Vec<String>,
    /// Those that are gone.
    pub removed: Vec<String>,
    /// Those whose files are other ones.
    pub changed: Vec<String>,
}

impl Changes {
    /// Whether everything is as it was.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl Library {
    /// A library that has not looked at its places yet: [`Library::rescan`] does.
    pub fn new(places: Places) -> Self {
        Self { places, known: BTreeMap::new() }
    }

    /// The library of `places` as it is now.
    pub fn open(places: Places) -> Self {
        let mut library = Self::new(places);
        library.rescan();
        library
    }

    /// Where it looks.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Looks again. Only entries whose stamps changed are read; a place that cannot be listed has no entries.
    pub fn rescan(&mut self) -> Changes {
        let candidates = candidates::in_places(&self.places);
        let found = read_all(&candidates, &self.known);
        let changes = changes(&self.known, &found);
        self.known = found;
        changes
    }

    /// The entries by their ids.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.known.values().map(|known| &known.entry)
    }

    /// The entry called `name`: by its id, else by an id or short name that only one entry has, whatever its case.
    ///
    /// # Errors
    /// `ModelNotFound` naming those that may have been meant.
    pub fn find(&self, name: &str) -> Result<&Entry> {
        find::find(name, &self.entries().collect::<Vec<_>>())
    }

    /// Removes the entry called `name`, which must be its whole id, from the disk. A folder of ours is renamed
    /// before it is deleted, so that half of it is never listed; of a snapshot in a cache those files go that no
    /// other snapshot has. `in_use` says whether somebody holds a directory.
    ///
    /// # Errors
    /// `ModelNotFound` when no entry has that id; `InUse`; `InvalidRequest` when it lies outside its place;
    /// `Io` when the system refuses.
    pub fn remove(&mut self, id: &str, in_use: &dyn Fn(&Path) -> bool) -> Result<Removed> {
        let Some(known) = self.known.get(id) else {
            return Err(self.find(id).map_or_else(|error| error, |entry| meant(id, entry)));
        };
        let entry = &known.entry;
        if in_use(&entry.directory) {
            return Err(
                Error::new(Code::InUse, format!("`{id}` is in use")).with_hint("unload it first")
            );
        }
        let removed = removal::remove(entry, &self.places)?;
        self.known.remove(id);
        Ok(removed)
    }
}

fn meant(id: &str, entry: &Entry) -> Error {
    Error::new(Code::ModelNotFound, format!("no model has the id `{id}`"))
        .with_hint(format!("did you mean `{}`?", entry.id))
}

/// Reads the candidates that are new or changed, on several threads, and keeps what is known of the others.
fn read_all(candidates: &[Candidate], known: &BTreeMap<String, Known>) -> BTreeMap<String, Known> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(candidate) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(one) = read(candidate, known.get(&candidate.id)) {
                found.lock().insert(candidate.id.clone(), one);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores.min(READERS_MAX).min(candidates.len()) {
            scope.spawn(work);
        }
    });
    found.into_inner()
}

/// What there is at a candidate; `None` where there is nothing of a model, or no longer.
fn read(candidate: &Candidate, known: Option<&Known>) -> Option<Known> {
    let stamp = Stamp::of(&candidate.directory)?;
    if let Some(known) = known.filter(|known| known.is_still(candidate, &stamp)) {
        return Some(known.clone());
    }
    let entry = inspect::entry(candidate, &stamp)?;
    Some(Known { stamp, entry })
}

impl Known {
    fn is_still(&self, candidate: &Candidate, stamp: &Stamp) -> bool {
        self.stamp == *stamp
            && self.entry.directory == candidate.directory
            && self.entry.commit == candidate.commit
    }
}

fn changes(before: &BTreeMap<String, Known>, now: &BTreeMap<String, Known>) -> Changes {
    let mut changes = Changes::default();
    for (id, known) in now {
        match before.get(id) {
            None => changes.added.push(id.clone()),
            Some(old)
                if old.stamp != known.stamp || old.entry.directory != known.entry.directory =>
            {
                changes.changed.push(id.clone());
            }
            Some(_) => {}
        }
    }
    let gone = before.keys().filter(|id| !now.contains_key(*id));
    changes.removed = gone.cloned().collect();
    changes
}

/// A path as an entry shows it, for messages.
fn shown(path: &Path) -> String {
    format!("`{}`", path.display())
}
