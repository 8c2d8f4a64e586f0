//! One run of a download: from a list of files to a model in place, or to a stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::sync::watch;

use crate::clock;
use crate::config::ByteCount;
use crate::error::{Code, Error, Result};
use crate::hub::download::choice::choose;
use crate::hub::download::install::{install, installed, is_kept, link};
use crate::hub::download::limiter::Limiter;
use crate::hub::download::progress::{Counter, DownloadProgress, FileProgress, Speed};
use crate::hub::download::staging::{Record, Staged, Staging, cannot};
use crate::hub::download::transfer::{Fetched, Transfer, blocking};
use crate::hub::download::wish::{Stop, Wish};
use crate::hub::download::{DownloadConfig, Ended, Fetching};
use crate::hub::manifest::{Manifest, ManifestFile};
use crate::hub::remote::Remote;
use crate::hub::repo::{Commit, RepoId, Revision};
use crate::limits;

/// How a run ended.
#[derive(Debug)]
pub(super) enum Ran {
    /// The model is in place.
    Installed(Ended),
    /// Somebody wished so.
    Stopped,
}

/// What the transfers of one run share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) remote: Remote,
    pub(super) limiter: Arc<Limiter>,
    pub(super) repo: RepoId,
    pub(super) commit: Commit,
    pub(super) staging: Arc<Staging>,
}

/// What there is and what is missing when a run begins.
enum Prepared {
    /// The model is in place as it is wanted.
    InPlace(PathBuf, Manifest),
    /// Some of its files are to be fetched.
    Missing(Arc<Staging>, Vec<Have>),
}

/// A file of the model and how much of it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Have {
    file: ManifestFile,
    staged: Staged,
}

impl Have {
    fn bytes(&self) -> u64 {
        match self.staged {
            Staged::Whole => self.file.bytes,
            Staged::First { bytes } => bytes,
        }
    }

    fn missing_bytes(&self) -> u64 {
        self.file.bytes - self.bytes()
    }
}

/// Runs the download of `repo` at `revision`, and tells how far it is.
///
/// # Errors
/// Those of the hub, of the disk and of what is in the model's place; what is staged is kept.
pub(super) async fn run(
    fetching: &Fetching,
    repo: &RepoId,
    revision: &Revision,
    mut stop: Stop,
    told: &watch::Sender<DownloadProgress>,
) -> Result<Ran> {
    let repository = tokio::select! {
        listed = fetching.remote.repository(repo, revision) => listed?,
        () = stop.wished() => return Ok(Ran::Stopped),
    };
    let files = choose(&repository)?.files;
    let (repo, commit) = (repository.repo, repository.commit);
    let record = Record { revision: revision.clone(), commit: commit.clone(), files };
    told.send_modify(|progress| {
        progress.repo = repo.clone();
        progress.commit = Some(commit.clone());
    });
    let (config, wanted) = (fetching.config.clone(), repo.clone());
    match blocking(move || prepare(&config, &wanted, &record)).await? {
        Prepared::InPlace(folder, manifest) => {
            let have: Vec<Have> = manifest.files.iter().cloned().map(whole).collect();
            show(told, &have);
            Ok(Ran::Installed(Ended::Installed { folder, manifest, fetched_bytes: 0 }))
        }
        Prepared::Missing(staging, have) => {
            show(told, &have);
            let (remote, limiter) = (fetching.remote.clone(), fetching.limiter.clone());
            let run = Arc::new(Run { remote, limiter, repo, commit, staging });
            run.finish(&fetching.config, have, stop, told).await
        }
    }
}

/// Removes what is staged of `repo`.
///
/// # Errors
/// `InvalidRequest` when another process fetches it, `Io` when it cannot be removed.
pub(super) async fn remove(fetching: &Fetching, repo: RepoId) -> Result<()> {
    let places = fetching.config.places.clone();
    blocking(move || Staging::open(&places, &repo)?.remove()).await
}

fn whole(file: ManifestFile) -> Have {
    Have { file, staged: Staged::Whole }
}

fn show(told: &watch::Sender<DownloadProgress>, have: &[Have]) {
    let file = |have: &Have| FileProgress {
        path: have.file.path.clone(),
        done_bytes: have.bytes(),
        total_bytes: have.file.bytes,
    };
    told.send_modify(|progress| {
        progress.files = have.iter().map(file).collect();
        progress.sum();
    });
}

/// Makes the staging ready for `record`, with what is there of it already.
fn prepare(config: &DownloadConfig, repo: &RepoId, record: &Record) -> Result<Prepared> {
    let places = &config.places;
    let staging = Staging::open(places, repo)?;
    let folder = places.model(repo);
    let before = installed(places, repo)?;
    let kept =
        |file: &ManifestFile| before.as_ref().is_some_and(|before| is_kept(&folder, before, file));
    let kept: Vec<bool> = record.files.iter().map(kept).collect();
    if let Some(before) = &before
        && before.commit == record.commit
        && before.files == record.files
        && kept.iter().all(|kept| *kept)
    {
        staging.remove()?;
        return Ok(Prepared::InPlace(folder, before.clone()));
    }
    staging.begin(record)?;
    let mut have = Vec::new();
    for (file, kept) in record.files.iter().zip(kept) {
        let mut staged = staging.staged(file)?;
        if kept && staged != Staged::Whole {
            staging.clear_whole(file)?;
            link(&file.path.below(&folder), &staging.whole(file))?;
            staged = Staged::Whole;
        }
        have.push(Have { file: file.clone(), staged });
    }
    check_room(config, repo, &have)?;
    Ok(Prepared::Missing(Arc::new(staging), have))
}

