//! Decode speed of both engines, and what a step costs their hosts.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::median;

/// What one round of one engine saw at one batch size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    pub(crate) rows: u64,
    /// All rows together.
    pub(crate) tokens_per_second: f64,
    /// Processor time of the thread that drives the engine, of one step.
    pub(crate) host_cpu_ms: f64,
    /// Time that graph, sampling and emission of one step take: neither its dispatch nor the wait for
    /// the device counts.
    pub(crate) build_ms: f64,
}

/// One batch size, one reading per round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    rows: u64,
    readings: Vec<Reading>,
}

/// Both engines at the same batch sizes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decode {
    ours: Vec<Cell>,
    mlx_lm: Vec<Cell>,
}

/// A figure of a reading.
type Figure = fn(&Reading) -> f64;

impl Decode {
    /// Puts the rounds of both engines together.
    ///
    /// # Errors
    /// When two rounds have different batch sizes, or the same ones in another order.
    pub(crate) fn collect(ours: &[Vec<Reading>], mlx_lm: &[Vec<Reading>]) -> Result<Self> {
        let rounds: Vec<_> = ours.iter().chain(mlx_lm).collect();
        let sizes = |round: &Vec<Reading>| round.iter().map(|it| it.rows).collect::<Vec<u64>>();
        let first = rounds.first().map(|round| sizes(round)).unwrap_or_default();
        if let Some(other) = rounds.iter().map(|round| sizes(round)).find(|it| *it != first) {
            bail!("failed to compare rounds: one has batch sizes {first:?}, another {other:?}");
        }
        let cells = |rounds: &[Vec<Reading>]| {
            let cell = |(column, &rows)| Cell {
                rows,
                readings: rounds.iter().map(|round| round[column]).collect(),
            };
            first.iter().enumerate().map(cell).collect()
        };
        Ok(Self { ours: cells(ours), mlx_lm: cells(mlx_lm) })
    }

    /// Lines on speed, one per batch size.
    pub(super) fn speed_lines(&self) -> impl Iterator<Item = String> {
        self.pairs().map(|(rows, ours, theirs)| {
            let speed = |cell: &Cell| cell.median(|it| it.tokens_per_second);
            let (ours, theirs) = (speed(ours), speed(theirs));
            format!("{rows:>6} {ours:>12.1} {theirs:>9.1} {:>7.2}", ours / theirs)
        })
    }

    /// Lines on the host's cost of a step, one per batch size; `model` stands at their front.
    pub(super) fn host_lines(&self, model: &str) -> impl Iterator<Item = String> {
        self.pairs().map(move |(rows, ours, theirs)| {
            let both = |figure: Figure| {
                let (ours, theirs) = (ours.median(figure), theirs.median(figure));
                format!("{ours:>10.2} {theirs:>8.2} {:>6.2}", ours / theirs)
            };
            let (build, busy) = (both(|it| it.build_ms), both(|it| it.host_cpu_ms));
            format!("{model:<20} {rows:>4} {build} {busy}")
        })
    }

    /// The head of [`Decode::host_lines`].
    pub(super) fn host_head() -> [String; 2] {
        let engines = format!("{:>10} {:>8} {:>6}", "slipstream", "mlx-lm", "ratio");
        [
            format!("{:<25} {:<26} {:<26}", "", "  build, sample, emit", "  processor time"),
            format!("{:<20} {:>4} {engines} {engines}", "model", "rows"),
        ]
    }

    /// For programs: medians, and every round they come from.
    pub(super) fn json(&self) -> Value {
        let cells = self.pairs().map(|(rows, ours, theirs)| {
            let ratio = |figure: Figure| ours.median(figure) / theirs.median(figure);
            json!({
                "rows": rows,
                "slipstream": ours.json(),
                "mlx_lm": theirs.json(),
                "tokens_per_second_ratio": ratio(|it| it.tokens_per_second),
                "build_ms_ratio": ratio(|it| it.build_ms),
                "host_cpu_ms_ratio": ratio(|it| it.host_cpu_ms),
            })
        });
        cells.collect()
    }

    /// Rows, our cell and theirs.
    fn pairs(&self) -> impl Iterator<Item = (u64, &Cell, &Cell)> {
        self.ours.iter().zip(&self.mlx_lm).map(|(ours, theirs)| (ours.rows, ours, theirs))
    }
}

impl Cell {
    fn median(&self, figure: Figure) -> f64 {
        median(&self.each(figure))
    }

    fn each(&self, figure: Figure) -> Vec<f64> {
        self.readings.iter().map(figure).collect()
    }

    fn json(&self) -> Value {
        json!({
            "tokens_per_second": self.median(|it| it.tokens_per_second),
            "host_cpu_ms": self.median(|it| it.host_cpu_ms),
            "build_ms": self.median(|it| it.build_ms),
            "tokens_per_second_rounds": self.each(|it| it.tokens_per_second),
            "host_cpu_ms_rounds": self.each(|it| it.host_cpu_ms),
            "build_ms_rounds": self.each(|it| it.build_ms),
        })
    }
}

