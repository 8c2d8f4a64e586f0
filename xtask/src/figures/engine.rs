//! What our engine says of itself: its lanes side by side, and what a join costs.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// What `slipstream bench --figures lanes,joins` printed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Engine {
    lanes: Value,
    joins: Vec<Value>,
}

impl Engine {
    /// Reads `{"lanes": {"ratio": 1.0, ...}, "joins": [{"cost_steps": 0.5, ...}, ...]}`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text.trim())
            .with_context(|| format!("failed to parse a benchmark's JSON: `{}`", text.trim()))?;
        let joins = value["joins"].as_array().context("failed to find `joins` in a benchmark")?;
        let engine = Self { lanes: value["lanes"].clone(), joins: joins.clone() };
        let speeds = ["continuous_tokens_per_second", "serial_tokens_per_second"];
        check(&engine.lanes, &speeds)?;
        check(&engine.lanes, &["pairs", "ratio", "step_ratio"])?;
        for join in &engine.joins {
            check(join, &["rows", "step_ms", "alone_ms", "cost_steps"])?;
        }
        Ok(engine)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let lane = |name: &str| number(&self.lanes, name);
        let (continuous, serial) =
            (lane("continuous_tokens_per_second"), lane("serial_tokens_per_second"));
        let mut lines = vec![format!(
            "one row                 continuous {continuous:.1} tok/s, serial {serial:.1}, ratio \
             {:.3} of {} pairs, {:.3} of median steps, same tokens",
            lane("ratio"),
            lane("pairs"),
            lane("step_ratio"),
        )];
        lines.extend(self.joins.iter().map(|join| {
            format!(
                "a row joins {}           {:.2} steps of {:.0} ms beyond its own {:.0} ms",
                number(join, "rows"),
                number(join, "cost_steps"),
                number(join, "step_ms"),
                number(join, "alone_ms"),
            )
        }));
        lines
    }

    pub(super) fn json(&self) -> Value {
        json!({ "lanes": self.lanes, "joins": self.joins })
    }
}

fn check(value: &Value, names: &[&str]) -> Result<()> {
    for name in names {
        ensure!(value[name].is_number(), "failed to read `{name}` from `{value}`");
    }
    Ok(())
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed() -> Value {
        json!({
            "lanes": {
                "pairs": 5, "continuous_tokens_per_second": 20.0,
                "serial_tokens_per_second": 19.0, "ratio": 1.0526, "step_ratio": 1.0,
                "more": [],
            },
            "joins": [{ "rows": 4, "step_ms": 61.0, "alone_ms": 130.0, "cost_steps": -0.125 }],
        })
    }

    #[test]
    fn lanes_and_joins_have_a_line_each() {
        let lines = Engine::parse(&printed().to_string()).unwrap().lines();
        let expected = "20.0 tok/s, serial 19.0, ratio 1.053 of 5 pairs, 1.000 of median steps";
        assert!(lines[0].contains(expected), "{}", lines[0]);
        assert!(lines[1].ends_with("-0.12 steps of 61 ms beyond its own 130 ms"), "{}", lines[1]);
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn a_missing_figure_is_named() {
        for (place, name) in [("/lanes", "ratio"), ("/joins/0", "cost_steps")] {
            let mut without = printed();
            let place = without.pointer_mut(place).unwrap();
            place.as_object_mut().unwrap().remove(name);
            let error = Engine::parse(&without.to_string()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(Engine::parse("{}").is_err());
    }
}
