//! Work on models that takes minutes: GGUF imports, on a blocking thread, and conversions, in a process of their own,
//! because only one thread of this one may hold arrays.
//!
//! What a job makes comes to lie in the folder of models in one rename when it is whole.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;

use crate::error::{Code, Error, Result};
use crate::hub::import::{ImportProgress, WeightDtype, import};
use crate::hub::repo::RepoId;
use crate::limits;

/// What stands before the numbers in the lines that tell how far a conversion is.
pub const PROGRESS_WORD: &str = "progress";
/// Bytes that are kept of what a conversion says of its failure.
const WORDS_BYTES_MAX: u64 = 64 << 10;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// A GGUF file becomes a model directory.
    Import {
        /// The type to write weights in.
        dtype: WeightDtype,
    },
    /// A checkpoint becomes a packed one.
    Convert {
        /// Bits of a packed number.
        bits: i32,
        /// Numbers that share a scale.
        group_size: i32,
    },
}

impl Task {
    /// Its name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Import { .. } => "import",
            Self::Convert { .. } => "convert",
        }
    }
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It goes on.
    Running,
    /// Its model is in place.
    Done,
    /// It was stopped; nothing of it is left.
    Cancelled,
    /// Nothing came of it.
    Failed(Error),
}

impl JobState {
    /// Its name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed(_) => "failed",
        }
    }
}

/// A job, as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Names it among those of this process.
    pub number: u64,
    /// What is done.
    pub task: Task,
    /// What it is made of: a file or a directory.
    pub source: PathBuf,
    /// What the library will call it.
    pub model: RepoId,
    /// Where it comes to lie.
    pub out: PathBuf,
    /// Where it stands.
    pub state: JobState,
    /// Bytes of weights that are done.
    pub done_bytes: u64,
    /// Bytes of all of them; 0 until that is known.
    pub total_bytes: u64,
}

/// The jobs of a process. Clones are one list.
#[derive(Debug, Clone)]
pub(super) struct Jobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    entries: Mutex<Entries>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Entries {
    begun: u64,
    jobs: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    job: Job,
    cancel: Arc<Notify>,
}

impl Jobs {
    /// No jobs. Whatever changes is told to `changes`.
    pub(super) fn new(changes: watch::Sender<u64>) -> Self {
        Self(Arc::new(Inner { entries: Mutex::default(), changes }))
    }

    /// All of them that run, and the last ones that ended, in the order in which they began.
    pub(super) fn list(&self) -> Vec<Job> {
        self.0.entries.lock().jobs.iter().map(|entry| entry.job.clone()).collect()
    }

    /// Notes a job of that kind, and returns its number and what is told to end it.
    pub(super) fn enter(
        &self,
        task: Task,
        source: PathBuf,
        model: RepoId,
        out: PathBuf,
    ) -> Result<(u64, Arc<Notify>)> {
        let entered = self.0.entries.lock().enter(task, source, model, out);
        self.tell();
        entered
    }

    /// Stops a job that runs, or forgets one that ended; either way it is told as it stood.
    pub(super) fn end(&self, number: u64) -> Result<Job> {
        let ended = self.0.entries.lock().end(number);
        self.tell();
        ended
    }

    fn progress(&self, number: u64, done_bytes: u64, total_bytes: u64) {
        let mut entries = self.0.entries.lock();
        if let Some(entry) = entries.jobs.iter_mut().find(|entry| entry.job.number == number) {
            (entry.job.done_bytes, entry.job.total_bytes) = (done_bytes, total_bytes);
        }
        drop(entries);
        self.tell();
    }

    fn settle(&self, number: u64, state: JobState) {
        let mut entries = self.0.entries.lock();
        if let Some(entry) = entries.jobs.iter_mut().find(|entry| entry.job.number == number) {
            entry.job.state = state;
        }
        drop(entries);
        self.tell();
    }

    fn tell(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }
}

impl Entries {
    fn enter(
        &mut self,
        task: Task,
        source: PathBuf,
        model: RepoId,
        out: PathBuf,
    ) -> Result<(u64, Arc<Notify>)> {
        let running = || self.jobs.iter().filter(|entry| entry.job.state == JobState::Running);
        if running().any(|entry| entry.job.out == out) {
            let message = format!("`{model}` is being made already");
            return Err(Error::new(Code::InUse, message).with_param("out"));
        }
        if running().count() >= limits::JOBS_AT_ONCE {
            let message = format!("{} imports and conversions run already", limits::JOBS_AT_ONCE);
            return Err(Error::new(Code::QueueFull, message).with_hint("wait until one is done"));
        }
        self.begun += 1;
        let number = self.begun;
        let state = JobState::Running;
        let job = Job { number, task, source, model, out, state, done_bytes: 0, total_bytes: 0 };
        let cancel = Arc::<Notify>::default();
        self.jobs.push(Entry { job, cancel: Arc::clone(&cancel) });
        self.forget_old();
        Ok((number, cancel))
    }

