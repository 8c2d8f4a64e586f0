//! `slipstream get`: a model of the hub comes to lie in the folder of models.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{ByteCount, parse_bytes};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::hub::download::{
    Download, DownloadConfig, DownloadProgress, DownloadState, Ended, Fetching, FileProgress,
};
use slipstream_engine::hub::places::Places;
use slipstream_engine::hub::remote::{Remote, RemoteConfig};
use slipstream_engine::hub::repo::{RepoId, Revision};
use slipstream_engine::limits;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::serve::shutdown_signal;

/// What `slipstream get` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The model's repository, as on the hub: OWNER/NAME.
    repo: RepoId,
    /// The branch, tag or commit to fetch.
    #[arg(long, default_value_t)]
    revision: Revision,
    /// The bandwidth to keep to, in bytes per second: 500k, 5M, 1Gi.
    #[arg(long, value_name = "BYTES", value_parser = bandwidth)]
    limit: Option<u64>,
    /// The folder of models [default: SLIPSTREAM_MODELS, or this user's].
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Files to fetch at once.
    #[arg(long, value_name = "N", default_value_t = limits::DOWNLOAD_FILES_DEFAULT,
          value_parser = jobs)]
    jobs: usize,
}

fn bandwidth(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "give bytes per second, such as 500k, 5M or 1Gi".to_owned())
}

fn jobs(text: &str) -> Result<usize, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=limits::DOWNLOAD_FILES_MAX).contains(jobs));
    jobs.ok_or_else(|| format!("give a number from 1 to {}", limits::DOWNLOAD_FILES_MAX))
}

/// Fetches the model and says where it is.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let config = DownloadConfig {
        bytes_per_second: arguments.limit,
        files_at_once: arguments.jobs,
        ..DownloadConfig::new(Places::of_process(arguments.models.as_deref())?)
    };
    let remote = Remote::new(RemoteConfig::of_process()?, Clock::monotonic())?;
    let fetching = Fetching::new(remote, config);
    let ended = Runtime::new()?.block_on(fetch(fetching, arguments.repo, arguments.revision))?;
    let Ended::Installed { folder, manifest, fetched_bytes } = ended else {
        return Ok(());
    };
    let commit = &manifest.commit.as_str()[..7];
    match fetched_bytes {
        0 => println!("{} at {commit} is there: {}", manifest.repo, folder.display()),
        _ => println!(
            "fetched {} at {commit}, {}: {}",
            manifest.repo,
            ByteCount(fetched_bytes),
            folder.display()
        ),
    }
    Ok(())
}

/// Fetches until the end or a signal, which leaves what is there for the next time.
async fn fetch(fetching: Fetching, repo: RepoId, revision: Revision) -> Result<Ended> {
    let shutdown = shutdown_signal("keeping what is there")?;
    let mut download = Download::start(fetching, repo, revision);
    let mut progress = download.progress();
    let shown = show(download.progress());
    tokio::select! {
        ended = download.end() => return ended,
        () = shutdown => {}
        () = shown => {}
    }
    download.pause();
    // It fails only when the download has ended, which it did not wait for.
    let rested = progress.wait_for(|progress| progress.state != DownloadState::Running).await;
    let rested = rested.map(|rested| rested.clone());
    match rested {
        Ok(rested) if rested.state == DownloadState::Paused => Err(interrupted(&rested)),
        _ => download.end().await,
    }
}

fn interrupted(progress: &DownloadProgress) -> Error {
    let (done, total) = (ByteCount(progress.done_bytes), ByteCount(progress.total_bytes));
    let message = format!("interrupted: {done} of {total} of `{}` are kept", progress.repo);
    Error::new(Code::ShuttingDown, message).with_hint("the same command goes on with them")
}

/// Draws bars on a terminal for as long as there is something to draw, which is longer than anyone looks.
async fn show(mut progress: watch::Receiver<DownloadProgress>) {
    let mut bars = Bars::new();
    while progress.changed().await.is_ok() {
        bars.draw(&progress.borrow_and_update());
    }
    std::future::pending::<()>().await;
}

/// A bar for all, and one for each file that is under way. They draw nothing where stderr is no terminal.
struct Bars {
    all: MultiProgress,
    total: ProgressBar,
    files: HashMap<String, ProgressBar>,
}

impl Bars {
    fn new() -> Self {
        let all = MultiProgress::new();
        let total = all.add(ProgressBar::no_length().with_style(style("{msg}")));
        Self { all, total, files: HashMap::new() }
    }

    fn draw(&mut self, progress: &DownloadProgress) {
        for file in &progress.files {
            self.draw_file(file);
        }
        self.total.set_length(progress.total_bytes);
        self.total.set_position(progress.done_bytes);
        self.total.set_message(rest(progress));
    }

    fn draw_file(&mut self, file: &FileProgress) {
        let name = file.path.as_str();
        if file.done_bytes == 0 || file.done_bytes == file.total_bytes {
            if let Some(bar) = self.files.remove(name) {
                bar.finish_and_clear();
            }
            return;
        }
        let bar = self.files.entry(name.to_owned()).or_insert_with(|| {
            let bar = ProgressBar::new(file.total_bytes).with_style(style("{msg}"));
            self.all.insert_before(&self.total, bar.with_message(name.to_owned()))
        });
        bar.set_position(file.done_bytes);
    }
}

fn rest(progress: &DownloadProgress) -> String {
    let speed = ByteCount(progress.bytes_per_second as u64);
    match progress.remaining {
        Some(remaining) => format!("{speed}/s, {} left", told(remaining)),
        None => String::new(),
    }
}

fn told(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

fn style(end: &str) -> ProgressStyle {
    let template = format!("{{bar:30}} {{decimal_bytes:>9}} of {{decimal_total_bytes:9}} {end}");
    ProgressStyle::with_template(&template).expect("the template is well formed")
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.files.values().chain([&self.total]).for_each(ProgressBar::finish_and_clear);
    }
}
