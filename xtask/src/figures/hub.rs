//! What it costs to have a model.

use serde_json::{Value, json};

use super::median;

/// Our speed beside curl's, at least.
const RATIO_WANTED: f64 = 0.9;

/// A model fetched by us and by curl in turns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Download {
    /// Of its weights.
    pub(crate) bytes: f64,
    /// Seconds of each round.
    pub(crate) ours: Vec<f64>,
    /// Seconds of each round.
    pub(crate) curl: Vec<f64>,
}

impl Download {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let speed = |seconds: &[f64]| self.bytes / median(seconds) / 1e6;
        let (ours, curl) = (speed(&self.ours), speed(&self.curl));
        let missed = if ours / curl >= RATIO_WANTED { "" } else { "  MISSED" };
        [
            format!(
                "a model of {:.2} GB from loopback, MB/s (median of the rounds)",
                self.bytes / 1e9
            ),
            format!("{:>12} {:>9} {:>7} {:>9}", "slipstream", "curl", "ratio", "wanted"),
            format!(
                "{ours:>12.0} {curl:>9.0} {:>7.2} {:>9}{missed}",
                ours / curl,
                format!(">= {RATIO_WANTED}")
            ),
        ]
        .join("\n")
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({ "download": { "bytes": self.bytes, "seconds": self.ours, "curl_seconds": self.curl } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_that_is_slower_than_is_wanted_is_marked() {
        let table = |ours: f64| Download { bytes: 1e9, ours: vec![ours], curl: vec![0.9] }.table();
        assert!(table(1.1).contains("MISSED"));
        assert!(!table(1.0).contains("MISSED"));
        assert!(table(1.0).contains("1000"));
    }
}