    fn forget_old(&mut self) {
        while self.jobs.len() > limits::JOBS_LISTED_MAX {
            let ended = self.jobs.iter().position(|entry| entry.job.state != JobState::Running);
            let Some(ended) = ended else { return };
            self.jobs.remove(ended);
        }
    }

    fn end(&mut self, number: u64) -> Result<Job> {
        let place = self.jobs.iter().position(|entry| entry.job.number == number);
        let place = place.ok_or_else(|| {
            Error::new(Code::ModelNotFound, format!("no job has the number {number}"))
        })?;
        let Entry { job, cancel } = &self.jobs[place];
        let job = job.clone();
        match (&job.state, &job.task) {
            (JobState::Running, Task::Convert { .. }) => cancel.notify_one(),
            (JobState::Running, Task::Import { .. }) => {
                let message = format!("the import of `{}` cannot be stopped", job.model);
                return Err(Error::new(Code::Unsupported, message));
            }
            _ => drop(self.jobs.remove(place)),
        }
        Ok(job)
    }
}

/// Runs the import `job` to its end.
pub(super) async fn run_import(
    jobs: Jobs,
    number: u64,
    file: PathBuf,
    out: PathBuf,
    dtype: WeightDtype,
) {
    let told = jobs.clone();
    let imported = spawn_blocking(move || {
        let mut progress = |progress| match progress {
            ImportProgress::Reading => {}
            ImportProgress::Weights { done_bytes, total_bytes } => {
                told.progress(number, done_bytes, total_bytes);
            }
            ImportProgress::Flushing => {}
        };
        import(&file, &out, dtype, &mut progress)
    });
    let state = match imported.await {
        Ok(Ok(_)) => JobState::Done,
        Ok(Err(error)) => JobState::Failed(error),
        Err(panic) => JobState::Failed(failed_by(&panic)),
    };
    jobs.settle(number, state);
}

/// Runs a conversion by `program` to its end, or until `cancel` says to stop it.
pub(super) async fn run_conversion(
    jobs: Jobs,
    number: u64,
    program: PathBuf,
    arguments: Vec<std::ffi::OsString>,
    cancel: Arc<Notify>,
) {
    let state = match spawn(&program, &arguments) {
        Err(error) => JobState::Failed(error),
        Ok(child) => watch_child(&jobs, number, child, &cancel).await,
    };
    jobs.settle(number, state);
}

/// What `slipstream convert` takes to make `out` of `source`.
pub(super) fn conversion(
    source: &Path,
    out: &Path,
    bits: i32,
    group_size: i32,
) -> Vec<std::ffi::OsString> {
    let numbers = [("--bits", bits), ("--group-size", group_size)];
    let numbers =
        numbers.into_iter().flat_map(|(flag, number)| [flag.into(), number.to_string().into()]);
    let paths = ["convert".into(), source.into(), "--out".into(), out.into()];
    paths.into_iter().chain(numbers).chain(["--progress".into()]).collect()
}

fn spawn(program: &Path, arguments: &[std::ffi::OsString]) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true).spawn().map_err(|error| {
        Error::new(Code::Io, format!("failed to start `{}`: {error}", program.display()))
    })
}

async fn watch_child(jobs: &Jobs, number: u64, mut child: Child, cancel: &Notify) -> JobState {
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return JobState::Failed(Error::new(Code::Internal, "a conversion cannot be heard"));
    };
    let hearing = async { tokio::join!(hear_progress(jobs, number, stdout), hear_words(stderr)).1 };
    let mut hearing = std::pin::pin!(hearing);
    let mut cancelled = false;
    let words = loop {
        tokio::select! {
            words = &mut hearing => break words,
            () = cancel.notified(), if !cancelled => {
                cancelled = true;
                terminate(&child);
            }
        }
    };
    match child.wait().await {
        Ok(status) if status.success() => JobState::Done,
        _ if cancelled => JobState::Cancelled,
        Ok(_) => JobState::Failed(complaint(&words)),
        Err(error) => JobState::Failed(error.into()),
    }
}

async fn hear_progress(jobs: &Jobs, number: u64, stdout: ChildStdout) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some((done_bytes, total_bytes)) = read_progress(&line) {
            jobs.progress(number, done_bytes, total_bytes);
        }
    }
}

async fn hear_words(stderr: ChildStderr) -> String {
    let mut words = Vec::new();
    // What was heard until then is told.
    let _ = stderr.take(WORDS_BYTES_MAX).read_to_end(&mut words).await;
    String::from_utf8_lossy(&words).into_owned()
}

/// Asks a conversion to stop, which has it clear what it wrote.
fn terminate(child: &Child) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(id) = id {
        // It may have ended in this very moment.
        let _ = kill_process(id, Signal::TERM);
    }
}

