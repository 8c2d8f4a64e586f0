//! Fetching a model from the hub: its files, several at once, into a staging folder, and in one rename into place.
//!
//! 1. The files of the revision are listed at the commit that it stands for; everything is fetched at that commit.
//! 2. [`choose`] takes those that a model is read from and refuses paths that could lead elsewhere.
//! 3. What is there already stays: files of the model that is in place, and what an earlier attempt staged. Room for
//!    the rest must be on the disk.
//! 4. Each file is written as it arrives and hashed on the way, and has its own name once its content is right. A
//!    connection that breaks, a process that ends or a pause costs no byte that was written.
//! 5. When all are there, the staging folder is renamed to the model's. A model that is in place is therefore whole.
//!
//! [`Download`] is one of them, [`Downloads`] all of a process.

mod book;
mod choice;
mod content;
mod install;
mod limiter;
mod progress;
mod run;
mod staging;
mod transfer;
mod wish;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Code, Error, Result};
use crate::hub::manifest::Manifest;
use crate::hub::places::Places;
use crate::hub::remote::Remote;
use crate::hub::repo::{RepoId, Revision};
use crate::limits;

use self::limiter::Limiter;
use self::run::Ran;
use self::wish::{Stop, Wish};

pub use book::Downloads;
pub use choice::{Choice, choose};
pub use progress::{DownloadProgress, DownloadState, FileProgress};

/// How models are fetched.
#[derive(Debug, Clone)]
pub struct DownloadConfig {
    /// Where they come to lie.
    pub places: Places,
    /// Files of one model that are fetched at once; 1 to [`limits::DOWNLOAD_FILES_MAX`].
    pub files_at_once: usize,
    /// Bytes per second at most, of all files of all models together.
    pub bytes_per_second: Option<u64>,
    /// How many bytes the file system has left at a path.
    pub free_bytes: fn(&Path) -> io::Result<u64>,
}

impl DownloadConfig {
    /// Models come to lie at `places`, and nothing is out of the ordinary.
    pub fn new(places: Places) -> Self {
        Self {
            places,
            files_at_once: limits::DOWNLOAD_FILES_DEFAULT,
            bytes_per_second: None,
            free_bytes,
        }
    }
}

/// What downloads of one process share: the hub, the settings and the bandwidth.
#[derive(Debug, Clone)]
pub struct Fetching {
    pub(super) remote: Remote,
    pub(super) config: DownloadConfig,
    pub(super) limiter: Arc<Limiter>,
}

impl Fetching {
    /// Downloads from `remote` as `config` has it.
    pub fn new(remote: Remote, config: DownloadConfig) -> Self {
        let limiter = Limiter::new(remote.clock().clone(), config.bytes_per_second);
        Self { remote, config, limiter: Arc::new(limiter) }
    }

    /// Has all files together keep to so many bytes per second from now on; `None` is no bound.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        self.limiter.set(bytes_per_second);
    }

    /// The bytes per second that all files together keep to, if there is a bound.
    pub fn bytes_per_second(&self) -> Option<u64> {
        self.limiter.bytes_per_second()
    }
}

/// How a download ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The model is in place.
    Installed {
        /// Its folder.
        folder: PathBuf,
        /// What it is.
        manifest: Manifest,
        /// Bytes that had to be fetched for it.
        fetched_bytes: u64,
    },
    /// It was cancelled; nothing of it is left.
    Cancelled,
}

/// A download that runs on the tokio runtime that it was started on. It goes on when this is dropped.
#[derive(Debug)]
pub struct Download {
    wish: watch::Sender<Wish>,
    progress: watch::Receiver<DownloadProgress>,
    task: JoinHandle<Result<Ended>>,
}

impl Download {
    /// Starts to fetch `repo` at `revision`, or goes on with it.
    pub fn start(fetching: Fetching, repo: RepoId, revision: Revision) -> Self {
        let (wish, wished) = watch::channel(Wish::Run);
        let state = DownloadState::Running;
        let (told, progress) =
            watch::channel(DownloadProgress::new(repo.clone(), revision.clone(), state));
        let task = tokio::spawn(drive(fetching, repo, revision, wished, told));
        Self { wish, progress, task }
    }

    /// Snapshots of how far it is, each in place of the one before.
    pub fn progress(&self) -> watch::Receiver<DownloadProgress> {
        self.progress.clone()
    }

    /// Has it stop and keep what it has, until it is resumed.
    pub fn pause(&self) {
        self.wish_if(Wish::Run, Wish::Pause);
    }

    /// Has it go on.
    pub fn resume(&self) {
        self.wish_if(Wish::Pause, Wish::Run);
    }

    /// Has it stop and remove what it has.
    pub fn cancel(&self) {
        self.wish.send_replace(Wish::Cancel);
    }

    fn wish_if(&self, before: Wish, after: Wish) {
        self.wish.send_if_modified(|wish| {
            let fits = *wish == before;
            if fits {
                *wish = after;
            }
            fits
        });
    }

    /// Waits until it is done, cancelled or failed; a pause is no end. It ends once.
    ///
    /// # Errors
    /// What it failed with; what it has is kept then.
    pub async fn end(&mut self) -> Result<Ended> {
        let lost = |error| Error::new(Code::Internal, format!("a download's task ended: {error}"));
        (&mut self.task).await.map_err(lost)?
    }
}

/// Runs a download to its end and tells that.
async fn drive(
    fetching: Fetching,
    repo: RepoId,
    revision: Revision,
    wished: watch::Receiver<Wish>,
    told: watch::Sender<DownloadProgress>,
) -> Result<Ended> {
    let ended = run_through_pauses(&fetching, &repo, &revision, wished, &told).await;
    let state = match &ended {
        Ok(Ended::Installed { .. }) => DownloadState::Done,
        Ok(Ended::Cancelled) => DownloadState::Absent,
        Err(error) => DownloadState::Failed(error.clone()),
    };
    told.send_modify(|progress| progress.rest(state));
    ended
}

async fn run_through_pauses(
    fetching: &Fetching,
    repo: &RepoId,
    revision: &Revision,
    mut wished: watch::Receiver<Wish>,
    told: &watch::Sender<DownloadProgress>,
) -> Result<Ended> {
    loop {
        let wish = *wished.borrow_and_update();
        match wish {
            Wish::Run => {
                told.send_modify(|progress| progress.state = DownloadState::Running);
                let stop = Stop::new(wished.clone());
                if let Ran::Installed(ended) =
                    run::run(fetching, repo, revision, stop, told).await?
                {
                    return Ok(ended);
                }
            }
            Wish::Pause => {
                told.send_modify(|progress| progress.rest(DownloadState::Paused));
                // Nobody can resume it when the handle is gone; what is there is kept for another one.
                wished.changed().await.map_err(|_| {
                    Error::new(
                        Code::ShuttingDown,
                        format!("the download of `{repo}` was left paused"),
                    )
                })?;
            }
            Wish::Cancel => {
                let repo = told.borrow().repo.clone();
                return run::remove(fetching, repo).await.map(|()| Ended::Cancelled);
            }
        }
    }
}

/// Bytes that this user may still write to the file system at `path`.
///
/// # Errors
/// The machine's own.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}
