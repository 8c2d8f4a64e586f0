//! The library of a process that runs on: one scan at a time on a blocking thread, and for everyone else what the
//! last one found, without waiting.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::clock::{Clock, Time};
use crate::error::{Code, Error, Result};
use crate::hub::library::{Changes, Entry, Library, Removed, State, find_among};
use crate::hub::places::Places;
use crate::limits;

/// The time in which names that are not known have the places looked at once.
const PERIOD: Duration = Duration::from_millis(limits::LIBRARY_LOOK_MS);

/// What the last scan found.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The entries by their ids.
    pub entries: Vec<Entry>,
    /// Counts the scans that found something new.
    pub version: u64,
    /// What the last of these found.
    pub changes: Changes,
}

impl View {
    /// The entry called `name`: see [`Library::find`].
    ///
    /// # Errors
    /// `ModelNotFound` naming those that may have been meant.
    pub fn find(&self, name: &str) -> Result<&Entry> {
        find_among(name, &self.entries.iter().collect::<Vec<_>>())
    }

    /// The entry with that whole id.
    pub fn entry(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// Those that can be served.
    pub fn ready(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.state == State::Ready)
    }
}

/// See the module's words.
#[derive(Debug)]
pub(super) struct Shelf {
    library: Mutex<Library>,
    view: RwLock<Arc<View>>,
    /// When the last scan began. Held while one runs.
    scanned: tokio::sync::Mutex<Option<Time>>,
    clock: Clock,
    changes: watch::Sender<u64>,
}

impl Shelf {
    /// A shelf that nobody has looked at. Whatever changes on it is told to `changes`.
    pub(super) fn new(places: Places, clock: Clock, changes: watch::Sender<u64>) -> Self {
        Self {
            library: Mutex::new(Library::new(places)),
            view: RwLock::default(),
            scanned: tokio::sync::Mutex::default(),
            clock,
            changes,
        }
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Looks at the places.
    pub(super) async fn rescan(self: &Arc<Self>) -> Result<Changes> {
        let mut scanned = self.scanned.lock().await;
        *scanned = Some(self.clock.now());
        self.scan().await
    }

    /// Looks at the places unless that began a moment ago. Whether they were looked at since the call.
    pub(super) async fn refresh(self: &Arc<Self>) -> bool {
        let asked = self.clock.now();
        let mut scanned = self.scanned.lock().await;
        match *scanned {
            Some(began) if began >= asked => true,
            Some(began) if asked < began + PERIOD => false,
            Some(_) | None => {
                *scanned = Some(self.clock.now());
                self.scan().await.is_ok()
            }
        }
    }

    async fn scan(self: &Arc<Self>) -> Result<Changes> {
        let shelf = Arc::clone(self);
        let scanned = spawn_blocking(move || {
            let mut library = shelf.library.lock();
            let changes = library.rescan();
            shelf.publish(&library, &changes);
            changes
        });
        scanned.await.map_err(|panic| {
            Error::new(Code::Internal, format!("failed to look at the models on disk: {panic}"))
        })
    }

    /// Takes the entry with the whole id `id` off the disk. It is in no view from the moment in which `check` is
    /// asked whether its directory is free; if that refuses, it is back in the next one. This blocks.
    pub(super) fn remove(
        &self,
        id: &str,
        check: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Removed> {
        let mut library = self.library.lock();
        let directory = library.entries().find(|entry| entry.id == id);
        let removed = match directory.map(|entry| entry.directory.clone()) {
            None => library.remove(id, &|_| false),
            Some(directory) => {
                self.hide(id);
                check(&directory).and_then(|()| library.remove(id, &|_| false))
            }
        };
        let gone = if removed.is_ok() { vec![id.to_owned()] } else { Vec::new() };
        self.publish(&library, &Changes { removed: gone, ..Changes::default() });
        removed
    }

    fn hide(&self, id: &str) {
        let mut view = View::clone(&self.view());
        view.entries.retain(|entry| entry.id != id);
        *self.view.write() = Arc::new(view);
    }

    fn publish(&self, library: &Library, changes: &Changes) {
        let before = self.view();
        let entries = library.entries().cloned().collect();
        let view = match changes.is_empty() {
            true => View { entries, ..View::clone(&before) },
            false => View { entries, version: before.version + 1, changes: changes.clone() },
        };
        *self.view.write() = Arc::new(view);
        if !changes.is_empty() {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}
