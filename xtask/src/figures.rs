//! What a benchmark measured, and how it reads: medians over rounds, ratios, a table and JSON.
//! Nothing here runs anything.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Decode speed at one batch size, one figure per round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) rows: u64,
    /// All rows together.
    pub(crate) tokens_per_second: Vec<f64>,
}

/// What was seen over HTTP, one figure per round where it is a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Serving {
    /// From spawning the process to its first good answer.
    pub(crate) ready_seconds: Vec<f64>,
    /// Requests that came while three others decoded.
    pub(crate) late: Vec<Late>,
    /// Share of one core, without any request. `None` where the system does not tell.
    pub(crate) idle_percent: Option<f64>,
    pub(crate) pressure: Option<Pressure>,
}

/// What a full server did while a long prompt joined.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pressure {
    pub(crate) stats_ms: Vec<f64>,
    pub(crate) health_ms: Vec<f64>,
    /// Between the pieces of one running row's answer.
    pub(crate) gaps_ms: Vec<f64>,
    /// Of the long prompt.
    pub(crate) first_token_seconds: f64,
}

/// What an idle server held as requests went by.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Soak {
    pub(crate) points: Vec<SoakPoint>,
}

/// One look at an idle server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SoakPoint {
    /// Answered or left before.
    pub(crate) requests: usize,
    pub(crate) active_bytes: u64,
    pub(crate) weights_bytes: u64,
    pub(crate) resident_bytes: u64,
}

impl Soak {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut lines =
            vec!["idle after  arrays beyond weights, MB  resident memory, MB".to_owned()];
        lines.extend(self.points.iter().map(|point| {
            let beyond = point.active_bytes as f64 - point.weights_bytes as f64;
            let resident = point.resident_bytes as f64 / 1e6;
            format!("{:>10}  {:>25.2}  {resident:>19.1}", point.requests, beyond / 1e6)
        }));
        lines.join("\n")
    }
}

impl Pressure {
    fn lines(&self) -> Vec<String> {
        let line = |name: &str, values: &[f64]| {
            let at = |share| percentile(values, share);
            let (middle, high, most) = (at(0.5), at(0.99), at(1.0));
            format!("{name} p50 {middle:.1} ms, p99 {high:.1} ms, most {most:.1} ms")
        };
        vec![
            line("/stats under pressure  ", &self.stats_ms),
            line("/health under pressure ", &self.health_ms),
            line("a row's gaps, long join", &self.gaps_ms),
            format!("the long prompt's 1st token after {:.1} s", self.first_token_seconds),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "stats_ms_p99": percentile(&self.stats_ms, 0.99),
            "health_ms_p99": percentile(&self.health_ms, 0.99),
            "gap_ms_p50": percentile(&self.gaps_ms, 0.5),
            "gap_ms_p99": percentile(&self.gaps_ms, 0.99),
            "long_first_token_seconds": self.first_token_seconds,
        })
    }
}

/// One request that came late, counted from its arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Late {
    pub(crate) first_token_seconds: f64,
    /// When the last of the others had ended.
    pub(crate) others_end_seconds: f64,
}

/// One whole run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    pub(crate) ours: Vec<Cell>,
    pub(crate) mlx_lm: Vec<Cell>,
    pub(crate) serving: Serving,
}

impl Figures {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![
            "decode, tokens/s of all rows (median of the rounds)".to_owned(),
            format!("{:>6} {:>12} {:>9} {:>7}", "rows", "slipstream", "mlx-lm", "ratio"),
        ];
        lines.extend(self.pairs().map(|(rows, ours, theirs)| {
            format!("{rows:>6} {ours:>12.1} {theirs:>9.1} {:>7.2}", ours / theirs)
        }));
        lines.push(String::new());
        lines.extend(self.serving.lines());
        lines.join("\n")
    }

    /// For programs: medians, and every round they come from.
    pub(crate) fn json(&self) -> Value {
        let decode: Vec<Value> = self
            .pairs()
            .zip(self.ours.iter().zip(&self.mlx_lm))
            .map(|((rows, ours, theirs), (our_cell, their_cell))| {
                json!({
                    "rows": rows,
                    "slipstream_tokens_per_second": ours,
                    "mlx_lm_tokens_per_second": theirs,
                    "ratio": ours / theirs,
                    "slipstream_rounds": our_cell.tokens_per_second,
                    "mlx_lm_rounds": their_cell.tokens_per_second,
                })
            })
            .collect();
        json!({ "decode": decode, "serving": self.serving.json() })
    }

    /// Rows, our median and theirs.
    fn pairs(&self) -> impl Iterator<Item = (u64, f64, f64)> {
        self.ours.iter().zip(&self.mlx_lm).map(|(ours, theirs)| {
            (ours.rows, median(&ours.tokens_per_second), median(&theirs.tokens_per_second))
        })
    }
}

impl Serving {
    fn late_median(&self, figure: impl Fn(&Late) -> f64) -> f64 {
        median(&self.late.iter().map(figure).collect::<Vec<f64>>())
    }

    fn lines(&self) -> Vec<String> {
        let first = self.late_median(|late| late.first_token_seconds);
        let end = self.late_median(|late| late.others_end_seconds);
        let share = self.late_median(Late::share);
        let idle = self.idle_percent.map_or("not measured".to_owned(), |it| format!("{it:.2} %"));
        let mut lines = vec![
            format!("start to ready          {:.2} s", median(&self.ready_seconds)),
            format!(
                "late request's 1st token {first:.2} s, the 3 others end at {end:.2} s: {share:.2}"
            ),
            format!("idle CPU                {idle}"),
        ];
        lines.extend(self.pressure.iter().flat_map(Pressure::lines));
        lines
    }

