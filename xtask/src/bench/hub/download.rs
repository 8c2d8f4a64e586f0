//! Fetching a model of 1 GB from loopback, beside curl, in turns.

use std::path::Path;

use anyhow::Result;

use super::mirror::{Mirror, WEIGHTS};
use crate::bench::Bench;
use crate::clock::Stopwatch;
use crate::figures::Download;
use crate::process::Task;
use crate::stamp::{create_folder, remove_if_there};

/// The weights' size.
const WEIGHTS_MIB: usize = 1024;

/// Fetches `rounds` times by each.
pub(super) fn measure(bench: &Bench, rounds: usize) -> Result<Download> {
    let mirror = Mirror::start(WEIGHTS_MIB)?;
    let folder = bench.folder.join("hub-models");
    let mut download =
        Download { bytes: (WEIGHTS_MIB as f64) * f64::from(1 << 20), ours: vec![], curl: vec![] };
    for round in 1..=rounds {
        eprintln!("Round {round} of {rounds}: fetching {WEIGHTS_MIB} MiB, curl");
        download.curl.push(curl(&mirror, &folder)?);
        eprintln!("Round {round} of {rounds}: the same, slipstream");
        download.ours.push(ours(bench, &mirror, &folder)?);
    }
    remove_if_there(&folder)?;
    Ok(download)
}

/// Seconds that curl takes for the weights alone.
fn curl(mirror: &Mirror, folder: &Path) -> Result<f64> {
    fresh(folder)?;
    let task = Task::new("fetch with curl", "curl").args([
        "--silent",
        "--fail",
        "--noproxy",
        "*",
        "--output",
    ]);
    let task = task.arg(folder.join(WEIGHTS)).arg(mirror.weights_url());
    timed(task)
}

/// Seconds that we take for the model: listing, fetching, hashing, making it durable and putting it in place.
fn ours(bench: &Bench, mirror: &Mirror, folder: &Path) -> Result<f64> {
    fresh(folder)?;
    let task =
        Task::new("fetch with slipstream", &bench.server).args(["get", "bench/model", "--models"]);
    timed(task.arg(folder).env("HF_ENDPOINT", &mirror.endpoint).env("HF_HUB_OFFLINE", "0"))
}

fn fresh(folder: &Path) -> Result<()> {
    remove_if_there(folder)?;
    create_folder(folder)
}

fn timed(task: Task) -> Result<f64> {
    let watch = Stopwatch::start();
    task.capture()?;
    Ok(watch.seconds())
}
