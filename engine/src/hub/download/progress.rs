//! How far a download is: plain snapshots, and what they are counted from.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Time;
use crate::error::Error;
use crate::hub::repo::{Commit, RepoFile, RepoId, Revision};

/// The time over which speed is measured.
const WINDOW: Duration = Duration::from_secs(5);

/// Where a download stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadState {
    /// Nothing of it is there: it was cancelled.
    Absent,
    /// It waits until others are done.
    Queued,
    /// Its files are being listed, fetched or checked.
    Running,
    /// It keeps what it has until it is resumed.
    Paused,
    /// It stopped by itself; resumed, it goes on with what it has.
    Failed(Error),
    /// Its model is in place.
    Done,
}

/// A snapshot of a download.
#[derive(Debug, Clone, PartialEq)]
pub struct DownloadProgress {
    /// What is fetched.
    pub repo: RepoId,
    /// Of which revision.
    pub revision: Revision,
    /// The commit that it stands for, once known.
    pub commit: Option<Commit>,
    /// Where it stands.
    pub state: DownloadState,
    /// Its files, once they are listed.
    pub files: Vec<FileProgress>,
    /// Bytes of all files that are there.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Over the last seconds; 0 while nothing runs.
    pub bytes_per_second: f64,
    /// How long it takes at that speed, where there is one.
    pub remaining: Option<Duration>,
}

/// A file of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProgress {
    /// Which.
    pub path: RepoFile,
    /// Bytes of it that are there.
    pub done_bytes: u64,
    /// Its size.
    pub total_bytes: u64,
}

impl DownloadProgress {
    /// A download that nothing is known of yet.
    pub fn new(repo: RepoId, revision: Revision, state: DownloadState) -> Self {
        Self {
            repo,
            revision,
            commit: None,
            state,
            files: Vec::new(),
            done_bytes: 0,
            total_bytes: 0,
            bytes_per_second: 0.0,
            remaining: None,
        }
    }

    /// Nothing arrives any more, and this is why.
    pub(super) fn rest(&mut self, state: DownloadState) {
        self.state = state;
        self.bytes_per_second = 0.0;
        self.remaining = None;
    }

    /// Takes in how many bytes of each file are there, and how fast more come.
    pub(super) fn count(&mut self, done_bytes: &[Arc<Counter>], speed: &mut Speed, now: Time) {
        for (file, done) in self.files.iter_mut().zip(done_bytes) {
            file.done_bytes = done.bytes();
        }
        self.sum();
        self.bytes_per_second = speed.measure(self.done_bytes, now);
        let left_bytes = self.total_bytes - self.done_bytes.min(self.total_bytes);
        self.remaining = (self.bytes_per_second >= 1.0)
            .then(|| Duration::from_secs_f64(left_bytes as f64 / self.bytes_per_second));
    }

    /// Has the totals be those of the files.
    pub(super) fn sum(&mut self) {
        let sum = |bytes: fn(&FileProgress) -> u64| {
            self.files.iter().map(bytes).fold(0, u64::saturating_add)
        };
        (self.done_bytes, self.total_bytes) =
            (sum(|file| file.done_bytes), sum(|file| file.total_bytes));
    }
}

/// Bytes of one file that are there.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes per second over the last seconds, from counts that may fall back when a file begins anew.
#[derive(Debug, Default)]
pub(super) struct Speed(VecDeque<(Time, u64)>);

impl Speed {
    fn measure(&mut self, done_bytes: u64, now: Time) -> f64 {
        if self.0.back().is_some_and(|(_, bytes)| *bytes > done_bytes) {
            self.0.clear();
        }
        self.0.push_back((now, done_bytes));
        while self.0.len() > 2 && now.saturating_sub(self.0[1].0) >= WINDOW {
            self.0.pop_front();
        }
        let (since, before) = self.0[0];
        let seconds = now.saturating_sub(since).as_secs_f64();
        if seconds > 0.0 { (done_bytes - before) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_that_of_the_last_seconds_and_starts_anew_with_a_file() {
        let mut speed = Speed::default();
        let second = Duration::from_secs;
        assert_eq!(speed.measure(500, second(0)), 0.0);
        assert_eq!(speed.measure(1_500, second(1)), 1_000.0);
        for at in 2..=20 {
            speed.measure(1_500, second(at));
        }
        assert_eq!(speed.measure(1_500, second(21)), 0.0);
        assert_eq!(speed.measure(6_500, second(22)), 1_000.0);
        assert_eq!(speed.measure(100, second(23)), 0.0);
        assert_eq!(speed.measure(300, second(25)), 100.0);
    }

    #[test]
    fn the_total_is_the_sum_of_the_files_and_the_rest_takes_as_long_as_at_this_speed() {
        let repo: RepoId = "owner/name".parse().unwrap();
        let mut progress = DownloadProgress::new(repo, Revision::default(), DownloadState::Running);
        let file = |path: &str| FileProgress {
            path: path.parse().unwrap(),
            done_bytes: 0,
            total_bytes: 1_000,
        };
        progress.files = vec![file("a"), file("b")];
        let counters = [Arc::new(Counter::default()), Arc::new(Counter::default())];
        let mut speed = Speed::default();
        progress.count(&counters, &mut speed, Duration::ZERO);
        assert_eq!(progress.remaining, None);
        counters[0].add(300);
        counters[1].set(200);
        progress.count(&counters, &mut speed, Duration::from_secs(1));
        assert_eq!((progress.done_bytes, progress.total_bytes), (500, 2_000));
        assert_eq!(progress.files[0].done_bytes, 300);
        assert_eq!(progress.remaining, Some(Duration::from_secs(3)));
    }
}
