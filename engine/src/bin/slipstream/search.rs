//! `slipstream search`: models at the hub.

use slipstream_engine::clock::Clock;
use slipstream_engine::config::ByteCount;
use slipstream_engine::error::{Code, Result};
use slipstream_engine::hub::fit::{self, Machine, Verdict, Wish};
use slipstream_engine::hub::remote::{Remote, RemoteConfig};
use slipstream_engine::hub::search::{Hit, SearchOrder, SearchQuery, search};
use slipstream_engine::limits;
use slipstream_engine::mlx::Device;
use tokio::runtime::Runtime;

use crate::library::{self, PlacesArguments};

/// What `slipstream search` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Words of the model's name.
    text: Vec<String>,
    /// Look among all models rather than those in MLX's layout.
    #[arg(long)]
    all: bool,
    /// What comes first: downloads, likes or updated.
    #[arg(long, value_name = "ORDER", default_value = "downloads")]
    sort: SearchOrder,
    /// Models to show at most.
    #[arg(long, value_name = "N", default_value_t = limits::SEARCH_HITS_DEFAULT, value_parser = hits)]
    limit: usize,
    #[command(flatten)]
    places: PlacesArguments,
}

fn hits(text: &str) -> Result<usize, String> {
    let hits = text.parse().ok().filter(|hits| (1..=limits::SEARCH_HITS_MAX).contains(hits));
    hits.ok_or_else(|| format!("give a number from 1 to {}", limits::SEARCH_HITS_MAX))
}

/// Searches and prints what was found, a model on each line, with whether it may fit this machine. Where the hub cannot
/// be reached, the models of this machine are all that there is.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let query = SearchQuery {
        mlx_only: !arguments.all,
        order: arguments.sort,
        hits_max: arguments.limit,
        ..SearchQuery::new(arguments.text.join(" "))
    };
    let remote = Remote::new(RemoteConfig::of_process()?, Clock::monotonic())?;
    match Runtime::new()?.block_on(search(&remote, &query)) {
        Ok(hits) if hits.is_empty() => {
            println!("nothing found; `--all` looks among models in other layouts too");
            Ok(())
        }
        Ok(hits) => {
            print_hits(&hits, &fit::of_device(Device::select()?)?);
            Ok(())
        }
        Err(error) if error.code() == Code::HubUnreachable => {
            eprintln!("{error}\nof the models on this machine:");
            library::print_matching(&arguments.places, arguments.all, &arguments.text)
        }
        Err(error) => Err(error),
    }
}

fn print_hits(hits: &[Hit], machine: &Machine) {
    let width = hits.iter().map(|hit| hit.repo.to_string().len()).max().unwrap_or(0);
    println!(
        "{:width$}  {:>9}  {:5}  {:>9}  {:>6}  {:10}",
        "model", "weights", "fit", "downloads", "likes", "updated"
    );
    for hit in hits {
        println!("{}", line(hit, machine, width));
    }
}

fn line(hit: &Hit, machine: &Machine, width: usize) -> String {
    let weights = hit.weight_bytes().map_or("?".to_owned(), |bytes| ByteCount(bytes).to_string());
    let verdict = hit.weights_by_type().map(|types| fit::guess(&types, machine, &Wish::default()));
    let verdict = verdict.map_or("?", Verdict::name);
    let updated = hit.updated.as_deref().and_then(|time| time.get(..10)).unwrap_or("?");
    let gated = if hit.gated { "  gated" } else { "" };
    let repo = hit.repo.to_string();
    format!(
        "{repo:width$}  {weights:>9}  {verdict:5}  {:>9}  {:>6}  {updated:10}{gated}",
        hit.downloads, hit.likes
    )
}
