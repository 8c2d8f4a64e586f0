//! Look-ups among many kept prompts, and what a row that decodes pays while others are written to the disk.
//!
//! The row decodes in pairs, once beside the disk at rest and once beside prompts that are due there; the order
//! alternates, so that a machine that grows slower or faster meanwhile favours neither. The prompts go to a folder
//! of their own, which is removed afterwards.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::limits::DISK_SETTLE_MS;
use slipstream_engine::mlx::thread::Activity;
use slipstream_engine::prompt_cache::{LookupLoad, LookupTimes, measure_lookups};
use slipstream_engine::scheduler::Lane;

use super::rig::Rig;
use super::{Outcome, median};

/// Entries as long as conversations of agents, with a few system prompts among them.
const LOOKUPS: LookupLoad =
    LookupLoad { entries: 10_000, tokens: 8192, groups: 20, system_tokens: 2000, lookups: 5000 };

/// Prompts that are due at the disk while a row decodes.
const DUE_PROMPTS: usize = 2;

/// Seconds of one decoding row, beside a disk at rest and one that is written to.
#[derive(Debug, Clone, Copy)]
struct Pair {
    resting: f64,
    writing: f64,
}

/// Measures `repeats` pairs, and look-ups.
///
/// # Errors
/// When nothing was written where something was due.
pub(super) fn measure(rig: &mut Rig, repeats: usize, tokens: usize) -> Result<Outcome> {
    let mut written = 0;
    // The first run warms up memory and processor.
    decode(rig, tokens)?;
    let mut pairs = Vec::new();
    for number in 0..repeats {
        let mut pair = Pair { resting: f64::NAN, writing: f64::NAN };
        for writes in [number % 2 == 0, number % 2 == 1] {
            match writes {
                true => pair.writing = beside_writing(rig, &mut written, tokens)?,
                false => pair.resting = decode(rig, tokens)?,
            }
        }
        pairs.push(pair);
    }
    let lookups = measure_lookups(&LOOKUPS)?;
    Ok(Outcome { name: "cache", json: as_json(&pairs, &lookups), table: table(&pairs, &lookups) })
}

/// Decodes beside prompts that are due, and has the rest of them written afterwards.
fn beside_writing(rig: &mut Rig, written: &mut usize, tokens: usize) -> Result<f64> {
    for _ in 0..DUE_PROMPTS {
        *written += 1;
        let _heard = rig.submit(*written, Lane::Continuous, 2);
        rig.tick_until_idle();
    }
    std::thread::sleep(Duration::from_millis(DISK_SETTLE_MS + 100));
    let before = rig.written_bytes();
    let seconds = decode(rig, tokens)?;
    let wrote = rig.written_bytes() > before;
    rest(rig);
    match wrote {
        true => Ok(seconds),
        false => Err(Error::new(Code::Internal, "nothing was written while a row decoded")),
    }
}

/// Seconds of the steps of one row; its prompt does not count.
fn decode(rig: &mut Rig, tokens: usize) -> Result<f64> {
    let _heard = rig.submit(0, Lane::Continuous, tokens);
    rig.tick_until_decoding(1)?;
    let mut seconds = 0.0;
    while rig.scheduler.live_rows() > 0 {
        seconds += rig.tick();
    }
    Ok(seconds)
}

/// Lets the disk take what is due.
fn rest(rig: &mut Rig) {
    while let Activity::Busy | Activity::Resting(_) = rig.scheduler.tick() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Pair {
    fn tax_percent(self) -> f64 {
        (self.writing / self.resting - 1.0) * 100.0
    }
}

fn as_json(pairs: &[Pair], lookups: &LookupTimes) -> Value {
    let taxes: Vec<f64> = pairs.iter().map(|pair| pair.tax_percent()).collect();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    json!({
        "writing": { "tax_percent": median(taxes.iter().copied()), "taxes_percent": taxes },
        "lookups": {
            "entries": LOOKUPS.entries,
            "tokens": LOOKUPS.tokens,
            "hits": lookups.hits,
            "p50_ms": ms(lookups.p50),
            "p99_ms": ms(lookups.p99),
            "most_ms": ms(lookups.most),
        },
    })
}

fn table(pairs: &[Pair], lookups: &LookupTimes) -> String {
    let LookupTimes { p50, p99, most, .. } = lookups;
    format!(
        "writing prompts to the disk costs a row {:.2} % (median of {} pairs)\nlook-up among {} entries of {} \
         tokens: p50 {p50:?}, p99 {p99:?}, longest {most:?}",
        median(pairs.iter().map(|pair| pair.tax_percent())),
        pairs.len(),
        LOOKUPS.entries,
        LOOKUPS.tokens,
    )
}

/// A folder that goes with its owner.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    /// # Errors
    /// `Io` when it cannot be made.
    pub(super) fn make() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("slipstream-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tax_is_what_writing_adds() {
        assert_eq!(Pair { resting: 2.0, writing: 3.0 }.tax_percent(), 50.0);
        assert_eq!(Pair { resting: 2.0, writing: 2.0 }.tax_percent(), 0.0);
    }
}
