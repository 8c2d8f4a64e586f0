//! What grammars cost: a mask on the host, and a step of a batch whose rows have them.
//!
//! Masks are taken along answers that chance chooses among the allowed tokens, which leads to more places
//! than a model would, and timed in processor time of the thread, so that what else runs does not count.
//! Steps are those of greedy rows: none, one or all of them with a grammar that never comes to its end.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use slipstream_engine::clock::{Clock, thread_busy};
use slipstream_engine::error::Result;
use slipstream_engine::grammar::{Constraint, Grammar, Grammars};
use slipstream_engine::scheduler::{EventReceiver, Lane};
use slipstream_engine::tokenizer::Tokenizer;

use super::rig::Rig;
use super::{Outcome, median};

/// Tokens of each answer whose masks are taken.
const ANSWER_TOKENS_MAX: usize = 200;

struct Masks {
    name: &'static str,
    compile_ms: f64,
    masks: usize,
    mean_ms: f64,
    p99_ms: f64,
    most_ms: f64,
}

struct Steps {
    rows: usize,
    with_grammar: usize,
    step_ms: f64,
}

/// Measures `answers` random answers of each constraint, and steps of each batch size.
pub(super) fn measure(
    rig: &mut Rig,
    tokenizer: &Tokenizer,
    answers: usize,
    batch: &[usize],
    tokens: usize,
) -> Result<Outcome> {
    let grammars = Grammars::new(tokenizer.clone(), rig.vocabulary);
    let began = rig.clock.now();
    grammars.compile(&Constraint::Regex("first".to_owned()))?;
    let vocabulary_ms = (rig.clock.now() - began).as_secs_f64() * 1e3;
    let masks: Result<Vec<Masks>> = constraints()
        .into_iter()
        .map(|(name, constraint)| {
            let taker = Taker { clock: &rig.clock, grammars: &grammars, tokenizer };
            taker.masks(name, &constraint, answers)
        })
        .collect();
    let endless = grammars.compile(&endless())?;
    let mut steps = Vec::new();
    for rows in batch {
        let mut counts = vec![0, 1, *rows];
        counts.dedup();
        for with_grammar in counts {
            steps.push(step(rig, *rows, with_grammar, &endless, tokens)?);
        }
    }
    Ok(outcome(vocabulary_ms, &masks?, &steps))
}

fn constraints() -> Vec<(&'static str, Constraint)> {
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"}, "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
        "tags": {"type": "array", "items": {"enum": ["alpha", "beta", "gamma", "delta"]}, "maxItems": 8},
        "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    }, "required": ["name", "age", "tags"], "additionalProperties": false});
    let gbnf = "root ::= sum\nsum ::= term (\" + \" term)*\nterm ::= [0-9]+ | \"(\" sum \")\"";
    vec![
        ("json_object", Constraint::JsonObject),
        ("json_schema", Constraint::JsonSchema { schema: schema.to_string(), strict: true }),
        ("regex", Constraint::Regex(r"(\w+ ){3,30}[0-9]{2,}\.".to_owned())),
        ("gbnf", Constraint::Grammar(gbnf.to_owned())),
    ]
}

/// A thousand strings at least.
fn endless() -> Constraint {
    let schema = json!({"type": "array", "items": {"type": "string"}, "minItems": 1000});
    Constraint::JsonSchema { schema: schema.to_string(), strict: true }
}

struct Taker<'a> {
    clock: &'a Clock,
    grammars: &'a Grammars,
    tokenizer: &'a Tokenizer,
}