/// Refuses a download that the disk has no room for, before anything of it is fetched.
fn check_room(config: &DownloadConfig, repo: &RepoId, have: &[Have]) -> Result<()> {
    let places = &config.places;
    let missing_bytes = have.iter().map(Have::missing_bytes).fold(0, u64::saturating_add);
    let needed_bytes = missing_bytes.saturating_add(limits::DOWNLOAD_FREE_BYTES_MIN);
    let free_bytes = (config.free_bytes)(&places.models)
        .map_err(cannot("look at the space of", &places.models))?;
    if missing_bytes == 0 || needed_bytes <= free_bytes {
        return Ok(());
    }
    let message = format!(
        "no room for `{repo}` at `{}`: it needs {} more, {} to stay free among them, and {} are free",
        places.models.display(),
        ByteCount(needed_bytes),
        ByteCount(limits::DOWNLOAD_FREE_BYTES_MIN),
        ByteCount(free_bytes),
    );
    Err(Error::new(Code::DiskFull, message)
        .with_hint("make room, or choose another folder by `--models`"))
}

impl Run {
    /// Fetches what is missing and puts the model in place.
    async fn finish(
        self: Arc<Self>,
        config: &DownloadConfig,
        have: Vec<Have>,
        stop: Stop,
        told: &watch::Sender<DownloadProgress>,
    ) -> Result<Ran> {
        let fetched_bytes = have.iter().map(Have::missing_bytes).sum();
        if self.fetch_all(config.files_at_once, &have, stop, told).await? == Fetched::Stopped {
            return Ok(Ran::Stopped);
        }
        let manifest = Manifest {
            repo: self.repo.clone(),
            commit: self.commit.clone(),
            files: have.into_iter().map(|have| have.file).collect(),
            finished_at_unix_seconds: clock::unix_seconds(),
        };
        let (places, staging) = (config.places.clone(), self.staging.clone());
        blocking(move || {
            let folder = install(&places, &staging, &manifest)?;
            Ok(Ran::Installed(Ended::Installed { folder, manifest, fetched_bytes }))
        })
        .await
    }

    /// Fetches all that is missing, several files at once, the largest first. When one fails the others stop, and
    /// this waits until none writes any more.
    async fn fetch_all(
        self: &Arc<Self>,
        files_at_once: usize,
        have: &[Have],
        mut stop: Stop,
        told: &watch::Sender<DownloadProgress>,
    ) -> Result<Fetched> {
        let counters: Vec<_> =
            have.iter().map(|have| Arc::new(Counter::new(have.bytes()))).collect();
        let (halt, halted) = watch::channel(Wish::Run);
        let transfers = self.transfers(have, &counters, &Stop::new(halted));
        let transfers = stream::iter(transfers).map(Transfer::fetch);
        let mut transfers = transfers.buffer_unordered(files_at_once.max(1));
        let clock = self.remote.clock();
        let period = Duration::from_millis(limits::DOWNLOAD_PROGRESS_PERIOD_MS);
        let (mut speed, mut next_at) = (Speed::default(), clock.now());
        let mut outcome = Ok(Fetched::Whole);
        loop {
            let halting = *halt.borrow() != Wish::Run;
            tokio::select! {
                ended = transfers.next() => match ended {
                    None => break,
                    Some(Ok(Fetched::Whole)) => {}
                    Some(Ok(Fetched::Stopped)) => outcome = outcome.and(Ok(Fetched::Stopped)),
                    Some(Err(error)) => {
                        halt.send_replace(Wish::Pause);
                        outcome = outcome.and(Err(error));
                    }
                },
                () = stop.wished(), if !halting => drop(halt.send_replace(Wish::Pause)),
                () = clock.sleep_until(next_at) => {
                    told.send_modify(|progress| progress.count(&counters, &mut speed, clock.now()));
                    next_at = clock.now() + period;
                }
            }
        }
        told.send_modify(|progress| progress.count(&counters, &mut speed, clock.now()));
        outcome
    }

    /// One for each file that is not whole, the largest first.
    fn transfers(
        self: &Arc<Self>,
        have: &[Have],
        counters: &[Arc<Counter>],
        stop: &Stop,
    ) -> Vec<Transfer> {
        let mut missing: Vec<_> = have.iter().zip(counters).collect();
        missing.retain(|(have, _)| have.staged != Staged::Whole);
        missing.sort_by_key(|(have, _)| std::cmp::Reverse(have.file.bytes));
        let transfer = |(have, done): (&Have, &Arc<Counter>)| Transfer {
            run: self.clone(),
            file: have.file.clone(),
            done: done.clone(),
            stop: stop.clone(),
        };
        missing.into_iter().map(transfer).collect()
    }
}
