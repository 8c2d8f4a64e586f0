//! `slipstream bench`: what the scheduler does with a model, as it serves, mostly without HTTP.
//!
//! - `decode` ([`decode`]): speed of each batch size, and what its steps cost the host.
//! - `lanes` ([`lanes`]): one row in the continuous lane against one in the serial lane.
//! - `joins` ([`joins`]): how long a joining row holds up the ones that decode.
//! - `grammar` ([`grammar`]): what a token mask takes, and a step of rows with grammars.
//! - `cache` ([`cache`]): look-ups among kept prompts, and what writing them to the disk costs.
//! - `serving` ([`serving`]): what HTTP costs beyond the engine, on a scripted model.

mod cache;
mod decode;
mod grammar;
mod hub_scan;
mod joins;
mod lanes;
mod rig;
mod serving;

use serde_json::{Map, Value, json};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::tokenizer::Tokenizer;

use self::rig::Rig;
use self::serving::Load;
use crate::load::ModelArguments;

pub(crate) use self::hub_scan::{ScanArguments, run_scan};
pub(crate) use self::serving::client::{Arguments as ClientArguments, run as run_clients};

/// What `slipstream bench` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "decode")]
    figures: Vec<Figure>,
    /// Batch sizes whose decoding is measured.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8", value_name = "ROWS")]
    batch: Vec<usize>,
    /// Numbers of decoding rows that another one joins.
    #[arg(long, value_delimiter = ',', default_value = "4,7", value_name = "ROWS")]
    beside: Vec<usize>,
    /// How often lanes and joins are measured; the medians count.
    #[arg(long, default_value_t = 7, value_name = "TIMES")]
    repeats: usize,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 64)]
    prompt_tokens: usize,
    /// Tokens that each row generates.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Ask as little as shows that serving works: its figures then mean nothing.
    #[arg(long, hide = true)]
    smoke: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// Decode speed of each batch size, and what its steps cost the host.
    Decode,
    /// One row in the continuous lane against one in the serial lane.
    Lanes,
    /// How long a joining row holds up the ones that decode.
    Joins,
    /// What a token mask takes, and a step of rows with grammars.
    Grammar,
    /// Look-ups among kept prompts, and what writing them to the disk costs a row.
    Cache,
    /// What HTTP costs beyond the engine; the model gives its tokenizer alone.
    Serving,
}

/// What one figure came to.
struct Outcome {
    /// Its name in the JSON.
    name: &'static str,
    json: Value,
    table: String,
}

impl Arguments {
    /// Finds the model that is called by its name.
    pub(crate) fn resolve(&mut self) -> Result<()> {
        self.model.resolve()
    }
}

/// Measures what was asked for and prints it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    check(arguments)?;
    let serving = arguments.figures.contains(&Figure::Serving).then(|| {
        let load = if arguments.smoke { Load::SMOKE } else { Load::WHOLE };
        serving::measure(&arguments.model.model, load)
    });
    // It comes first: then no weights lie beside it.
    let mut outcomes: Vec<Outcome> = serving.into_iter().collect::<Result<_>>()?;
    let figures = arguments.figures.iter().filter(|figure| **figure != Figure::Serving);
    let mut figures = figures.peekable();
    let mut kv_scheme = None;
    if figures.peek().is_some() {
        let rows_max = arguments.rows_max();
        let keeps_prompts = arguments.figures.contains(&Figure::Cache);
        let folder = keeps_prompts.then(cache::Folder::make).transpose()?;
        let folder = folder.as_ref().map(|folder| folder.0.as_path());
        let mut rig = Rig::load(&arguments.model, rows_max, arguments.prompt_tokens, folder)?;
        for figure in figures {
            outcomes.extend(figure.measure(&mut rig, arguments)?);
        }
        kv_scheme = Some(rig.kv_scheme);
    }
    report(kv_scheme, &outcomes, arguments.json);
    Ok(())
}

fn check(arguments: &Arguments) -> Result<()> {
    let rows = arguments.batch.iter().chain(&arguments.beside);
    let empty = [arguments.prompt_tokens, arguments.repeats].into_iter().chain(rows.copied());
    if empty.min() == Some(0) || arguments.tokens < 2 {
        let message = "a bench needs rows, repeats, a prompt and at least 2 tokens";
        return Err(Error::new(Code::InvalidRequest, message));
    }
    // Others ask the same prompts again and again, and each is to be read.
    if arguments.figures.contains(&Figure::Cache) && arguments.figures.len() > 1 {
        let message = "`cache` is measured alone";
        return Err(Error::new(Code::InvalidRequest, message));
    }
    Ok(())
}

impl Arguments {
    /// Rows that are live together at most.
    fn rows_max(&self) -> usize {
        let rows = self.figures.iter().map(|figure| match figure {
            Figure::Decode | Figure::Grammar => self.batch.iter().copied().max().unwrap_or(1),
            Figure::Lanes | Figure::Cache | Figure::Serving => 1,
            Figure::Joins => self.beside.iter().copied().max().unwrap_or(1) + 1,
        });
        rows.max().unwrap_or(1)
    }
}

impl Figure {
    /// `None` for what needs no model.
    fn measure(self, rig: &mut Rig, arguments: &Arguments) -> Result<Option<Outcome>> {
        let outcome = match self {
            Self::Serving => return Ok(None),
            Self::Decode => decode::measure(rig, &arguments.batch, arguments.tokens),
            Self::Cache => cache::measure(rig, arguments.repeats, arguments.tokens),
            Self::Lanes => lanes::measure(rig, arguments.repeats, arguments.tokens),
            Self::Joins => joins::measure(rig, &arguments.beside, arguments.repeats),
            Self::Grammar => {
                let tokenizer = Tokenizer::load(&arguments.model.model)?;
                let Arguments { repeats, batch, tokens, .. } = arguments;
                grammar::measure(rig, &tokenizer, *repeats, batch, *tokens)
            }
        };
        outcome.map(Some)
    }
}

fn report(kv_scheme: Option<String>, outcomes: &[Outcome], as_json: bool) {
    if as_json {
        let mut whole = Map::new();
        whole.extend(kv_scheme.map(|scheme| ("kv_scheme".to_owned(), json!(scheme))));
        whole.extend(outcomes.iter().map(|it| (it.name.to_owned(), it.json.clone())));
        println!("{}", Value::Object(whole));
        return;
    }
    if let Some(scheme) = kv_scheme {
        println!("KV scheme {scheme}");
    }
    for outcome in outcomes {
        println!("\n{}", outcome.table);
    }
}

/// The middle value; of an even number of values, the mean of the middle two. NaN for none.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count => f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_order_nor_on_one_outlier() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([2.0, 1e9, 1.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
        assert!(median([]).is_nan());
    }
}