/// Reads `{"cells": [{"rows": 1, "decode_tokens_per_second": 16.0, ...}, ...]}`, one round of one
/// engine.
pub(crate) fn parse_cells(text: &str) -> Result<Vec<Reading>> {
    let value: Value = serde_json::from_str(text.trim())
        .with_context(|| format!("failed to parse a benchmark's JSON: `{}`", text.trim()))?;
    let cells =
        value["cells"].as_array().context("failed to find `cells` in a benchmark's JSON")?;
    cells.iter().map(parse_cell).collect()
}

fn parse_cell(cell: &Value) -> Result<Reading> {
    let figure = |name: &str| match cell[name].as_f64() {
        Some(figure) if figure > 0.0 => Ok(figure),
        _ => bail!("failed to read a positive `{name}` from `{cell}`"),
    };
    let rows = cell["rows"].as_u64();
    Ok(Reading {
        rows: rows.with_context(|| format!("failed to read `rows` from `{cell}`"))?,
        tokens_per_second: figure("decode_tokens_per_second")?,
        host_cpu_ms: figure("host_cpu_ms")?,
        build_ms: figure("build_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(rows: u64, tokens_per_second: f64) -> Reading {
        Reading { rows, tokens_per_second, host_cpu_ms: 4.0, build_ms: tokens_per_second / 10.0 }
    }

    fn decode() -> Decode {
        let round = |one, four| vec![reading(1, one), reading(4, four)];
        let ours = [round(20.0, 60.0), round(10.0, 60.0), round(90.0, 60.0)];
        let mlx_lm = [round(16.0, 30.0), round(16.0, 40.0), round(1.0, 50.0)];
        Decode::collect(&ours, &mlx_lm).unwrap()
    }

    #[test]
    fn ratios_are_ours_over_theirs_and_of_medians() {
        let json = decode().json();
        assert_eq!(json[0]["tokens_per_second_ratio"], 1.25);
        assert_eq!(json[1]["tokens_per_second_ratio"], 1.5);
        assert_eq!(json[1]["build_ms_ratio"], 1.5);
        assert_eq!(json[1]["host_cpu_ms_ratio"], 1.0);
        assert_eq!(json[0]["slipstream"]["tokens_per_second_rounds"][2], 90.0);
    }

    #[test]
    fn there_is_a_line_for_each_batch_size() {
        let lines: Vec<String> = decode().speed_lines().collect();
        assert_eq!(lines[0].trim(), "1         20.0      16.0    1.25");
        assert_eq!(lines[1].trim(), "4         60.0      40.0    1.50");
        let hosts: Vec<String> = decode().host_lines("demo").collect();
        let words: Vec<&str> = hosts[1].split_whitespace().collect();
        assert_eq!(words, ["demo", "4", "6.00", "4.00", "1.50", "4.00", "4.00", "1.00"]);
        assert_eq!(hosts[0].len(), Decode::host_head()[1].len());
    }

    #[test]
    fn cells_are_read_from_what_both_engines_print() {
        let text = r#"{"cells":[{"rows":1,"decode_tokens_per_second":16.5,"host_cpu_ms":2.5,
            "build_ms":0.5,"more":1}]}"#;
        let expected =
            Reading { rows: 1, tokens_per_second: 16.5, host_cpu_ms: 2.5, build_ms: 0.5 };
        assert_eq!(parse_cells(text).unwrap(), [expected]);
    }

    #[test]
    fn cells_without_figures_are_refused() {
        let whole = r#""decode_tokens_per_second": 1, "host_cpu_ms": 1, "build_ms": 1"#;
        assert!(parse_cells(&format!(r#"{{"cells": [{{"rows": 1, {whole}}}]}}"#)).is_ok());
        let cell = |fields: &str| format!(r#"{{"cells": [{{{fields}}}]}}"#);
        for text in [
            String::new(),
            "[]".to_owned(),
            r#"{"cells": 1}"#.to_owned(),
            cell(r#""rows": 1"#),
            cell(whole),
            cell(&format!(r#""rows": -1, {whole}"#)),
            cell(&format!(r#""rows": 1, {}"#, whole.replacen('1', "0", 1))),
            cell(r#""rows": 1, "decode_tokens_per_second": 1, "build_ms": 1"#),
        ] {
            assert!(parse_cells(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn rounds_with_different_batch_sizes_do_not_compare() {
        let one = vec![reading(1, 1.0)];
        let four = vec![reading(4, 1.0)];
        assert!(Decode::collect(std::slice::from_ref(&one), std::slice::from_ref(&one)).is_ok());
        assert!(Decode::collect(&[one.clone(), four.clone()], std::slice::from_ref(&one)).is_err());
        assert!(Decode::collect(std::slice::from_ref(&one), &[four]).is_err());
        assert!(Decode::collect(&[one], &[vec![]]).is_err());
    }
}
