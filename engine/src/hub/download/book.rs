//! All downloads of a process: a few run, the others wait their turn, and everyone can look at all of them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{Code, Error, Result};
use crate::hub::download::Fetching;
use crate::hub::download::progress::{DownloadProgress, DownloadState, FileProgress};
use crate::hub::download::run::{self, Ran};
use crate::hub::download::staging::{Record, staged_bytes, unfinished};
use crate::hub::download::wish::{Stop, Wish};
use crate::hub::manifest::ManifestFile;
use crate::hub::places::Places;
use crate::hub::repo::{RepoId, Revision};

/// The downloads of a process. Its clones are one book. What is unfinished when the process ends is paused in the
/// next one's book.
///
/// An entry goes through these states:
///
/// ```text
/// 1. queued    somebody started or resumed it
/// 2. running   it was its turn
/// 3. done      its model is in place
///    paused    somebody wished so, or the process ended; resumed, it is queued again
///    failed    it stopped by itself; the same
///    (absent)  it was cancelled, or forgotten once done
/// ```
#[derive(Debug, Clone)]
pub struct Downloads(Arc<Book>);

#[derive(Debug)]
struct Book {
    fetching: Fetching,
    at_once: usize,
    entries: Mutex<Vec<Entry>>,
    told: watch::Sender<Vec<DownloadProgress>>,
}

#[derive(Debug)]
struct Entry {
    /// As it was asked for, which finds the entry.
    repo: RepoId,
    progress: DownloadProgress,
    /// What is wished of it while it runs.
    wish: Option<watch::Sender<Wish>>,
}

impl Downloads {
    /// A book of at most `at_once` running downloads, with what earlier processes left unfinished as paused.
    ///
    /// # Errors
    /// `Io` when the folder of models cannot be read.
    pub fn open(fetching: Fetching, at_once: usize) -> Result<Self> {
        let places = &fetching.config.places;
        let left = |(repo, record): (RepoId, Record)| Entry {
            progress: left_over(places, &repo, &record),
            repo,
            wish: None,
        };
        let entries: Vec<Entry> = unfinished(places)?.into_iter().map(left).collect();
        let told = watch::Sender::new(entries.iter().map(|entry| entry.progress.clone()).collect());
        Ok(Self(Arc::new(Book {
            fetching,
            at_once: at_once.max(1),
            entries: Mutex::new(entries),
            told,
        })))
    }

    /// All downloads, in the order in which they were asked for.
    pub fn list(&self) -> Vec<DownloadProgress> {
        self.0.told.borrow().clone()
    }

    /// Snapshots of all downloads, each in place of the one before.
    pub fn watch(&self) -> watch::Receiver<Vec<DownloadProgress>> {
        self.0.told.subscribe()
    }

    /// The download of `repo`, if there is one.
    pub fn get(&self, repo: &RepoId) -> Option<DownloadProgress> {
        let entries = self.0.entries.lock();
        entries.iter().find(|entry| entry.is_of(repo)).map(|entry| entry.progress.clone())
    }

    /// Where the download of `repo` stands; absent if there is none.
    pub fn state(&self, repo: &RepoId) -> DownloadState {
        let entries = self.0.entries.lock();
        let entry = entries.iter().find(|entry| entry.is_of(repo));
        entry.map_or(DownloadState::Absent, |entry| entry.progress.state.clone())
    }

    /// Starts to fetch `repo` at `revision`, goes on with it, or does nothing where it is at that already. Must be
    /// called on a tokio runtime.
    pub fn start(&self, repo: &RepoId, revision: &Revision) {
        let mut entries = self.0.entries.lock();
        match entries.iter_mut().find(|entry| entry.is_of(repo)) {
            Some(entry) => {
                if entry.wish.is_none() {
                    entry.progress.revision = revision.clone();
                }
                entry.queue();
            }
            None => entries.push(Entry {
                repo: repo.clone(),
                progress: DownloadProgress::new(
                    repo.clone(),
                    revision.clone(),
                    DownloadState::Queued,
                ),
                wish: None,
            }),
        }
        self.0.clone().advance(&mut entries);
    }

    /// Has the download of `repo` keep what it has and leave its turn to others.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none.
    pub fn pause(&self, repo: &RepoId) -> Result<()> {
        self.change(repo, |entry| match (&entry.wish, &entry.progress.state) {
            (Some(wish), _) => drop(wish.send_replace(Wish::Pause)),
            (None, DownloadState::Queued) => entry.progress.rest(DownloadState::Paused),
            (None, _) => {}
        })
    }

    /// Has a paused or failed download of `repo` wait for its turn again. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none.
    pub fn resume(&self, repo: &RepoId) -> Result<()> {
        self.change(repo, Entry::queue)
    }

    /// Ends the download of `repo` and removes what it has; of one that is done, only its entry.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none; what stands in the way of removing it.
    pub async fn cancel(&self, repo: &RepoId) -> Result<()> {
        let unfinished = {
            let mut entries = self.0.entries.lock();
            let Some(place) = entries.iter().position(|entry| entry.is_of(repo)) else {
                return Err(unknown(repo));
            };
            if let Some(wish) = &entries[place].wish {
                wish.send_replace(Wish::Cancel);
                return Ok(());
            }
            let entry = entries.remove(place);
            self.0.tell(&entries);
            (entry.progress.state != DownloadState::Done).then_some(entry.progress.repo)
        };
        match unfinished {
            Some(repo) => run::remove(&self.0.fetching, repo).await,
            None => Ok(()),
        }
    }

