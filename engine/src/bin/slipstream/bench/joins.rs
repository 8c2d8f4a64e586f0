//! How long a joining row holds up the ones that decode, beyond its own prompt and first token.
//!
//! While a row prefills and joins, ticks run. Each brings the others a token, as it would without the
//! newcomer; the time that it takes beyond that is what the newcomer costs them:
//!
//! ```text
//! cost = ticks from its arrival until two after its join
//!        - a step of the old batch per tick until the join
//!        - a step of the new batch for each of the two after it
//!        - prompt and first token of the same row on an idle engine
//! ```
//!
//! The two ticks after the join count because its tick only dispatches: what the wider batch costs to
//! build shows up where its first step is read. Steps are medians of ticks right before the arrival
//! and well after the join.

use serde_json::{Value, json};
use slipstream_engine::error::Result;
use slipstream_engine::limits::PREFILL_GRANULE_TOKENS;
use slipstream_engine::scheduler::{EventReceiver, Lane};

use super::rig::{Heard, Rig};
use super::{Outcome, median};

/// Ticks that a step's time is the median of.
const STEADY_TICKS: usize = 5;

/// Ticks after the join that belong to it.
const SETTLING_TICKS: usize = 2;

/// Tokens of a joining row: it decodes while the wider batch is timed.
const JOINER_TOKENS: usize = 2 + SETTLING_TICKS + STEADY_TICKS;

/// Ticks after which a joined row has left again.
const LEAVING_TICKS: usize = 3;

/// What one join was seen to take, in seconds.
#[derive(Debug, Clone)]
struct Join {
    /// Ticks from the arrival to the join, the last one included.
    joining: Vec<f64>,
    /// The two after it.
    settling: Vec<f64>,
    step_before: f64,
    step_after: f64,
}

/// What joins to a batch of `rows` rows cost.
struct Cell {
    rows: usize,
    /// Prompt and first token on an idle engine.
    alone_seconds: f64,
    joins: Vec<Join>,
}

/// Measures `repeats` joins to each number of rows.
pub(super) fn measure(rig: &mut Rig, beside: &[usize], repeats: usize) -> Result<Outcome> {
    let cells: Result<Vec<Cell>> = beside.iter().map(|rows| cell(rig, *rows, repeats)).collect();
    let cells = cells?;
    Ok(Outcome {
        name: "joins",
        json: cells.iter().map(Cell::as_json).collect(),
        table: cells.iter().map(Cell::line).collect::<Vec<String>>().join("\n"),
    })
}

fn cell(rig: &mut Rig, rows: usize, repeats: usize) -> Result<Cell> {
    let mut alone = Vec::new();
    for _ in 0..repeats {
        alone.push(alone_seconds(rig, rows)?);
    }
    let ticks_of_a_join = 2 * STEADY_TICKS + SETTLING_TICKS + LEAVING_TICKS;
    let ticks_of_prompts = 2 + rig.prompt_tokens / PREFILL_GRANULE_TOKENS;
    let tokens = (rows + repeats) * ticks_of_prompts + repeats * ticks_of_a_join;
    let others: Vec<EventReceiver> =
        (0..rows).map(|row| rig.submit(row, Lane::Continuous, tokens)).collect();
    rig.tick_until_decoding(rows)?;
    let joins: Result<Vec<Join>> = (0..repeats).map(|_| join(rig, rows)).collect();
    drop(others);
    rig.tick_until_idle();
    // The engine slows down or speeds up with the machine: look at it from both sides.
    for _ in 0..repeats {
        alone.push(alone_seconds(rig, rows)?);
    }
    Ok(Cell { rows, alone_seconds: median(alone), joins: joins? })
}

/// Seconds of prompt `number` and its first token on an idle engine.
fn alone_seconds(rig: &mut Rig, number: usize) -> Result<f64> {
    let mut receiver = rig.submit(number, Lane::Continuous, 1);
    rig.tick_until_idle();
    Ok(Heard::from(&mut receiver)?.prefill_ms / 1e3)
}

/// Has prompt `rows` join so many decoding rows, and leave again.
fn join(rig: &mut Rig, rows: usize) -> Result<Join> {
    let step_before = steady_step(rig);
    let mut joiner = rig.submit(rows, Lane::Continuous, JOINER_TOKENS);
    let joining = rig.tick_until_decoding(rows + 1)?;
    let settling = (0..SETTLING_TICKS).map(|_| rig.tick()).collect();
    let step_after = steady_step(rig);
    rig.tick_until_decoding(rows)?;
    Heard::from(&mut joiner)?;
    // What the joiner left behind is cleared away.
    rig.tick();
    Ok(Join { joining, settling, step_before, step_after })
}

fn steady_step(rig: &mut Rig) -> f64 {
    median((0..STEADY_TICKS).map(|_| rig.tick()))
}

impl Join {
    /// Seconds that it cost the others; see the module's words.
    fn cost_seconds(&self, alone_seconds: f64) -> f64 {
        let took: f64 = self.joining.iter().chain(&self.settling).sum();
        let steps = self.joining.len() as f64 * self.step_before
            + self.settling.len() as f64 * self.step_after;
        took - steps - alone_seconds
    }
}

impl Cell {
    fn costs_in_steps(&self) -> impl Iterator<Item = f64> {
        self.joins.iter().map(|join| join.cost_seconds(self.alone_seconds) / join.step_before)
    }

    fn step_ms(&self) -> f64 {
        median(self.joins.iter().map(|join| join.step_before)) * 1e3
    }

    fn as_json(&self) -> Value {
        json!({
            "rows": self.rows,
            "step_ms": self.step_ms(),
            "alone_ms": self.alone_seconds * 1e3,
            "cost_steps": median(self.costs_in_steps()),
            "costs_steps": self.costs_in_steps().collect::<Vec<f64>>(),
        })
    }

    fn line(&self) -> String {
        let least = self.costs_in_steps().fold(f64::NAN, f64::min);
        let most = self.costs_in_steps().fold(f64::NAN, f64::max);
        format!(
            "a row joins {}: {:.2} steps beyond its own {:.0} ms ({least:.2} to {most:.2} in {} \
             joins), a step is {:.0} ms",
            self.rows,
            median(self.costs_in_steps()),
            self.alone_seconds * 1e3,
            self.joins.len(),
            self.step_ms(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_costs_what_steps_and_its_own_prompt_do_not_explain() {
        let join = Join {
            joining: vec![1.0, 5.0],
            settling: vec![3.0, 2.0],
            step_before: 1.0,
            step_after: 2.0,
        };
        // 11 s, of which 2 and 4 are steps.
        assert_eq!(join.cost_seconds(4.0), 1.0);
        let cell = Cell { rows: 4, alone_seconds: 4.5, joins: vec![join] };
        assert_eq!(median(cell.costs_in_steps()), 0.5);
    }
}
