//! What was measured of a server with a scripted model, beside what is wanted.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::wanted::Wanted;

/// What `slipstream bench --figures serving,grammar` printed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scripted(Value);

/// Processor time of the server per token of each stream, beyond the engine.
const TOKEN_MICROSECONDS: f64 = 50.0;
/// Time to the first text, beyond the engine.
const FIRST_TEXT_MS: f64 = 2.0;
/// Processor time of a row's mask.
const MASK_MS: f64 = 0.2;

impl Scripted {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text.trim())
            .with_context(|| format!("failed to parse a benchmark's JSON: `{}`", text.trim()))?;
        let scripted = Self(value);
        let figures = scripted.figures();
        match figures.iter().find(|figure| figure.measured.is_nan()) {
            Some(Wanted { name, .. }) => bail!("failed to find `{name}` in a benchmark"),
            None if scripted.list("/serving/tokens").is_empty() || figures.is_empty() => {
                bail!("failed to find a server's figures in `{}`", scripted.0)
            }
            None => Ok(scripted),
        }
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![Wanted::head()];
        lines.extend(self.figures().iter().map(Wanted::line));
        lines.extend(self.list("/serving/tokens").iter().map(|crowd| {
            let (streams, wrong) = (&crowd["streams"], &crowd["wrong_streams"]);
            let name = format!("streams of {streams} whose text is not the script's");
            format!("{name:<52} {:>9} {:>9}", wrong.to_string(), "0")
        }));
        lines.extend(self.list("/serving/tokens").iter().map(|crowd| {
            format!(
                "{}: {} tokens of {} streams; per token {:.1} us of the engine's thread, {:.1} us of wall time",
                crowd["name"].as_str().unwrap_or_default(),
                crowd["tokens"],
                crowd["streams"],
                number(crowd, "engine_cpu_us"),
                number(crowd, "wall_us"),
            )
        }));
        lines.join("\n")
    }

    /// For programs.
    pub(crate) fn json(&self) -> &Value {
        &self.0
    }

    /// # Errors
    /// When a stream lost or repeated something.
    pub(crate) fn check(&self) -> Result<()> {
        let crowds = self.list("/serving/tokens");
        match crowds.iter().find(|crowd| crowd["wrong_streams"] != json!(0)) {
            Some(crowd) => bail!("failed to hear every script: {crowd}"),
            None => Ok(()),
        }
    }

    fn figures(&self) -> Vec<Wanted> {
        let tokens = self.list("/serving/tokens").iter().map(|crowd| Wanted {
            name: format!(
                "serving CPU per token, {} streams, {}",
                crowd["streams"],
                crowd["name"].as_str().unwrap_or_default()
            ),
            measured: number(crowd, "serving_cpu_us"),
            wanted: TOKEN_MICROSECONDS,
            unit: "us",
        });
        let firsts = self.list("/serving/first_text").iter().flat_map(|first| {
            [("median", "overhead_ms_median"), ("p99", "overhead_ms_p99")].map(|(name, field)| {
                let name =
                    format!("first text beyond the engine, {} streams, {name}", first["streams"]);
                Wanted { name, measured: number(first, field), wanted: FIRST_TEXT_MS, unit: "ms" }
            })
        });
        let masks = self.list("/grammar/masks").iter().flat_map(|masks| {
            let constraint = masks["constraint"].as_str().unwrap_or_default();
            [("mean", "mean_ms"), ("p99", "p99_ms")].map(|(name, field)| Wanted {
                name: format!("mask fill of a row, {constraint}, {name}"),
                measured: number(masks, field),
                wanted: MASK_MS,
                unit: "ms",
            })
        });
        tokens.chain(firsts).chain(masks).collect()
    }

    fn list(&self, pointer: &str) -> &[Value] {
        self.0.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(serving_us: f64, wrong: u64) -> String {
        let crowd = json!({
            "name": "paced", "streams": 64, "tokens": 9, "serving_cpu_us": serving_us,
            "engine_cpu_us": 3.0, "wall_us": 7.0, "wrong_streams": wrong, "example": null,
        });
        let first = json!({"streams": 1, "overhead_ms_median": 0.5, "overhead_ms_p99": 1.5});
        let masks = json!({"constraint": "regex", "mean_ms": 0.01, "p99_ms": 0.1});
        json!({
            "serving": {"tokens": [crowd], "first_text": [first]},
            "grammar": {"masks": [masks]},
        })
        .to_string()
    }

    #[test]
    fn what_is_not_below_what_is_wanted_is_marked() {
        let missed = |us| Scripted::parse(&told(us, 0)).unwrap().table().matches("MISSED").count();
        assert_eq!((missed(49.9), missed(50.0)), (0, 1));
    }

    #[test]
    fn a_stream_that_heard_something_else_is_an_error_whatever_the_figures_are() {
        assert!(Scripted::parse(&told(1.0, 0)).unwrap().check().is_ok());
        let error = Scripted::parse(&told(1.0, 2)).unwrap().check().unwrap_err();
        assert!(error.to_string().contains("\"wrong_streams\":2"), "{error}");
    }

    #[test]
    fn figures_that_are_missing_are_an_error() {
        assert!(Scripted::parse("{}").is_err());
        assert!(Scripted::parse(&told(1.0, 0).replace("overhead_ms_p99", "p99")).is_err());
    }
}
