//! `cargo xtask bench`: our engine beside mlx-lm, on the same weights, back end and BLAS. The two
//! decode in turns, so that a machine that slows down slows both. Then one server is looked at
//! over HTTP: how fast it is ready, how long a late request waits, what it costs when idle.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;

use crate::clock::Stopwatch;
use crate::figures::{Figures, Late, Serving, collect, parse_cells};
use crate::http;
use crate::process::Task;
use crate::stamp::{create_folder, write_whole};
use crate::workspace::Workspace;
use crate::{model, setup, venv};

/// What both engines are told to decode.
const DECODE: [&str; 6] = ["--batch", "1,4,8", "--prompt-tokens", "64", "--tokens", "64"];

/// A server that is not ready by then is taken for broken.
const READY_SECONDS_MAX: f64 = 120.0;

/// Tokens that each of the three early requests has before the late one comes.
const EARLY_TOKENS: usize = 8;

/// Tokens that each of the three early requests asks for.
const EARLY_TOKENS_MAX: u64 = 192;

const EARLY_PROMPTS: [&str; 3] = [
    "Tell me a long story about a lighthouse keeper.",
    "Explain in detail how bread is made.",
    "Write a long letter to an old friend about the sea.",
];

/// How long the idle server is watched.
const IDLE_SECONDS: u64 = 10;

/// What the benchmark works with.
struct Bench {
    server: PathBuf,
    model: PathBuf,
    python: PathBuf,
    script: PathBuf,
    /// Where logs and results go.
    folder: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, yes: bool, rounds: usize) -> Result<()> {
    let bench = Bench::ready(workspace, yes)?;
    let figures = bench.measure(rounds)?;
    println!("\n{}", figures.table());
    let latest = bench.folder.join("latest.json");
    write_whole(&latest, &format!("{:#}\n", figures.json()))?;
    println!("\nWritten to `{}`", latest.display());
    Ok(())
}

impl Bench {
    fn ready(workspace: &Workspace, yes: bool) -> Result<Self> {
        let _lock = workspace.lock()?;
        setup::build(workspace, yes)?;
        let server = setup::server(workspace)?;
        let folder = workspace.target()?.join("bench");
        create_folder(&folder)?;
        Ok(Self {
            model: model::ready(workspace, &server)?,
            python: venv::ORACLE.ready(workspace)?,
            script: workspace.root().join("xtask/bench/mlx_lm_decode.py"),
            server,
            folder,
        })
    }

    fn measure(&self, rounds: usize) -> Result<Figures> {
        let (mut ours, mut mlx_lm) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            eprintln!("Round {round} of {rounds}: decode, mlx-lm");
            mlx_lm.push(self.mlx_lm_decode()?);
            eprintln!("Round {round} of {rounds}: decode, slipstream");
            ours.push(self.our_decode()?);
        }
        let serving = self.serving(rounds)?;
        Ok(Figures { ours: collect(&ours)?, mlx_lm: collect(&mlx_lm)?, serving })
    }

    fn mlx_lm_decode(&self) -> Result<Vec<(u64, f64)>> {
        let task = Task::new("measure mlx-lm", &self.python).arg(&self.script);
        parse_cells(&task.arg("--model").arg(&self.model).args(DECODE).capture()?)
    }

    fn our_decode(&self) -> Result<Vec<(u64, f64)>> {
        let task = Task::new("measure slipstream", &self.server).args(["bench", "--model"]);
        parse_cells(&task.arg(&self.model).args(DECODE).arg("--json").capture()?)
    }

    fn serving(&self, rounds: usize) -> Result<Serving> {
        let mut serving = Serving { ready_seconds: vec![], late: vec![], idle_percent: None };
        for round in 1..=rounds {
            eprintln!("Round {round} of {rounds}: serving");
            let (server, ready_seconds) = Server::start(self)?;
            serving.ready_seconds.push(ready_seconds);
            serving.late.push(late_request(server.port)?);
            if round == rounds {
                eprintln!("Watching the idle server for {IDLE_SECONDS} s");
                serving.idle_percent = server.idle_percent();
            }
        }
        Ok(serving)
    }
}

