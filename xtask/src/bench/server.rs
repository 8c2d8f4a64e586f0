//! A server to measure, as a user would start it.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Bench;
use crate::clock::Stopwatch;
use crate::http;
use crate::process::Task;

/// A server that is not ready by then is taken for broken.
const READY_SECONDS_MAX: f64 = 120.0;

/// How long the idle server is watched.
pub(super) const IDLE_SECONDS: u64 = 10;

/// A running server, killed when dropped.
pub(super) struct Server {
    child: Child,
    pub(super) port: u16,
}

impl Server {
    /// Starts one that keeps no prompts, because rounds ask the same questions and each is to be read, and waits
    /// until it is ready; also returns how many seconds that took.
    pub(super) fn start(bench: &Bench) -> Result<(Self, f64)> {
        Self::start_with(bench, ["--prompt-cache", "off"])
    }

    /// Starts one with `flags`.
    pub(super) fn start_with<A: AsRef<OsStr>>(
        bench: &Bench,
        flags: impl IntoIterator<Item = A>,
    ) -> Result<(Self, f64)> {
        Self::start_of(bench, &bench.model, flags)
    }

    /// The same for the model in `directory`.
    pub(super) fn start_of<A: AsRef<OsStr>>(
        bench: &Bench,
        directory: &Path,
        flags: impl IntoIterator<Item = A>,
    ) -> Result<(Self, f64)> {
        let task = Task::new("start the server", &bench.server).args(["serve", "--model"]);
        Self::launch(bench, "server", task.arg(directory).args(["--batch", "8"]).args(flags))
    }

    /// Starts mlx-lm's.
    pub(super) fn start_mlx_lm(bench: &Bench) -> Result<(Self, f64)> {
        let task = Task::new("start mlx-lm's server", &bench.python);
        let task = task.args(["-m", "mlx_lm", "server", "--model"]).arg(&bench.model);
        Self::launch(bench, "mlx-lm-server", task)
    }

    fn launch(bench: &Bench, name: &str, task: Task) -> Result<(Self, f64)> {
        let log_path = bench.folder.join(format!("{name}.log"));
        let log = fs::File::create(&log_path)
            .with_context(|| format!("failed to create `{}`", log_path.display()))?;
        let also_log = log.try_clone().context("failed to share the server's log")?;
        let port = free_port()?;
        let mut command = task.args(["--port", &port.to_string()]).into_command();
        command.stdin(Stdio::null()).stdout(log).stderr(also_log);
        let watch = Stopwatch::start();
        let child = command.spawn().context("failed to start the server")?;
        let mut server = Self { child, port };
        server.wait_until_ready(watch, &log_path)?;
        Ok((server, watch.seconds()))
    }

    /// The process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
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
    pub(super) fn idle_percent(&self) -> Option<f64> {
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

/// The name of the model that the server at `port` serves.
pub(super) fn model_name(port: u16) -> Result<String> {
    let models = http::get(port, "/v1/models")?;
    let name = models["data"][0]["id"].as_str();
    Ok(name.context("failed to find a model in `/v1/models`")?.to_owned())
}

/// Starts to stream an answer of at most `tokens_max` to one question.
pub(super) fn chat(port: u16, model: &str, prompt: &str, tokens_max: u64) -> Result<http::Events> {
    let messages = json!([{ "role": "user", "content": prompt }]);
    converse(port, model, &messages, tokens_max)
}

/// Starts to stream what follows `messages`, at most `tokens_max`.
pub(super) fn converse(
    port: u16,
    model: &str,
    messages: &Value,
    tokens_max: u64,
) -> Result<http::Events> {
    let body = json!({
        "model": model,
        "messages": messages,
        "max_tokens": tokens_max,
        "temperature": 0,
        "stream": true,
    });
    http::post_for_events(port, "/v1/chat/completions", &body)
}

/// Asks for `/stats` until `holds`, and returns those.
pub(super) fn stats_when(port: u16, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    loop {
        let stats = http::get(port, "/stats")?;
        if holds(&stats) {
            return Ok(stats);
        }
        thread::sleep(Duration::from_millis(20));
    }
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
