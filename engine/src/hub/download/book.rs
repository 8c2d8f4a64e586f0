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
use crate::limits;

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

    /// Starts to fetch `repo` at `revision`, goes on with it, looks for an update of what is done, or does nothing where
    /// it is at that already. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// `QueueFull` when the book is.
    pub fn start(&self, repo: &RepoId, revision: &Revision) -> Result<()> {
        let mut entries = self.0.entries.lock();
        let listed = entries.len();
        match entries.iter_mut().find(|entry| entry.is_of(repo)) {
            Some(entry) => {
                if entry.wish.is_none() {
                    entry.progress.revision = revision.clone();
                }
                entry.queue();
            }
            None if listed >= limits::DOWNLOADS_MAX => return Err(full(listed)),
            None => {
                let (repo, revision, state) =
                    (repo.clone(), revision.clone(), DownloadState::Queued);
                let progress = DownloadProgress::new(repo.clone(), revision, state);
                entries.push(Entry { repo, progress, wish: None });
            }
        }
        self.0.clone().advance(&mut entries);
        Ok(())
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
        self.change(repo, |entry| {
            if entry.progress.state != DownloadState::Done {
                entry.queue();
            }
        })
    }

    /// Ends the download of `repo` and removes what it has; of one that is done, only its entry. One that runs is gone
    /// soon after this returns. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// `ModelNotFound` when there is none; what stands in the way of removing it, which then stays as failed.
    pub async fn cancel(&self, repo: &RepoId) -> Result<()> {
        let asked_for = {
            let mut entries = self.0.entries.lock();
            let entry = entries.iter_mut().find(|entry| entry.is_of(repo));
            let entry = entry.ok_or_else(|| unknown(repo))?;
            if let Some(wish) = &entry.wish {
                wish.send_replace(Wish::Cancel);
                return Ok(());
            }
            // Nobody else starts it while it is removed.
            entry.wish = Some(watch::Sender::new(Wish::Cancel));
            entry.repo.clone()
        };
        // In a task of its own, because whoever waits here may leave.
        let (book, is_done) = (self.0.clone(), self.state(repo) == DownloadState::Done);
        let ending = tokio::spawn(async move {
            let ran = if is_done { Past::Installed } else { Past::Stopped };
            book.end(&asked_for, ran).await
        });
        ending.await.unwrap_or_else(|error| {
            Err(Error::new(Code::Internal, format!("the end of a download failed: {error}")))
        })
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

    /// Notes that it runs no more.
    fn rest(&mut self, state: DownloadState) {
        self.wish = None;
        self.progress.rest(state);
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
        let queued = entries
            .iter_mut()
            .filter(|entry| entry.wish.is_none() && entry.progress.state == DownloadState::Queued);
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
        let past = match ended {
            Ok(Ran::Installed(_)) => Past::Installed,
            Ok(Ran::Stopped) => Past::Stopped,
            Err(error) => Past::Failed(error),
        };
        // What could not be removed is told in the entry.
        let _ = self.end(&repo, past).await;
    }

    fn update(&self, repo: &RepoId, update: impl FnOnce(&mut Entry)) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.repo == *repo) {
            update(entry);
        }
        self.tell(&entries);
    }

    /// Notes how a run ended, and has the next one start. A cancelled entry keeps its place until nothing of it is left,
    /// so that nobody starts it meanwhile.
    ///
    /// # Errors
    /// What stands in the way of removing what a cancelled one had.
    async fn end(self: Arc<Self>, repo: &RepoId, past: Past) -> Result<()> {
        let mut removed = None;
        while let Some(staged) = self.settle(repo, &past, removed.as_ref()) {
            removed = Some(run::remove(&self.fetching, staged).await);
        }
        removed.unwrap_or(Ok(()))
    }

    /// Has an entry whose run ended be what it is now. Where this returns the name of what is staged, that must be
    /// removed first.
    fn settle(
        self: &Arc<Self>,
        repo: &RepoId,
        past: &Past,
        removed: Option<&Result<()>>,
    ) -> Option<RepoId> {
        let mut entries = self.entries.lock();
        let place = entries.iter().position(|entry| entry.repo == *repo);
        let place = place.expect("an entry stays in the book until it has ended");
        let entry = &mut entries[place];
        let wish = entry.wish.as_ref().map_or(Wish::Run, |wish| *wish.borrow());
        match next(past, wish, removed) {
            Next::Remove => return Some(entry.progress.repo.clone()),
            Next::Be(state) => entry.rest(state),
            Next::Gone => drop(entries.remove(place)),
        }
        self.clone().advance(&mut entries);
        None
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Past {
    Installed,
    Stopped,
    Failed(Error),
}

/// What becomes of an entry whose run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// It stays and rests so.
    Be(DownloadState),
    /// What it has is removed first.
    Remove,
    /// It leaves the book.
    Gone,
}

/// Decides that, by what is wished of it now and by what came of removing what it had, if that was tried.
fn next(past: &Past, wish: Wish, removed: Option<&Result<()>>) -> Next {
    match (past, wish, removed) {
        (_, _, Some(Err(error))) => Next::Be(DownloadState::Failed(error.clone())),
        // Somebody started it again while it was removed.
        (_, Wish::Run, Some(Ok(()))) => Next::Be(DownloadState::Queued),
        (_, _, Some(Ok(()))) | (Past::Installed, Wish::Cancel, None) => Next::Gone,
        (Past::Installed, _, None) => Next::Be(DownloadState::Done),
        (_, Wish::Cancel, None) => Next::Remove,
        (Past::Stopped, Wish::Run, None) => Next::Be(DownloadState::Queued),
        (Past::Stopped, Wish::Pause, None) => Next::Be(DownloadState::Paused),
        (Past::Failed(error), _, None) => Next::Be(DownloadState::Failed(error.clone())),
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

fn full(entries: usize) -> Error {
    Error::new(Code::QueueFull, format!("the list of downloads is full: it has {entries}"))
        .with_hint("cancel some, or clear away those that are done")
}

fn unknown(repo: &RepoId) -> Error {
    Error::new(Code::ModelNotFound, format!("no download of `{repo}` is known"))
        .with_hint("start one, or look at the list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_download_follows_from_its_end_and_from_what_is_wished_of_it() {
        let error = Error::new(Code::Io, "it failed");
        let failed = || Next::Be(DownloadState::Failed(error.clone()));
        let past = Past::Failed(error.clone());
        let (ok, bad) = (Ok(()), Err(error.clone()));
        for (past, wish, removed, expected) in [
            (&Past::Installed, Wish::Run, None, Next::Be(DownloadState::Done)),
            (&Past::Installed, Wish::Pause, None, Next::Be(DownloadState::Done)),
            (&Past::Installed, Wish::Cancel, None, Next::Gone),
            (&Past::Stopped, Wish::Run, None, Next::Be(DownloadState::Queued)),
            (&Past::Stopped, Wish::Pause, None, Next::Be(DownloadState::Paused)),
            (&Past::Stopped, Wish::Cancel, None, Next::Remove),
            (&Past::Stopped, Wish::Cancel, Some(&ok), Next::Gone),
            (&Past::Stopped, Wish::Run, Some(&ok), Next::Be(DownloadState::Queued)),
            (&Past::Stopped, Wish::Cancel, Some(&bad), failed()),
            (&past, Wish::Run, None, failed()),
            (&past, Wish::Pause, None, failed()),
            (&past, Wish::Cancel, None, Next::Remove),
        ] {
            assert_eq!(next(past, wish, removed), expected, "{past:?}, {wish:?}, {removed:?}");
        }
    }
}
