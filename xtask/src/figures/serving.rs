//! What was seen of a server over HTTP.

use serde_json::{Value, json};

use super::{median, percentile};

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
    /// Between the pieces of one running row's answer, from the first one on.
    pub(crate) gaps: Vec<Gap>,
    /// How long a prompt may hold up a running row, as the server says; `None` when it promises nothing.
    pub(crate) max_gap_ms: Option<f64>,
    /// When the long prompt was sent, on the clock of the gaps.
    pub(crate) sent_seconds: f64,
    /// Of the long prompt, since it was sent.
    pub(crate) first_token_seconds: f64,
}

/// A pause in a running row's answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gap {
    /// When it ended.
    pub(crate) at_seconds: f64,
    pub(crate) ms: f64,
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
            line("a row's gaps, long join", &self.gaps_beside_ms()),
            format!("  promised              {}", self.promise()),
            format!("the long prompt's 1st token after {:.1} s", self.first_token_seconds),
        ]
    }

    fn promise(&self) -> String {
        let step_ms = self.step_ms();
        self.max_gap_ms.map_or("nothing".to_owned(), |gap_ms| {
            format!("{gap_ms:.0} ms and a step of {step_ms:.0} ms: {:.0} ms", gap_ms + step_ms)
        })
    }

    /// One step of the running rows: what their gaps were before the long prompt came.
    fn step_ms(&self) -> f64 {
        median(&self.gaps_ms(|at_seconds| at_seconds < self.sent_seconds))
    }

    /// The gaps that ended while the long prompt ran, or right after it.
    fn gaps_beside_ms(&self) -> Vec<f64> {
        let joined = self.sent_seconds + self.first_token_seconds + self.step_ms() / 1e3;
        self.gaps_ms(|at_seconds| (self.sent_seconds..=joined).contains(&at_seconds))
    }

    fn gaps_ms(&self, wanted: impl Fn(f64) -> bool) -> Vec<f64> {
        self.gaps.iter().filter(|gap| wanted(gap.at_seconds)).map(|gap| gap.ms).collect()
    }

    fn json(&self) -> Value {
        json!({
            "stats_ms_p99": percentile(&self.stats_ms, 0.99),
            "health_ms_p99": percentile(&self.health_ms, 0.99),
            "gaps": self.gaps_beside_ms().len(),
            "gap_ms_p50": percentile(&self.gaps_beside_ms(), 0.5),
            "gap_ms_p99": percentile(&self.gaps_beside_ms(), 0.99),
            "max_gap_ms": self.max_gap_ms,
            "step_ms": self.step_ms(),
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

impl Serving {
    fn late_median(&self, figure: impl Fn(&Late) -> f64) -> f64 {
        median(&self.late.iter().map(figure).collect::<Vec<f64>>())
    }

    pub(super) fn lines(&self) -> Vec<String> {
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

    pub(super) fn json(&self) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure() -> Pressure {
        let gap = |at_seconds, ms| Gap { at_seconds, ms };
        Pressure {
            stats_ms: vec![1.0],
            health_ms: vec![1.0],
            gaps: vec![gap(0.1, 100.0), gap(0.2, 100.0), gap(1.2, 1000.0), gap(9.0, 7000.0)],
            max_gap_ms: Some(900.0),
            sent_seconds: 0.5,
            first_token_seconds: 1.0,
        }
    }

    #[test]
    fn gaps_before_the_long_prompt_are_steps_and_later_ones_do_not_count() {
        let pressure = pressure();
        assert_eq!(pressure.step_ms(), 100.0);
        assert_eq!(pressure.gaps_beside_ms(), [1000.0]);
        assert_eq!(pressure.promise(), "900 ms and a step of 100 ms: 1000 ms");
        assert_eq!(pressure.json()["gap_ms_p99"], 1000.0);
    }

    #[test]
    fn times_are_medians_and_a_late_requests_share_is_of_its_own_round() {
        let serving = Serving {
            ready_seconds: vec![1.0, 2.0],
            late: vec![Late { first_token_seconds: 0.5, others_end_seconds: 5.0 }],
            idle_percent: None,
            pressure: None,
        };
        let json = serving.json();
        assert_eq!((&json["ready_seconds"], &json["late_share"]), (&json!(1.5), &json!(0.1)));
        assert_eq!(json["idle_percent"], Value::Null);
    }
}
