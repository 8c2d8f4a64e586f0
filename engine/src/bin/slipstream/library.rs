//! `slipstream ls` and `slipstream rm`: the models on this machine. And how `--model` finds one by its name.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slipstream_engine::config::ByteCount;
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::hub::library::{Entry, Facts, Library, State};
use slipstream_engine::hub::places::Places;
use slipstream_engine::model::outline::FloatType;

/// Where models lie.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlacesArguments {
    /// Our folder of models [default: SLIPSTREAM_MODELS, else the user's data folder]. Caches of Hugging Face's
    /// tools are looked at too.
    #[arg(long = "models", value_name = "DIR")]
    models_folder: Option<PathBuf>,
}

/// What `slipstream ls` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArguments {
    /// Only models whose names or kinds hold this.
    text: Option<String>,
    /// Models of kinds that are not run, too.
    #[arg(long)]
    all: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    places: PlacesArguments,
}

/// What `slipstream rm` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArguments {
    /// The model, as `slipstream ls` calls it.
    name: String,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    places: PlacesArguments,
}

impl PlacesArguments {
    /// The library of these places.
    pub(crate) fn open(&self) -> Result<Library> {
        Ok(Library::open(self.places()?))
    }

    /// Where they are.
    pub(crate) fn places(&self) -> Result<Places> {
        Places::of_process(self.models_folder.as_deref())
    }

    /// The model `name`: a directory that exists wins, then the library's model of that name.
    pub(crate) fn find(&self, name: &Path) -> Result<Found> {
        match name.to_str() {
            Some(called) if !name.is_dir() && is_name(called) => {
                let library = self.open()?;
                let entry = library.find(called)?;
                entry.check_ready()?;
                Ok(Found { directory: entry.directory.clone(), id: Some(entry.id.clone()) })
            }
            // Whoever reads it says what is wrong with it.
            _ => Ok(Found { directory: name.to_owned(), id: None }),
        }
    }
}

/// A model that was named.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Where it lies.
    pub(crate) directory: PathBuf,
    /// What the library calls it, if that is how it was found.
    pub(crate) id: Option<String>,
}

/// Whether a text may be a model's name, rather than a path.
fn is_name(text: &str) -> bool {
    let path = text.starts_with(['/', '.', '~']) || text.contains('\\') || text.ends_with('/');
    !path && text.matches('/').count() <= 1
}

/// Lists the models.
pub(crate) fn list(arguments: &ListArguments) -> Result<()> {
    let library = arguments.places.open()?;
    let wanted = arguments.text.as_deref().unwrap_or("").to_lowercase();
    let shown = matching(&library, arguments.all, &[wanted]);
    if arguments.json {
        println!("{:#}", Value::from(shown.iter().map(|entry| as_json(entry)).collect::<Vec<_>>()));
        return Ok(());
    }
    if shown.is_empty() {
        eprintln!("no models in {}", library.places().models.display());
        return Ok(());
    }
    println!("{}", table(&shown));
    Ok(())
}

/// Tells which models of this machine match all of `words`.
pub(crate) fn print_matching(places: &PlacesArguments, all: bool, words: &[String]) -> Result<()> {
    let library = places.open()?;
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    match &matching(&library, all, &words)[..] {
        [] => println!("no model on this machine matches"),
        shown => println!("{}", table(shown)),
    }
    Ok(())
}

fn matching<'a>(library: &'a Library, all: bool, words: &[String]) -> Vec<&'a Entry> {
    let holds = |entry: &Entry| {
        let text = described(entry);
        words.iter().all(|word| text.contains(word))
    };
    let entries = library.entries().filter(|entry| holds(entry));
    entries.filter(|entry| all || !matches!(entry.state, State::Unsupported(_))).collect()
}

/// What a text is looked for in.
fn described(entry: &Entry) -> String {
    let facts = entry.facts.as_ref();
    let model_type = facts.map_or("", |facts| facts.outline.model_type());
    format!("{} {model_type} {} {}", entry.id, packing(facts), capabilities(facts)).to_lowercase()
}

fn table(entries: &[&Entry]) -> String {
    let head = ["name", "size", "parameters", "packed", "context", "caches", "can", "state"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(entries.iter().map(|entry| cells(entry)));
    let width =
        |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let line = |cells: &[String; 8]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn cells(entry: &Entry) -> [String; 8] {
    let facts = entry.facts.as_ref();
    let told = |tell: &dyn Fn(&Facts) -> String| facts.map_or_else(String::new, tell);
    let state = match entry.state.reason() {
        None => entry.state.name().to_owned(),
        Some(reason) => format!("{}: {reason}", entry.state.name()),
    };
    [
        entry.id.clone(),
        ByteCount(entry.disk_bytes).to_string(),
        told(&|facts| count(facts.weights.parameters)),
        packing(facts),
        told(&|facts| facts.outline.context_tokens.to_string()),
        told(&|facts| facts.outline.cache_kinds().join("+")),
        capabilities(facts),
        state,
    ]
}

/// `135M`, `8.0B`.
fn count(number: u64) -> String {
    match number {
        0..1_000_000 => format!("{:.0}k", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0}M", number as f64 / 1e6),
        _ => format!("{:.1}B", number as f64 / 1e9),
    }
}

fn packing(facts: Option<&Facts>) -> String {
    let Some(facts) = facts else { return String::new() };
    match &facts.outline.packing {
        Some(packing) => packing.to_string(),
        None => facts.weights.float_type.map_or("", |it| it.name()).to_owned(),
    }
}

fn capabilities(facts: Option<&Facts>) -> String {
    facts.map_or_else(String::new, |facts| facts.capabilities.names().join(" "))
}

fn as_json(entry: &Entry) -> Value {
    let mut value = json!({
        "id": entry.id,
        "directory": entry.directory,
        "origin": entry.origin.name(),
        "commit": entry.commit,
        "disk_bytes": entry.disk_bytes,
        "state": entry.state.name(),
        "reason": entry.state.reason(),
    });
    if let Some(facts) = &entry.facts {
        let Facts { outline, weights, capabilities } = facts;
        value["model_type"] = outline.model_type().into();
        value["parameters"] = weights.parameters.into();
        value["context_tokens"] = outline.context_tokens.into();
        value["caches"] = outline.cache_kinds().into();
        value["capabilities"] = capabilities.names().into();
        value["packed"] = outline.packing.as_ref().map(ToString::to_string).into();
        value["dtype"] = weights.float_type.map(FloatType::name).into();
    }
    value
}

/// Removes a model, after a question.
pub(crate) fn remove(arguments: &RemoveArguments) -> Result<()> {
    let mut library = arguments.places.open()?;
    let entry = library.find(&arguments.name)?;
    let (id, directory) = (entry.id.clone(), entry.directory.display().to_string());
    if !arguments.yes && !confirmed(&format!("remove `{id}` at {directory}?"))? {
        println!("`{id}` stays");
        return Ok(());
    }
    let removed = library.remove(&id, &|_| false)?;
    println!("removed `{id}`, which frees {}", ByteCount(removed.freed_bytes));
    Ok(())
}

/// # Errors
/// `InvalidRequest` when nobody is there to answer.
fn confirmed(question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(Error::new(Code::InvalidRequest, format!("{question} nobody can answer"))
            .with_hint("`--yes` removes without asking"));
    }
    print!("{question} [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
