//! `cargo xtask bench hub`: what it costs to have a model, beside what is wanted.

mod download;
mod mirror;

use anyhow::Result;

use super::Bench;
use crate::stamp::write_whole;

/// Measures, prints and writes what was measured.
pub(super) fn run(bench: &Bench, rounds: usize) -> Result<()> {
    let download = download::measure(bench, rounds)?;
    println!("\n{}", download.table());
    let latest = bench.folder.join("hub.json");
    write_whole(&latest, &format!("{:#}\n", download.json()))?;
    println!("\nWritten to `{}`", latest.display());
    Ok(())
}