    fn json(&self) -> Value {
        json!({
            "ready_seconds": median(&self.ready_seconds),
            "late_first_token_seconds": self.late_median(|late| late.first_token_seconds),
            "late_others_end_seconds": self.late_median(|late| late.others_end_seconds),
            "late_share": self.late_median(Late::share),
            "idle_percent": self.idle_percent,
            "pressure": self.pressure.as_ref().map(Pressure::json),
        })
    }
}

impl Late {
    /// How much of the wait for the others the first token took.
    fn share(&self) -> f64 {
        self.first_token_seconds / self.others_end_seconds
    }
}

/// The middle value; of an even number of values, the mean of the middle two. NaN for none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// The value that a `share` of all are not above: the nearest rank. NaN for none.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// Reads `{"cells": [{"rows": 1, "decode_tokens_per_second": 16.0}, ...]}`, one round of one engine.
pub(crate) fn parse_cells(text: &str) -> Result<Vec<(u64, f64)>> {
    let value: Value = serde_json::from_str(text.trim())
        .with_context(|| format!("failed to parse a benchmark's JSON: `{}`", text.trim()))?;
    let cells =
        value["cells"].as_array().context("failed to find `cells` in a benchmark's JSON")?;
    cells.iter().map(parse_cell).collect()
}

fn parse_cell(cell: &Value) -> Result<(u64, f64)> {
    let rows = cell["rows"].as_u64();
    let speed = cell["decode_tokens_per_second"].as_f64();
    match (rows, speed) {
        (Some(rows), Some(speed)) if speed > 0.0 => Ok((rows, speed)),
        _ => bail!("failed to read `rows` and a positive `decode_tokens_per_second` from `{cell}`"),
    }
}

/// Puts the rounds of one engine together; all must have the same batch sizes in the same order.
pub(crate) fn collect(rounds: &[Vec<(u64, f64)>]) -> Result<Vec<Cell>> {
    let sizes = |round: &Vec<(u64, f64)>| round.iter().map(|cell| cell.0).collect::<Vec<u64>>();
    let first = rounds.first().map(sizes).unwrap_or_default();
    if let Some(other) = rounds.iter().map(sizes).find(|other| *other != first) {
        bail!("failed to compare rounds: one has batch sizes {first:?}, another {other:?}");
    }
    let cell = |(column, &rows): (usize, &u64)| Cell {
        rows,
        tokens_per_second: rounds.iter().map(|round| round[column].1).collect(),
    };
    Ok(first.iter().enumerate().map(cell).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let cell = |rows, figures: &[f64]| Cell { rows, tokens_per_second: figures.to_vec() };
        Figures {
            ours: vec![cell(1, &[20.0, 10.0, 90.0]), cell(4, &[60.0, 60.0, 60.0])],
            mlx_lm: vec![cell(1, &[16.0, 16.0, 1.0]), cell(4, &[30.0, 40.0, 50.0])],
            serving: Serving {
                ready_seconds: vec![1.0, 2.0],
                late: vec![Late { first_token_seconds: 0.5, others_end_seconds: 5.0 }],
                idle_percent: None,
                pressure: None,
            },
        }
    }

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), 50.0);
        assert_eq!(percentile(&values, 0.99), 99.0);
        assert_eq!(percentile(&values, 1.0), 100.0);
        assert_eq!(percentile(&[7.0], 0.01), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_median_does_not_depend_on_order_nor_on_one_outlier() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[2.0, 1e9, 1.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratios_are_ours_over_theirs_and_of_medians() {
        let json = figures().json();
        assert_eq!(json["decode"][0]["ratio"], 1.25);
        assert_eq!(json["decode"][1]["ratio"], 1.5);
        assert_eq!(json["serving"]["ready_seconds"], 1.5);
        assert_eq!(json["serving"]["late_share"], 0.1);
        assert_eq!(json["serving"]["idle_percent"], Value::Null);
    }

    #[test]
    fn the_table_has_a_line_for_each_batch_size() {
        let table = figures().table();
        assert!(table.contains("     4         60.0      40.0    1.50"), "{table}");
        assert!(table.contains("     1         20.0      16.0    1.25"), "{table}");
    }

    #[test]
    fn cells_are_read_from_what_both_engines_print() {
        let text = r#"{"cells":[{"rows":1,"decode_tokens_per_second":16.5,"more":1}]}"#;
        assert_eq!(parse_cells(text).unwrap(), [(1, 16.5)]);
    }

    #[test]
    fn cells_without_figures_are_refused() {
        for text in [
            "",
            "[]",
            r#"{"cells": 1}"#,
            r#"{"cells": [{"rows": 1}]}"#,
            r#"{"cells": [{"rows": -1, "decode_tokens_per_second": 1}]}"#,
            r#"{"cells": [{"rows": 1, "decode_tokens_per_second": 0}]}"#,
        ] {
            assert!(parse_cells(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rounds_with_different_batch_sizes_do_not_compare() {
        let good = [vec![(1, 1.0), (4, 2.0)], vec![(1, 3.0), (4, 4.0)]];
        let cells = collect(&good).unwrap();
        assert_eq!(cells[1], Cell { rows: 4, tokens_per_second: vec![2.0, 4.0] });
        assert!(collect(&[vec![(1, 1.0)], vec![(4, 1.0)]]).is_err());
        assert!(collect(&[vec![(1, 1.0)], vec![]]).is_err());
    }
}
