//! `cargo xtask bench soak`: whether memory comes back after thousands of requests, many of which
//! leave in the middle.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow};

use super::Bench;
use super::server::{Server, chat, model_name, stats_when};
use crate::figures::{Soak, SoakPoint};

/// Requests between two looks at an idle server.
const ROUND_REQUESTS: usize = 250;

/// Looks, and rounds of requests before each but the first.
const ROUNDS: usize = 8;

/// Clients at once.
const CLIENTS: usize = 10;

impl Bench {
    /// Runs the requests and returns what an idle server held in between.
    pub(super) fn soak(&self) -> Result<Soak> {
        let (server, _) = Server::start(self)?;
        let model = model_name(server.port)?;
        let mut points = Vec::new();
        for round in 0..=ROUNDS {
            points.push(look(&server, round * ROUND_REQUESTS)?);
            if round < ROUNDS {
                eprintln!("Soak: round {} of {ROUNDS}", round + 1);
                requests(server.port, &model, round * ROUND_REQUESTS)?;
            }
        }
        Ok(Soak { points })
    }
}

/// What the server holds once nothing runs.
fn look(server: &Server, requests: usize) -> Result<SoakPoint> {
    let idle = |stats: &serde_json::Value| {
        stats["batch"]["active_rows"] == 0 && stats["batch"]["pending_rows"] == 0
    };
    let stats = stats_when(server.port, idle)?;
    let bytes = |name: &str| stats["memory"][name].as_u64().unwrap_or_default();
    Ok(SoakPoint {
        requests,
        active_bytes: bytes("active_bytes"),
        weights_bytes: bytes("weights_bytes"),
        resident_bytes: server.resident_bytes().unwrap_or_default(),
    })
}

fn requests(port: u16, model: &str, first: usize) -> Result<()> {
    let next = AtomicUsize::new(first);
    thread::scope(|scope| {
        let client = || loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= first + ROUND_REQUESTS {
                return Ok(());
            }
            request(port, model, number)?;
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|client| {
            client.join().map_err(|_| anyhow!("a client's thread panicked"))?
        })
    })
}

/// One request of a random length; three of ten are left after a random number of pieces.
fn request(port: u16, model: &str, number: usize) -> Result<()> {
    let dice = |sides: usize, salt: usize| mix(number * 31 + salt) % sides;
    let prompt = "Say a word. ".repeat(1 + dice(16, 1));
    let tokens = 1 + dice(10, 2);
    let leaves_after = (dice(10, 3) < 3).then(|| dice(tokens, 4));
    let mut events = chat(port, model, &prompt, tokens as u64)?;
    for heard in 0.. {
        if leaves_after == Some(heard) || events.next_text()?.is_none() {
            break;
        }
    }
    Ok(())
}

/// Xorshift-multiply, enough to scatter lengths.
fn mix(number: usize) -> usize {
    let mut bits = number.wrapping_add(0x9E37_79B9).wrapping_mul(0x85EB_CA6B);
    bits ^= bits >> 13;
    bits.wrapping_mul(0xC2B2_AE35) >> 7
}

impl Server {
    /// Resident memory of the process, where the system tells.
    fn resident_bytes(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        resident_bytes(&status)
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Runs the soak and writes its result.
pub(super) fn run(bench: &Bench) -> Result<()> {
    let soak = bench.soak().context("failed to soak the server")?;
    println!("\n{}", soak.table());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::resident_bytes;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_bytes("Name: x\nVmRSS:\t    12 kB\nThreads: 1\n"), Some(12 * 1024));
        assert_eq!(resident_bytes("Name: x\n"), None);
    }
}
