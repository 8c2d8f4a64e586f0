//! `cargo xtask bench serving`: what HTTP costs beyond the engine, on a scripted model, and what token masks
//! cost, each beside what is wanted.

use anyhow::Result;

use super::Bench;
use crate::figures::Scripted;
use crate::stamp::write_whole;

/// Random answers of each constraint, whose masks are timed.
const ANSWERS: &str = "30";

/// Measures, prints the table and writes what was measured.
///
/// # Errors
/// When a stream's text was not its script's: then the figures are worth nothing.
pub(super) fn run(bench: &Bench) -> Result<()> {
    eprintln!("Measuring a scripted server, and token masks");
    let task = bench.slipstream_bench(&bench.model).args(["--figures", "serving,grammar"]);
    let told = task.args(["--repeats", ANSWERS, "--batch", "1", "--tokens", "8"]).capture()?;
    let scripted = Scripted::parse(&told)?;
    println!("\n{}", scripted.table());
    let latest = bench.folder.join("serving.json");
    write_whole(&latest, &format!("{:#}\n", scripted.json()))?;
    println!("\nWritten to `{}`", latest.display());
    scripted.check()
}
