//! What a busy server still does in time: it answers `/stats` and `/health`, and a running row keeps
//! its pace while a long prompt joins.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, anyhow};
use serde_json::Value;

use super::server::{chat, model_name, stats_when};
use crate::clock::Stopwatch;
use crate::figures::{Gap, Pressure};
use crate::http;

/// Rows that decode beside the watched one. The server has room for one more: the long prompt.
const ROWS: usize = 6;

/// Tokens that the watched row has before the long prompt comes.
const STEADY_TOKENS: u64 = 24;

/// Tokens that each of those rows says, more than the long prompt has chunks.
const ROW_TOKENS: u64 = 320;

/// Words of the prompt that joins; about as many tokens.
const LONG_PROMPT_WORDS: usize = 6000;

/// Fills the server, sends a long prompt, and watches until all is over.
pub(super) fn pressure(port: u16) -> Result<Pressure> {
    let model = model_name(port)?;
    let over = AtomicBool::new(false);
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        let crowd = scope.spawn(|| crowd(port, &model));
        stats_when(port, |stats| stats["batch"]["active_rows"] == ROWS)?;
        let watched = scope.spawn(|| gaps(port, &model, watch));
        let asked = scope.spawn(|| answers_ms(port, &over));
        let stats = stats_when(port, |stats| {
            stats["batch"]["active_rows"] == ROWS + 1
                && generated(stats).is_some_and(|tokens| tokens >= STEADY_TOKENS)
        })?;
        let sent_seconds = watch.seconds();
        let joiner = scope.spawn(|| long_prompt(port, &model));
        let first_token_seconds = joined(joiner.join())?;
        joined(crowd.join())?;
        let gaps = joined(watched.join())?;
        over.store(true, Ordering::Relaxed);
        let (stats_ms, health_ms) = joined(asked.join())?;
        let max_gap_ms = stats["batch"]["max_gap_ms"].as_f64();
        Ok(Pressure { stats_ms, health_ms, gaps, max_gap_ms, sent_seconds, first_token_seconds })
    })
}

/// Tokens of the row that came last.
fn generated(stats: &Value) -> Option<u64> {
    stats["rows"].as_array()?.last()?["generated_tokens"].as_u64()
}

fn joined<T>(outcome: thread::Result<Result<T>>) -> Result<T> {
    outcome.map_err(|_| anyhow!("a measuring thread panicked"))?
}

/// Runs [`ROWS`] rows to their ends.
fn crowd(port: u16, model: &str) -> Result<()> {
    thread::scope(|scope| {
        let rows: Vec<_> = (0..ROWS)
            .map(|row| scope.spawn(move || drain(port, model, &format!("Tell me story {row}."))))
            .collect();
        rows.into_iter().try_for_each(|row| joined(row.join()))
    })
}

fn drain(port: u16, model: &str, prompt: &str) -> Result<()> {
    let mut events = chat(port, model, prompt, ROW_TOKENS)?;
    while events.next_text()?.is_some() {}
    Ok(())
}

/// The gaps between the pieces of one row's answer.
fn gaps(port: u16, model: &str, watch: Stopwatch) -> Result<Vec<Gap>> {
    let mut events = chat(port, model, "Write about the history of the sea.", ROW_TOKENS)?;
    events.next_text()?;
    let mut heard_seconds = watch.seconds();
    let mut gaps = Vec::new();
    while events.next_text()?.is_some() {
        let at_seconds = watch.seconds();
        gaps.push(Gap { at_seconds, ms: (at_seconds - heard_seconds) * 1e3 });
        heard_seconds = at_seconds;
    }
    Ok(gaps)
}

/// Sends the long prompt; seconds to its first token.
fn long_prompt(port: u16, model: &str) -> Result<f64> {
    let prompt = "word ".repeat(LONG_PROMPT_WORDS);
    let watch = Stopwatch::start();
    let mut events = chat(port, model, &prompt, 4)?;
    events.next_text()?;
    let seconds = watch.seconds();
    while events.next_text()?.is_some() {}
    Ok(seconds)
}

/// Milliseconds that answers of `/stats` and of `/health` take, asked in turns until `over`.
fn answers_ms(port: u16, over: &AtomicBool) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut stats, mut health) = (Vec::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        for (path, answers) in [("/stats", &mut stats), ("/health", &mut health)] {
            let watch = Stopwatch::start();
            http::get(port, path)?;
            answers.push(watch.seconds() * 1e3);
            thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    Ok((stats, health))
}
