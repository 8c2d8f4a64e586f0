//! `cargo xtask bench residency`: eight clients load, unload, list and ask three tiny models for minutes, each of
//! which goes a second after its last use, and have their folder scanned again. No request may be lost, every answer is the same whenever it is asked
//! for, and all memory comes back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use super::Bench;
use super::server::Server;
use crate::clock::Stopwatch;
use crate::http;

const CHECKPOINTS: &str = "goldens/linux-x86_64-cpu";
const MODELS: [&str; 3] = ["llama-tiny", "qwen3-tiny", "gemma3-tiny"];
const CLIENTS: u64 = 8;
const MINUTES: u64 = 5;

/// What the clients did.
#[derive(Debug, Default)]
struct Counts {
    answers: AtomicU64,
    loads: AtomicU64,
    unloads: AtomicU64,
    lists: AtomicU64,
    scans: AtomicU64,
    departures: AtomicU64,
}

/// Runs it, and says what it came to.
///
/// # Errors
/// When a request was lost, an answer was another one, or memory stayed behind.
pub(super) fn run(bench: &Bench, root: &Path) -> Result<()> {
    let folder = root.join(CHECKPOINTS);
    let flags = MODELS.iter().skip(1).map(|name| folder.join(name));
    let flags = flags.flat_map(|path| ["--model".into(), path.into_os_string()]);
    let flags = flags.chain(["--model-ttl", "1", "--models"].map(Into::into));
    let flags = flags.chain([folder.clone().into_os_string()]);
    let (server, _) = Server::start_of(bench, &folder.join(MODELS[0]), flags)?;
    let expected = MODELS.iter().map(|model| Ok((*model, answer(server.port, model)?)));
    let expected: BTreeMap<&str, String> = expected.collect::<Result<_>>()?;
    let before = unload_all(server.port)?;
    let counts = Counts::default();
    crowd(server.port, &expected, &counts)?;
    let after = unload_all(server.port)?;
    report(&counts, before, after);
    ensure!(before == after, "{} bytes were left behind", after.abs_diff(before));
    Ok(())
}

fn crowd(port: u16, expected: &BTreeMap<&str, String>, counts: &Counts) -> Result<()> {
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        let client = |number: u64| {
            let mut dice = number + 1;
            while watch.elapsed() < Duration::from_secs(MINUTES * 60) {
                act(port, expected, counts, &mut dice)?;
            }
            Ok(())
        };
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().try_for_each(|client| {
            client.join().map_err(|_| anyhow!("a client's thread panicked"))?
        })
    })
}

fn act(
    port: u16,
    expected: &BTreeMap<&str, String>,
    counts: &Counts,
    dice: &mut u64,
) -> Result<()> {
    let model = MODELS[throw(dice, MODELS.len() as u64) as usize];
    let count = match throw(dice, 11) {
        0 => {
            http::ask(port, "POST", &format!("/api/models/{model}/load"), &Value::Null)?;
            &counts.loads
        }
        1 | 2 => {
            http::ask(port, "POST", &format!("/api/models/{model}/unload"), &Value::Null)?;
            &counts.unloads
        }
        3 => {
            http::get(port, "/api/models")?;
            &counts.lists
        }
        4 => {
            let (status, scan) = http::ask(port, "POST", "/api/hub/library/rescan", &Value::Null)?;
            ensure!(status == 200, "a scan failed: {status}: {scan}");
            &counts.scans
        }
        5 => {
            drop(http::begin(port, "/v1/completions", &body(model))?);
            &counts.departures
        }
        _ => {
            let said = answer(port, model)?;
            ensure!(said == expected[model], "`{model}` said `{said}`");
            &counts.answers
        }
    };
    count.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn body(model: &str) -> Value {
    json!({"model": model, "prompt": "The tide", "max_tokens": 8, "temperature": 0})
}

fn answer(port: u16, model: &str) -> Result<String> {
    let (status, answer) = http::ask(port, "POST", "/v1/completions", &body(model))?;
    let text = answer["choices"][0]["text"].as_str().filter(|_| status == 200);
    text.map(str::to_owned).with_context(|| format!("a request was lost: {status}: {answer}"))
}

/// Unloads every model, and returns the bytes of the arrays that are left.
fn unload_all(port: u16) -> Result<u64> {
    for model in MODELS {
        http::ask(port, "POST", &format!("/api/models/{model}/unload"), &Value::Null)?;
    }
    let watch = Stopwatch::start();
    loop {
        let list = http::get(port, "/api/models")?;
        let models = list["data"].as_array().context("failed to list models")?;
        if models.iter().all(|model| model["state"] == "absent" && model["leases"] == 0) {
            break;
        }
        if watch.seconds() > 60.0 {
            bail!("models do not go: {list}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let stats = http::get(port, "/stats")?;
    stats["memory"]["active_bytes"].as_u64().context("failed to read `/stats`")
}

/// The next throw of a die of `sides`: Xorshift, enough to scatter what clients do.
fn throw(dice: &mut u64, sides: u64) -> u64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    (*dice >> 11) % sides
}

fn report(counts: &Counts, before: u64, after: u64) {
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "\n{CLIENTS} clients for {MINUTES} minutes, models gone a second after their last use"
    );
    println!("  answers, all right  {:>8}", read(&counts.answers));
    println!("  loads asked for     {:>8}", read(&counts.loads));
    println!("  unloads asked for   {:>8}", read(&counts.unloads));
    println!("  lists               {:>8}", read(&counts.lists));
    println!("  scans               {:>8}", read(&counts.scans));
    println!("  clients that left   {:>8}", read(&counts.departures));
    println!("  active bytes        {before:>8} before, {after} after all were unloaded");
}
