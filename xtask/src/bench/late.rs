//! How long a request waits that comes while others decode.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::server::{chat, model_name};
use crate::clock::Stopwatch;
use crate::figures::Late;

/// Tokens that each of the three early requests has before the late one comes.
const EARLY_TOKENS: usize = 8;

/// Tokens that each of the three early requests asks for.
const EARLY_TOKENS_MAX: u64 = 192;

const EARLY_PROMPTS: [&str; 3] = [
    "Tell me a long story about a lighthouse keeper.",
    "Explain in detail how bread is made.",
    "Write a long letter to an old friend about the sea.",
];

/// Has three requests decode, sends a fourth, and times its first token and the end of the three.
pub(super) fn late_request(port: u16) -> Result<Late> {
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