impl Taker<'_> {
    fn masks(&self, name: &'static str, constraint: &Constraint, answers: usize) -> Result<Masks> {
        let began = self.clock.now();
        let grammar = self.grammars.compile(constraint)?;
        let compile_ms = (self.clock.now() - began).as_secs_f64() * 1e3;
        let mut took = Vec::new();
        for seed in 0..answers {
            self.answer(&grammar, seed as u64, &mut took)?;
        }
        took.sort_by(f64::total_cmp);
        let masks = took.len().max(1);
        Ok(Masks {
            name,
            compile_ms,
            masks: took.len(),
            mean_ms: took.iter().sum::<f64>() / masks as f64,
            p99_ms: took.get(took.len() * 99 / 100).copied().unwrap_or(0.0),
            most_ms: took.last().copied().unwrap_or(0.0),
        })
    }

    /// One random answer; `took` gets the milliseconds that each token took to accept, and its mask to fill.
    fn answer(&self, grammar: &Grammar, seed: u64, took: &mut Vec<f64>) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed);
        let stop_tokens = self.tokenizer.stop_tokens();
        let mut matcher = grammar.matcher();
        let mut said = None;
        for _ in 0..ANSWER_TOKENS_MAX {
            let busy = thread_busy();
            if let Some(token) = said {
                matcher.accept(token)?;
            }
            let mask = matcher.mask()?;
            took.push((thread_busy() - busy).as_secs_f64() * 1e3);
            let Some(mask) = mask else {
                return Ok(());
            };
            let allowed: Vec<u32> = mask.allowed().collect();
            let token = allowed[random.random_range(0..allowed.len())];
            if stop_tokens.contains(&token) {
                return Ok(());
            }
            said = Some(token);
        }
        Ok(())
    }
}

/// Times the steps in which `rows` rows decode, `with_grammar` of them under `grammar`.
fn step(
    rig: &mut Rig,
    rows: usize,
    with_grammar: usize,
    grammar: &Grammar,
    tokens: usize,
) -> Result<Steps> {
    let listeners: Vec<EventReceiver> = (0..rows)
        .map(|row| {
            let grammar = (row < with_grammar).then(|| grammar.clone());
            rig.submit_under(row, Lane::Continuous, tokens, grammar)
        })
        .collect();
    rig.tick_until_decoding(rows)?;
    let mut ticks = Vec::new();
    while rig.scheduler.live_rows() == rows {
        ticks.push(rig.tick() * 1e3);
    }
    rig.tick_until_idle();
    drop(listeners);
    Ok(Steps { rows, with_grammar, step_ms: median(ticks) })
}

fn outcome(vocabulary_ms: f64, masks: &[Masks], steps: &[Steps]) -> Outcome {
    let json = json!({
        "vocabulary_ms": vocabulary_ms,
        "masks": masks.iter().map(Masks::as_json).collect::<Vec<Value>>(),
        "steps": steps.iter().map(Steps::as_json).collect::<Vec<Value>>(),
    });
    let mut lines = vec![
        format!("vocabulary prepared in {vocabulary_ms:.0} ms"),
        "constraint   compile ms   masks  mean ms   p99 ms   most ms".to_owned(),
    ];
    lines.extend(masks.iter().map(|it| {
        format!(
            "{:<12} {:>10.2} {:>7} {:>8.4} {:>8.4} {:>9.4}",
            it.name, it.compile_ms, it.masks, it.mean_ms, it.p99_ms, it.most_ms
        )
    }));
    lines.push("rows  with a grammar  step ms p50".to_owned());
    lines.extend(
        steps
            .iter()
            .map(|it| format!("{:>4}  {:>14}  {:>11.3}", it.rows, it.with_grammar, it.step_ms)),
    );
    Outcome { name: "grammar", json, table: lines.join("\n") }
}

impl Masks {
    fn as_json(&self) -> Value {
        json!({
            "constraint": self.name, "compile_ms": self.compile_ms, "masks": self.masks,
            "mean_ms": self.mean_ms, "p99_ms": self.p99_ms, "most_ms": self.most_ms,
        })
    }
}

impl Steps {
    fn as_json(&self) -> Value {
        json!({"rows": self.rows, "with_grammar": self.with_grammar, "step_ms": self.step_ms})
    }
}
