//! `slipstream search`: models at the hub.

use slipstream_engine::clock::Clock;
use slipstream_engine::config::ByteCount;
use slipstream_engine::error::Result;
use slipstream_engine::hub::remote::{Remote, RemoteConfig};
use slipstream_engine::hub::search::{Hit, SearchOrder, SearchQuery, search};
use slipstream_engine::limits;
use tokio::runtime::Runtime;

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
}

fn hits(text: &str) -> Result<usize, String> {
    let hits = text.parse().ok().filter(|hits| (1..=limits::SEARCH_HITS_MAX).contains(hits));
    hits.ok_or_else(|| format!("give a number from 1 to {}", limits::SEARCH_HITS_MAX))
}

/// Searches and prints what was found, a model on each line.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let query = SearchQuery {
        mlx_only: !arguments.all,
        order: arguments.sort,
        hits_max: arguments.limit,
        ..SearchQuery::new(arguments.text.join(" "))
    };
    let remote = Remote::new(RemoteConfig::of_process()?, Clock::monotonic())?;
    let hits = Runtime::new()?.block_on(search(&remote, &query))?;
    if hits.is_empty() {
        println!("nothing found; `--all` looks among models in other layouts too");
        return Ok(());
    }
    let width = hits.iter().map(|hit| hit.repo.to_string().len()).max().unwrap_or(0);
    println!(
        "{:width$}  {:>9}  {:>9}  {:>6}  {:10}",
        "model", "weights", "downloads", "likes", "updated"
    );
    for hit in &hits {
        println!("{}", line(hit, width));
    }
    Ok(())
}

fn line(hit: &Hit, width: usize) -> String {
    let weights = hit.weight_bytes().map_or("?".to_owned(), |bytes| ByteCount(bytes).to_string());
    let updated = hit.updated.as_deref().and_then(|time| time.get(..10)).unwrap_or("?");
    let gated = if hit.gated { "  gated" } else { "" };
    let repo = hit.repo.to_string();
    format!(
        "{repo:width$}  {weights:>9}  {:>9}  {:>6}  {updated:10}{gated}",
        hit.downloads, hit.likes
    )
}
