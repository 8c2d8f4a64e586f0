//! `cargo xtask bench cache`: what kept prompts spare, beside mlx-lm's server in the same run: sub-agents with one
//! system prompt, a long conversation that goes on after its server was killed, look-ups, and what writing to the
//! disk costs the rows that decode meanwhile.

use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use super::Bench;
use super::server::{Server, converse, model_name, stats_when};
use crate::clock::Stopwatch;
use crate::figures::{Agents, Cache, Restart};
use crate::stamp::{create_folder, remove_if_there, write_whole};

/// Sentences of the system prompt that the agents share: 2,000 tokens.
const SYSTEM_SENTENCES: usize = 110;
/// Agents that share it.
const AGENTS: usize = 8;
/// Sentences of the conversation that goes on after a restart: about as much as the demo model takes.
const LONG_SENTENCES: usize = 410;
/// Tokens of every answer.
const ANSWER_TOKENS: u64 = 4;

const NOUNS: [&str; 12] = [
    "river", "stone", "cloud", "field", "road", "house", "table", "north", "paper", "music",
    "winter", "garden",
];

/// Measures, prints the table and writes what was measured.
pub(super) fn run(bench: &Bench) -> Result<()> {
    let cache = Cache {
        ours: our_agents(bench).context("failed to serve agents")?,
        mlx_lm: mlx_lm_agents(bench).context("failed to have mlx-lm serve agents")?,
        restart: restart(bench).context("failed to go on after a restart")?,
        engine: engine(bench)?,
    };
    println!("\n{}", cache.table());
    let latest = bench.folder.join("cache.json");
    write_whole(&latest, &format!("{:#}\n", cache.json()))?;
    println!("\nWritten to `{}`", latest.display());
    Ok(())
}

fn our_agents(bench: &Bench) -> Result<Agents> {
    eprintln!("{AGENTS} agents with one system prompt");
    let (server, _) = Server::start_with(bench, ["--prompt-cache", "auto"])?;
    let model = model_name(server.port)?;
    let agents = agents(server.port, &model)?;
    let idle = |stats: &Value| stats["batch"]["active_rows"] == 0;
    let stats = stats_when(server.port, idle)?;
    let total = |name: &str| stats["totals"][name].as_u64();
    let run_tokens = total("prompt_tokens");
    Ok(Agents { run_tokens, cached_tokens: total("cached_tokens"), ..agents })
}

fn mlx_lm_agents(bench: &Bench) -> Result<Agents> {
    eprintln!("The same agents, mlx-lm");
    let (server, _) = Server::start_mlx_lm(bench)?;
    agents(server.port, "default_model")
}

/// One agent, and when it has its first token, the others at once.
fn agents(port: u16, model: &str) -> Result<Agents> {
    let cold_seconds = first_token(port, model, &agent(0))?;
    let later: Vec<JoinHandle<Result<f64>>> = (1..AGENTS)
        .map(|number| {
            let model = model.to_owned();
            thread::spawn(move || first_token(port, &model, &agent(number)))
        })
        .collect();
    let later_seconds = later
        .into_iter()
        .map(|agent| agent.join().map_err(|_| anyhow!("an agent's thread panicked"))?)
        .collect::<Result<_>>()?;
    Ok(Agents { cold_seconds, later_seconds, run_tokens: None, cached_tokens: None })
}

/// What agent `number` says first.
fn agent(number: usize) -> Value {
    json!([
        { "role": "system", "content": story(SYSTEM_SENTENCES, 1) },
        { "role": "user", "content": format!("You are agent number {number}. Who are you?") },
    ])
}

/// A long conversation, its server killed, and its next turn.
fn restart(bench: &Bench) -> Result<Restart> {
    let folder = bench.folder.join("ssd");
    remove_if_there(&folder)?;
    create_folder(&folder)?;
    let flags = || ["--ssd-cache".as_ref(), folder.as_os_str()];
    let mut messages = json!([{ "role": "user", "content": format!("{} What was the story about? Answer in one sentence.", story(LONG_SENTENCES, 5)) }]);
    eprintln!("A long conversation");
    let (server, _) = Server::start_with(bench, flags())?;
    let model = model_name(server.port)?;
    let cold_seconds = first_token(server.port, &model, &messages)?;
    eprintln!("The same after its server was killed");
    stats_when(server.port, |stats| {
        stats["disk_cache"]["saved"].as_u64() > Some(0) && stats["disk_cache"]["queued_bytes"] == 0
    })?;
    drop(server);
    let (server, _) = Server::start_with(bench, flags())?;
    let turn = [
        json!({ "role": "assistant", "content": "Yes." }),
        json!({ "role": "user", "content": "And then?" }),
    ];
    messages.as_array_mut().context("failed to add a turn")?.extend(turn);
    let restored_seconds = first_token(server.port, &model, &messages)?;
    let stats = stats_when(server.port, |stats| stats["totals"]["finished_rows"] == 1)?;
    let total = |name: &str| stats["totals"][name].as_u64().unwrap_or_default();
    Ok(Restart {
        cold_seconds,
        restored_seconds,
        run_tokens: total("prompt_tokens"),
        cached_tokens: total("cached_tokens"),
    })
}

fn engine(bench: &Bench) -> Result<Value> {
    eprintln!("Looking up, and writing while a row decodes");
    let task = bench.slipstream_bench(&bench.model).args(["--figures", "cache"]);
    let task = task.args(["--prompt-tokens", "256", "--tokens", "96", "--repeats", "9"]);
    let told = task.capture()?;
    let told: Value = serde_json::from_str(told.trim())
        .with_context(|| format!("failed to parse a benchmark's JSON: `{}`", told.trim()))?;
    Ok(told["cache"].clone())
}

/// Seconds to the first text of what follows `messages`.
fn first_token(port: u16, model: &str, messages: &Value) -> Result<f64> {
    let watch = Stopwatch::start();
    let mut events = converse(port, model, messages, ANSWER_TOKENS)?;
    events.next_text()?.context("failed to time a request: it gave no text")?;
    let seconds = watch.seconds();
    while events.next_text()?.is_some() {}
    Ok(seconds)
}

/// `sentences` sentences that differ with `number`, of some sixteen tokens each.
fn story(sentences: usize, number: usize) -> String {
    let noun = |index: usize| NOUNS[index % NOUNS.len()];
    let sentence = |index: usize| {
        let (first, second) = (noun(index * index + number), noun(index * number + 1));
        format!("On day {index} the {first} was seen by the {second}, and it was good.")
    };
    (0..sentences).map(sentence).collect::<Vec<_>>().join(" ")
}
