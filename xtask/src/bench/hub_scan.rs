//! `cargo xtask bench hub`, part "scan": how long it takes to learn which models there are.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bench;
use crate::process::Task;
use crate::stamp::write_whole;

/// Models that are scanned.
const MODELS: u64 = 500;

/// How long that may take when the system has their files in memory.
const SCAN_MS_MAX: f64 = 300.0;

/// Measures, prints and writes what was measured.
///
/// # Errors
/// When a scan takes longer than it may.
pub(super) fn run(bench: &Bench) -> Result<()> {
    eprintln!("Measuring a scan of {MODELS} models");
    let task = Task::new("measure a scan", &bench.server).args(["bench-scan", "--json"]);
    let told: Value =
        serde_json::from_str(&task.args(["--models", &MODELS.to_string()]).capture()?)
            .context("the measurement of a scan is no JSON")?;
    let ms = |name: &str| told[name].as_f64().with_context(|| format!("no `{name}` in {told}"));
    let (scan_ms, rescan_ms) = (ms("scan_ms")?, ms("rescan_ms")?);
    println!("\n{MODELS} models: {scan_ms:.1} ms to scan, {rescan_ms:.1} ms to scan again");
    let latest = bench.folder.join("hub_scan.json");
    write_whole(&latest, &format!("{told:#}\n"))?;
    println!("\nWritten to `{}`", latest.display());
    ensure!(scan_ms < SCAN_MS_MAX, "a scan takes {scan_ms:.1} ms, more than {SCAN_MS_MAX} ms");
    Ok(())
}
