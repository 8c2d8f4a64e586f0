//! What a benchmark measured, and how it reads: medians over rounds, ratios, a table and JSON.
//! Nothing here runs anything.

mod cache;
mod decode;
mod engine;
mod hub;
mod scripted;
mod serving;
mod soak;
mod wanted;

use serde_json::{Value, json};

pub(crate) use cache::{Agents, Cache, Restart};
pub(crate) use decode::{Decode, Reading, parse_cells};
pub(crate) use engine::Engine;
pub(crate) use hub::Download;
pub(crate) use scripted::Scripted;
pub(crate) use serving::{Gap, Late, Pressure, Serving};
pub(crate) use soak::{Soak, SoakPoint};

/// What a step of each family's tiny checkpoint costs the hosts.
pub(crate) fn families_table(families: &[(String, Decode)]) -> String {
    let mut lines = vec!["the host's part of a step, ms (median of the rounds)".to_owned()];
    lines.extend(Decode::host_head());
    lines.extend(families.iter().flat_map(|(name, decode)| decode.host_lines(name)));
    lines.join("\n")
}

/// One whole run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    /// Of the demo model.
    pub(crate) decode: Decode,
    /// Of a model of 28 layers without width.
    pub(crate) narrow: Decode,
    pub(crate) engine: Engine,
    pub(crate) serving: Serving,
}

impl Figures {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![
            "decode, tokens/s of all rows (median of the rounds)".to_owned(),
            format!("{:>6} {:>12} {:>9} {:>7}", "rows", "slipstream", "mlx-lm", "ratio"),
        ];
        lines.extend(self.decode.speed_lines());
        lines.push("\nthe host's part of a step, ms (median of the rounds)".to_owned());
        lines.extend(Decode::host_head());
        lines.extend(self.decode.host_lines("demo"));
        lines.extend(self.narrow.host_lines("28 layers"));
        lines.push(String::new());
        lines.extend(self.engine.lines());
        lines.extend(self.serving.lines());
        lines.join("\n")
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "decode": self.decode.json(),
            "decode_28_layers": self.narrow.json(),
            "engine": self.engine.json(),
            "serving": self.serving.json(),
        })
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

/// How steeply y grows with x: least squares over points `(x, y)`. NaN for fewer than two different x.
fn slope(points: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    let points: Vec<(f64, f64)> = points.into_iter().collect();
    let count = points.len() as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / count;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / count;
    let along: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    along / spread
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_slope_is_that_of_the_line_and_errors_that_cancel_do_not_tilt_it() {
        assert_eq!(slope([(0.0, 5.0), (10.0, 25.0), (20.0, 45.0)]), 2.0);
        assert_eq!(slope([(0.0, 4.0), (1.0, 7.0), (2.0, 7.0), (3.0, 4.0)]), 0.0);
        assert!(slope([(1.0, 1.0)]).is_nan());
        assert!(slope([]).is_nan());
    }
}
