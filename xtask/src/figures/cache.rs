//! What kept prompts spare, beside what is wanted.

use serde_json::{Value, json};

use super::wanted::Wanted;
use super::{median, percentile};

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cache {
    pub(crate) ours: Agents,
    pub(crate) mlx_lm: Agents,
    pub(crate) restart: Restart,
    /// What `slipstream bench --figures cache` printed.
    pub(crate) engine: Value,
}

/// Sub-agents with one system prompt: the first alone, the others at once when it had its first token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agents {
    pub(crate) cold_seconds: f64,
    pub(crate) later_seconds: Vec<f64>,
    /// Prompt tokens that were computed for all of them, where the server tells.
    pub(crate) run_tokens: Option<u64>,
    /// Prompt tokens that were not.
    pub(crate) cached_tokens: Option<u64>,
}

/// A long conversation whose server was killed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Restart {
    pub(crate) cold_seconds: f64,
    /// Of its next turn, on a new server.
    pub(crate) restored_seconds: f64,
    /// Prompt tokens that the new server computed.
    pub(crate) run_tokens: u64,
    pub(crate) cached_tokens: u64,
}

impl Agents {
    fn slowest(&self) -> f64 {
        percentile(&self.later_seconds, 1.0)
    }

    /// The slowest of the later ones beside the first.
    fn share(&self) -> f64 {
        self.slowest() / self.cold_seconds
    }

    fn line(&self, name: &str) -> String {
        let Self { cold_seconds, later_seconds, run_tokens, cached_tokens } = self;
        let work = run_tokens.zip(*cached_tokens).map_or(String::new(), |(run, cached)| {
            format!("; {run} prompt tokens computed, {cached} from the cache")
        });
        format!(
            "{name}: first token of the first agent {cold_seconds:.2} s, of the later ones {:.2} s \
             (median) to {:.2} s{work}",
            median(later_seconds),
            self.slowest(),
        )
    }

    fn json(&self) -> Value {
        json!({
            "cold_seconds": self.cold_seconds,
            "later_seconds": self.later_seconds,
            "run_tokens": self.run_tokens,
            "cached_tokens": self.cached_tokens,
        })
    }
}

impl Cache {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let Restart { cold_seconds, restored_seconds, run_tokens, cached_tokens } = self.restart;
        let mut lines = vec![Wanted::head()];
        lines.extend(self.wanted().iter().map(Wanted::line));
        lines.push(self.ours.line("slipstream"));
        lines.push(self.mlx_lm.line("mlx-lm"));
        lines.push(format!(
            "a conversation of {cached_tokens} kept tokens: cold {cold_seconds:.1} s, after a restart \
             {restored_seconds:.2} s ({run_tokens} tokens computed)"
        ));
        lines.join("\n")
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let Restart { cold_seconds, restored_seconds, run_tokens, cached_tokens } = self.restart;
        json!({
            "agents": self.ours.json(),
            "agents_mlx_lm": self.mlx_lm.json(),
            "restart": {
                "cold_seconds": cold_seconds,
                "restored_seconds": restored_seconds,
                "run_tokens": run_tokens,
                "cached_tokens": cached_tokens,
            },
            "engine": self.engine,
        })
    }

    fn wanted(&self) -> Vec<Wanted> {
        let engine = |pointer: &str| {
            self.engine.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
        };
        let restart = self.restart.restored_seconds / self.restart.cold_seconds;
        vec![
            Wanted::new("later agents' first token, of the first's", self.ours.share(), 0.2, ""),
            Wanted::new("restored first token, of the cold one's", restart, 0.1, ""),
            Wanted::new("look-up, p99", engine("/lookups/p99_ms"), 1.0, "ms"),
            Wanted::new("look-up, longest", engine("/lookups/most_ms"), 1.0, "ms"),
            Wanted::new("writing's tax on decoding", engine("/writing/tax_percent"), 1.0, "%"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(later_seconds: Vec<f64>) -> Agents {
        Agents { cold_seconds: 10.0, later_seconds, run_tokens: Some(5), cached_tokens: Some(7) }
    }

    fn cache(later: f64, restored_seconds: f64, tax_percent: f64) -> Cache {
        Cache {
            ours: agents(vec![0.5, later]),
            mlx_lm: Agents { run_tokens: None, ..agents(vec![9.0]) },
            restart: Restart {
                cold_seconds: 100.0,
                restored_seconds,
                run_tokens: 9,
                cached_tokens: 7000,
            },
            engine: json!({
                "lookups": { "p99_ms": 0.01, "most_ms": 0.05 },
                "writing": { "tax_percent": tax_percent },
            }),
        }
    }

    #[test]
    fn the_slowest_agent_the_restart_and_the_tax_are_held_to_what_is_wanted() {
        let missed = |cache: Cache| cache.table().matches("MISSED").count();
        assert_eq!(missed(cache(1.9, 9.9, 0.9)), 0);
        assert_eq!(missed(cache(2.1, 9.9, 0.9)), 1);
        assert_eq!(missed(cache(1.9, 10.1, 1.1)), 2);
    }

    #[test]
    fn a_figure_that_is_missing_is_missed() {
        let blind = Cache { engine: json!({}), ..cache(1.0, 1.0, 0.1) };
        assert_eq!(blind.table().matches("MISSED").count(), 3);
    }

    #[test]
    fn work_is_told_where_the_server_tells_it() {
        let table = cache(1.0, 1.0, 0.1).table();
        assert_eq!(table.matches("5 prompt tokens computed, 7 from the cache").count(), 1);
    }
}