/// A running `slipstream serve`, ended when dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts one and waits until it is ready; also returns how many seconds that took.
    fn start(bench: &Bench) -> Result<(Self, f64)> {
        let log_path = bench.folder.join("server.log");
        let log = fs::File::create(&log_path)
            .with_context(|| format!("failed to create `{}`", log_path.display()))?;
        let also_log = log.try_clone().context("failed to share the server's log")?;
        let port = free_port()?;
        let task = Task::new("start the server", &bench.server).args(["serve", "--model"]);
        let task = task.arg(&bench.model).args(["--batch", "8", "--port", &port.to_string()]);
        let mut command = task.into_command();
        command.stdin(Stdio::null()).stdout(log).stderr(also_log);
        let watch = Stopwatch::start();
        let child = command.spawn().context("failed to start the server")?;
        let mut server = Self { child, port };
        server.wait_until_ready(watch, &log_path)?;
        Ok((server, watch.seconds()))
    }

    fn wait_until_ready(&mut self, watch: Stopwatch, log: &Path) -> Result<()> {
        while http::get(self.port, "/health").is_err() {
            let ended = self.child.try_wait().context("failed to look after the server")?;
            if ended.is_some() || watch.seconds() > READY_SECONDS_MAX {
                bail!("failed to start the server: it did not get ready, see `{}`", log.display());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Processor time while nothing is asked, in percent of one core.
    fn idle_percent(&self) -> Option<f64> {
        // The end of the last request is still being cleared away.
        thread::sleep(Duration::from_secs(2));
        let before = self.cpu_ticks()?;
        let watch = Stopwatch::start();
        thread::sleep(Duration::from_secs(IDLE_SECONDS));
        let ticks = self.cpu_ticks()?.saturating_sub(before);
        Some(busy_percent(ticks, watch.seconds()))
    }

    fn cpu_ticks(&self) -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        cpu_ticks(&stat)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        if self.child.kill().is_ok() {
            let _ended = self.child.wait();
        }
    }
}

/// User and system time of a process from its `/proc/<id>/stat`, in clock ticks: fields 14 and 15.
/// The name in field 2 may hold spaces and brackets, so counting starts after its last bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Linux counts ticks of 1/100 s towards programs, on every machine that MLX runs on.
fn busy_percent(ticks: u64, seconds: f64) -> f64 {
    ticks as f64 / seconds
}

/// A port that nobody has at the moment.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("failed to find a free port")?;
    Ok(listener.local_addr().context("failed to read a port's number")?.port())
}

/// Has three requests decode, sends a fourth, and times its first token and the end of the three.
fn late_request(port: u16) -> Result<Late> {
    let model = model_name(port)?;
    let watch = Stopwatch::start();
    let (progress, seen) = channel();
    let early: Vec<JoinHandle<Result<f64>>> = EARLY_PROMPTS
        .into_iter()
        .map(|prompt| {
            let (model, progress) = (model.clone(), progress.clone());
            thread::spawn(move || early_request(port, &model, prompt, watch, &progress))
        })
        .collect();
    drop(progress);
    wait_for_early(&seen, early.len())?;
    let arrival = watch.seconds();
    let first_token = time_first_token(port, &model, watch)?;
    let mut others_end: f64 = 0.0;
    for request in early {
        let end = request.join().map_err(|_| anyhow!("a request's thread panicked"))??;
        others_end = others_end.max(end);
    }
    if others_end <= arrival {
        bail!("failed to time a late request: the early ones had ended before it came");
    }
    Ok(Late {
        first_token_seconds: first_token - arrival,
        others_end_seconds: others_end - arrival,
    })
}

fn model_name(port: u16) -> Result<String> {
    let models = http::get(port, "/v1/models")?;
    let name = models["data"][0]["id"].as_str();
    Ok(name.context("failed to find a model in `/v1/models`")?.to_owned())
}

/// Runs one of the three; tells when it has [`EARLY_TOKENS`], returns when it ended.
fn early_request(
    port: u16,
    model: &str,
    prompt: &str,
    watch: Stopwatch,
    progress: &Sender<()>,
) -> Result<f64> {
    let mut events = chat(port, model, prompt, EARLY_TOKENS_MAX)?;
    let mut count = 0;
    while events.next_text()?.is_some() {
        count += 1;
        if count == EARLY_TOKENS {
            // Nobody listens any more only if the measurement has failed already.
            let _heard = progress.send(());
        }
    }
    Ok(watch.seconds())
}

fn wait_for_early(seen: &Receiver<()>, count: usize) -> Result<()> {
    for _ in 0..count {
        let told = seen.recv_timeout(Duration::from_secs(60));
        told.context("failed to get three requests decoding: one ended or hung before")?;
    }
    Ok(())
}

fn time_first_token(port: u16, model: &str, watch: Stopwatch) -> Result<f64> {
    let mut events = chat(port, model, "What is the capital of France?", 16)?;
    events.next_text()?.context("failed to time the late request: it gave no text")?;
    let seconds = watch.seconds();
    while events.next_text()?.is_some() {}
    Ok(seconds)
}

fn chat(port: u16, model: &str, prompt: &str, tokens_max: u64) -> Result<http::Events> {
    let body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": prompt }],
        "max_tokens": tokens_max,
        "temperature": 0,
        "stream": true,
    });
    http::post_for_events(port, "/v1/chat/completions", &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_past_a_name_with_spaces_and_brackets() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 3 0 1 2 3";
        assert_eq!(cpu_ticks(stat), Some(12));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn a_hundred_ticks_in_a_second_are_one_whole_core() {
        assert!((busy_percent(100, 1.0) - 100.0).abs() < 1e-9);
        assert!((busy_percent(10, 10.0) - 1.0).abs() < 1e-9);
    }
}
