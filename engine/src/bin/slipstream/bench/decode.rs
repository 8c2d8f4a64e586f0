//! How fast batches decode, and what a step costs the host.
//!
//! The host's cost is taken in two ways. `host_cpu_ms` is the processor time of the engine's thread,
//! everything that a tick does included, without waits of any kind. `build_ms` and `host_ms` are the
//! wall clock's, see [`StepTimes`](slipstream_engine::telemetry::StepTimes).

use serde_json::{Value, json};
use slipstream_engine::clock::thread_busy;
use slipstream_engine::error::Result;
use slipstream_engine::scheduler::{EventReceiver, Lane};
use slipstream_engine::telemetry::StepTimes;

use super::Outcome;
use super::rig::Rig;

struct Cell {
    rows: usize,
    decode_tokens_per_second: f64,
    prefill_tokens_per_second: f64,
    /// Of one step.
    host_cpu_ms: f64,
    times: StepTimes,
}

/// Measures each batch size once.
pub(super) fn measure(rig: &mut Rig, batch: &[usize], tokens: usize) -> Result<Outcome> {
    let cells: Result<Vec<Cell>> = batch.iter().map(|rows| cell(rig, *rows, tokens)).collect();
    let cells = cells?;
    Ok(Outcome {
        name: "cells",
        json: cells.iter().map(Cell::as_json).collect(),
        table: table(&cells),
    })
}

/// Prefills `rows` rows, then times the steps in which all of them decode.
fn cell(rig: &mut Rig, rows: usize, tokens: usize) -> Result<Cell> {
    let started = rig.clock.now();
    let listeners: Vec<EventReceiver> =
        (0..rows).map(|row| rig.submit(row, Lane::Continuous, tokens)).collect();
    rig.tick_until_decoding(rows)?;
    rig.scheduler.forget_step_times();
    let (joined, busy) = (rig.clock.now(), thread_busy());
    let before = rig.scheduler.snapshot().totals;
    rig.tick_until_idle();
    let (decode, busy) = (rig.clock.now() - joined, thread_busy() - busy);
    drop(listeners);
    let after = rig.scheduler.snapshot();
    let generated = after.totals.generated_tokens - before.generated_tokens;
    let steps = after.totals.decode_steps - before.decode_steps;
    Ok(Cell {
        rows,
        decode_tokens_per_second: generated as f64 / decode.as_secs_f64(),
        prefill_tokens_per_second: (rows * rig.prompt_tokens) as f64
            / (joined - started).as_secs_f64(),
        host_cpu_ms: busy.as_secs_f64() * 1e3 / steps as f64,
        times: after.step,
    })
}

fn table(cells: &[Cell]) -> String {
    let head = "rows  decode tok/s  prefill tok/s  host CPU ms/step  build ms p50  host ms p50";
    let lines = cells.iter().map(|cell| {
        let (decode, prefill) = (cell.decode_tokens_per_second, cell.prefill_tokens_per_second);
        let StepTimes { build_ms_p50, host_ms_p50, .. } = cell.times;
        format!(
            "{:>4}  {decode:>12.1}  {prefill:>13.1}  {:>16.3}  {build_ms_p50:>12.3}  \
             {host_ms_p50:>11.3}",
            cell.rows, cell.host_cpu_ms
        )
    });
    std::iter::once(head.to_owned()).chain(lines).collect::<Vec<String>>().join("\n")
}

impl Cell {
    fn as_json(&self) -> Value {
        json!({
            "rows": self.rows,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "host_cpu_ms": self.host_cpu_ms,
            "build_ms": self.times.build_ms_p50,
            "host_ms": self.times.host_ms_p50,
        })
    }
}