/// Reads a line `progress DONE TOTAL`.
fn read_progress(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split(' ');
    let numbers = words.next().filter(|word| *word == PROGRESS_WORD).map(|_| words)?;
    let numbers: Vec<u64> = numbers.map_while(|word| word.parse().ok()).collect();
    match numbers[..] {
        [done_bytes, total_bytes] => Some((done_bytes, total_bytes)),
        _ => None,
    }
}

/// What a conversion said last of its failure.
fn complaint(words: &str) -> Error {
    let last = words.lines().rev().find(|line| !line.trim().is_empty());
    let told = last.unwrap_or("it ended without a word").trim_start_matches("slipstream: ");
    Error::new(Code::BadModel, told)
}

fn failed_by(panic: &tokio::task::JoinError) -> Error {
    Error::new(Code::Internal, format!("an import's thread ended: {panic}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> Jobs {
        Jobs::new(watch::Sender::new(0))
    }

    fn enter(jobs: &Jobs, task: Task, model: &str) -> Result<u64> {
        let out = Path::new("/m").join(model);
        jobs.enter(task, "/x".into(), model.parse().unwrap(), out).map(|(number, _)| number)
    }

    const IMPORT: Task = Task::Import { dtype: WeightDtype::F32 };
    const CONVERT: Task = Task::Convert { bits: 4, group_size: 64 };

    #[test]
    fn no_more_jobs_run_than_may_and_none_makes_what_another_makes() {
        let jobs = jobs();
        for number in 0..limits::JOBS_AT_ONCE {
            enter(&jobs, IMPORT, &format!("m{number}")).unwrap();
        }
        assert_eq!(enter(&jobs, IMPORT, "m0").unwrap_err().code(), Code::InUse);
        assert_eq!(enter(&jobs, IMPORT, "more").unwrap_err().code(), Code::QueueFull);
        jobs.settle(1, JobState::Done);
        assert_eq!(enter(&jobs, CONVERT, "m0"), Ok(limits::JOBS_AT_ONCE as u64 + 1));
    }

    #[test]
    fn the_last_jobs_are_listed_and_those_that_run_are_never_forgotten() {
        let jobs = jobs();
        let first = enter(&jobs, CONVERT, "first").unwrap();
        for _ in 0..2 * limits::JOBS_LISTED_MAX {
            let number = enter(&jobs, IMPORT, "m").unwrap();
            jobs.settle(number, JobState::Done);
        }
        let listed = jobs.list();
        assert_eq!(listed.len(), limits::JOBS_LISTED_MAX);
        assert_eq!(listed[0].number, first);
        assert!(listed.is_sorted_by_key(|job| job.number));
    }

    #[test]
    fn a_job_that_ended_is_forgotten_and_an_import_that_runs_goes_on() {
        let jobs = jobs();
        let import = enter(&jobs, IMPORT, "m").unwrap();
        assert_eq!(jobs.end(import).unwrap_err().code(), Code::Unsupported);
        jobs.settle(import, JobState::Done);
        assert_eq!(jobs.end(import).unwrap().state, JobState::Done);
        assert_eq!(jobs.end(import).unwrap_err().code(), Code::ModelNotFound);
        assert_eq!(jobs.list(), []);
    }

    #[test]
    fn lines_of_progress_are_two_numbers_and_nothing_else_is_one() {
        assert_eq!(read_progress("progress 7 90"), Some((7, 90)));
        for line in
            ["", "progress", "progress 7", "progress 7 x", "progress 1 2 3", "converted 1 2"]
        {
            assert_eq!(read_progress(line), None, "{line}");
        }
    }

    #[test]
    fn a_conversion_complains_by_its_last_line() {
        assert_eq!(complaint("warned\nslipstream: no such model\n\n").message(), "no such model");
        assert_eq!(complaint("").message(), "it ended without a word");
    }

    #[tokio::test]
    async fn a_conversion_is_heard_to_its_end_and_stopped_when_that_is_wished() {
        let jobs = jobs();
        let shell =
            |script: &str| spawn(Path::new("/bin/sh"), &["-c".into(), script.into()]).unwrap();
        let number = enter(&jobs, CONVERT, "m").unwrap();
        let never = Notify::new();
        let child = shell("echo progress 3 9; echo noise");
        assert_eq!(watch_child(&jobs, number, child, &never).await, JobState::Done);
        assert_eq!((jobs.list()[0].done_bytes, jobs.list()[0].total_bytes), (3, 9));
        let child = shell("echo 'slipstream: too large' >&2; exit 2");
        let JobState::Failed(error) = watch_child(&jobs, number, child, &never).await else {
            panic!("it failed");
        };
        assert_eq!(error.message(), "too large");
        let wished = Notify::new();
        wished.notify_one();
        let child = shell("exec cat /dev/zero > /dev/null");
        assert_eq!(watch_child(&jobs, number, child, &wished).await, JobState::Cancelled);
    }
}