    fn change(&self, repo: &RepoId, change: impl FnOnce(&mut Entry)) -> Result<()> {
        let mut entries = self.0.entries.lock();
        let entry = entries.iter_mut().find(|entry| entry.is_of(repo));
        change(entry.ok_or_else(|| unknown(repo))?);
        self.0.clone().advance(&mut entries);
        Ok(())
    }
}

impl Entry {
    /// Whether it was asked for as `repo`, or is called so by the hub.
    fn is_of(&self, repo: &RepoId) -> bool {
        self.repo == *repo || self.progress.repo == *repo
    }

    /// Has it wait for its turn, or go on where it was about to stop.
    fn queue(&mut self) {
        match &self.wish {
            Some(wish) => drop(wish.send_replace(Wish::Run)),
            None => self.progress.rest(DownloadState::Queued),
        }
    }
}

impl Book {
    /// Starts whoever's turn it is, and tells where all stand.
    fn advance(self: Arc<Self>, entries: &mut [Entry]) {
        let running = entries.iter().filter(|entry| entry.wish.is_some()).count();
        let queued =
            entries.iter_mut().filter(|entry| entry.progress.state == DownloadState::Queued);
        for entry in queued.take(self.at_once.saturating_sub(running)) {
            let (wish, wished) = watch::channel(Wish::Run);
            entry.wish = Some(wish);
            entry.progress.state = DownloadState::Running;
            tokio::spawn(self.clone().follow(entry.repo.clone(), entry.progress.clone(), wished));
        }
        self.tell(entries);
    }

    fn tell(&self, entries: &[Entry]) {
        self.told.send_replace(entries.iter().map(|entry| entry.progress.clone()).collect());
    }

    /// Runs one download and keeps its entry up to date.
    async fn follow(
        self: Arc<Self>,
        repo: RepoId,
        progress: DownloadProgress,
        wished: watch::Receiver<Wish>,
    ) {
        let revision = progress.revision.clone();
        let (told, mut progress) = watch::channel(progress);
        let fetching = self.fetching.clone();
        let ran = run::run(&fetching, &repo, &revision, Stop::new(wished), &told);
        let mut ran = std::pin::pin!(ran);
        let ended = loop {
            tokio::select! {
                ended = &mut ran => break ended,
                // The sender lives beside this, so something did change.
                _ = progress.changed() => {
                    let now = progress.borrow_and_update().clone();
                    self.update(&repo, |entry| entry.progress = now);
                }
            }
        };
        let last = told.borrow().clone();
        self.update(&repo, |entry| entry.progress = last);
        self.end(&repo, ended).await;
    }

    fn update(&self, repo: &RepoId, update: impl FnOnce(&mut Entry)) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.repo == *repo) {
            update(entry);
        }
        self.tell(&entries);
    }

    /// Notes how a run ended, and has the next one start.
    async fn end(self: Arc<Self>, repo: &RepoId, ended: Result<Ran>) {
        let (wish, staged) = {
            let mut entries = self.entries.lock();
            let entry = entries.iter_mut().find(|entry| entry.repo == *repo);
            let entry = entry.expect("an entry stays in the book while it runs");
            // From here on nobody's wish reaches this run, and a new one would.
            let wish = entry.wish.take().map_or(Wish::Run, |wish| *wish.borrow());
            let state = match (&ended, wish) {
                (Ok(Ran::Installed(_)), _) => DownloadState::Done,
                (Ok(Ran::Stopped), Wish::Run) => DownloadState::Queued,
                (Ok(Ran::Stopped), Wish::Pause | Wish::Cancel) => DownloadState::Paused,
                (Err(error), _) => DownloadState::Failed(error.clone()),
            };
            entry.progress.rest(state);
            (wish, entry.progress.repo.clone())
        };
        if wish == Wish::Cancel {
            self.forget(repo, staged, &ended).await;
        }
        let mut entries = self.entries.lock();
        self.clone().advance(&mut entries);
    }

    /// Removes a cancelled entry with what is staged of it. One that was done meanwhile stays done.
    async fn forget(&self, repo: &RepoId, staged: RepoId, ended: &Result<Ran>) {
        let removed = match ended {
            Ok(Ran::Installed(_)) => Ok(()),
            Ok(Ran::Stopped) | Err(_) => run::remove(&self.fetching, staged).await,
        };
        let mut entries = self.entries.lock();
        match removed {
            Ok(()) => entries.retain(|entry| entry.repo != *repo || entry.wish.is_some()),
            Err(error) => {
                let entry = entries.iter_mut().find(|entry| entry.repo == *repo);
                if let Some(entry) = entry {
                    entry.progress.rest(DownloadState::Failed(error));
                }
            }
        }
    }
}

/// A download that an earlier process left.
fn left_over(places: &Places, repo: &RepoId, record: &Record) -> DownloadProgress {
    let state = DownloadState::Paused;
    let mut progress = DownloadProgress::new(repo.clone(), record.revision.clone(), state);
    progress.commit = Some(record.commit.clone());
    let bytes = staged_bytes(places, repo, record);
    let file = |(file, done_bytes): (&ManifestFile, u64)| FileProgress {
        path: file.path.clone(),
        done_bytes,
        total_bytes: file.bytes,
    };
    progress.files = record.files.iter().zip(bytes).map(file).collect();
    progress.sum();
    progress
}

fn unknown(repo: &RepoId) -> Error {
    Error::new(Code::ModelNotFound, format!("no download of `{repo}` is known"))
        .with_hint("start one, or look at the list")
}
