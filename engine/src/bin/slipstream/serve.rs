//! `slipstream serve`.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slipstream_engine::api::{self, Offer};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{
    ApiKey, ByteBudget, ByteCount, KeepAlive, Levers, MemoryPlan, SchedulerConfig, ServeConfig,
    parse_bytes,
};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{
    Asked, Catalogue, Directories, Engine, FleetThread, ModelSettings, Offered, PLACEMENT_LOG,
    Residency, ResidencyConfig, Source, directory_id,
};
use slipstream_engine::hub::download::DownloadConfig;
use slipstream_engine::hub::fit::{self, Wish};
use slipstream_engine::hub::remote::{Remote, RemoteConfig};
use slipstream_engine::hub::token::TokenStore;
use slipstream_engine::hub::{Hub, HubConfig};
use slipstream_engine::limits;
use slipstream_engine::mlx::thread::RebuildPause;
use slipstream_engine::mlx::{BackEnd, Device};
use slipstream_engine::prompt_cache::disk::DiskConfig;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;

use crate::library::{Found, PlacesArguments};
use crate::load::{LoadArguments, Loader, Serving, check_directory};
use crate::sampling::{SamplingArguments, described};

/// What `slipstream serve` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A model (repeatable): a directory with config.json, tokenizer.json and safetensors, which is called like
    /// the directory, or a name of `slipstream ls`. The first one is loaded at start, stays, and is meant where a
    /// request names none. Other ones, and those of `slipstream ls`, are loaded when they are asked for.
    #[arg(long = "model", value_name = "NAME|DIR")]
    models: Vec<PathBuf>,
    /// Serve the models that `--model` names and no others.
    #[arg(long, requires = "models")]
    only: bool,
    #[command(flatten)]
    places: PlacesArguments,
    /// How long other models than the first stay loaded after their last request: seconds or `off`.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = ttl)]
    model_ttl: Ttl,
    /// A file that says more of models: aliases, pins, how long they stay, profiles (TOML, or JSON if it is
    /// called so).
    #[arg(long, value_name = "FILE")]
    models_config: Option<PathBuf>,
    #[command(flatten)]
    loading: LoadArguments,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Rows that decode together at most; 1 runs every request alone, in the order of arrival.
    #[arg(long, visible_alias = "decode-concurrency", value_name = "ROWS",
          default_value_t = limits::BATCH_ROWS_DEFAULT, value_parser = rows)]
    batch: usize,
    /// Rows that prefill at a time at most.
    #[arg(long, value_name = "ROWS", default_value_t = 1, value_parser = rows)]
    prompt_concurrency: usize,
    /// Prompt tokens run between two decode steps at most; fewer while rows decode, as --max-gap
    /// says [default: 256 on a processor, 2048 on a GPU].
    #[arg(long, value_name = "TOKENS", value_parser = chunk_tokens())]
    prefill_step_size: Option<u32>,
    /// How long, in milliseconds, a prompt may hold up rows that decode: its chunks are cut to what
    /// was measured to fit [default: 1000 on a processor, 250 on a GPU].
    #[arg(long, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=limits::MAX_GAP_MS_MAX))]
    max_gap: Option<u64>,
    /// Cut every prompt into chunks of exactly this many tokens, whoever waits: the numbers of an
    /// answer then do not depend on timing.
    #[arg(long, value_name = "TOKENS", value_parser = chunk_tokens(),
          conflicts_with_all = ["prefill_step_size", "max_gap"])]
    prefill_chunk: Option<u32>,
    /// Memory for the KV caches of live rows: bytes (500M, 1.5G, 2Gi), `auto` (what the model and
    /// the system leave) or `off`. Requests wait until theirs fit.
    #[arg(long, value_name = "BYTES", default_value = "auto")]
    kv_budget: ByteBudget,
    /// Memory of the KV budget in which prompts are kept for later ones that begin alike, as far as live rows
    /// leave it: bytes, `auto` (half of it) or `off`.
    #[arg(long, value_name = "BYTES", default_value = "auto")]
    prompt_cache: ByteBudget,
    #[command(flatten)]
    disk: DiskArguments,
    /// Tokens of an answer at most when a request does not say. Each row reserves memory for all
    /// the tokens that it may generate.
    #[arg(long, value_name = "TOKENS", default_value_t = limits::ANSWER_TOKENS_DEFAULT as u32,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Leave the line about accounting in prompts with which Claude Code begins its system prompt. It differs
    /// from request to request, so that no prompt begins like a kept one.
    #[arg(long)]
    keep_billing_line: bool,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// A name, beyond the loopback ones, that clients may call this server by (repeatable).
    #[arg(long = "allowed-host", value_name = "HOST")]
    allowed_hosts: Vec<String>,
    /// A web origin whose pages may use this server (repeatable).
    #[arg(long = "allowed-origin", value_name = "ORIGIN")]
    allowed_origins: Vec<String>,
    /// A key that opens the server, and the name of whom it is given to (repeatable). Other users of
    /// this machine may see it: a file is safer. Needed to listen beyond loopback.
    #[arg(long = "api-key", value_name = "NAME=KEY")]
    api_keys: Vec<ApiKey>,
    /// A file with such keys, one NAME=KEY a line.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// What a stream sends while its answer is silent: `comment`, `delta` (an event that adds nothing),
    /// `off`, or `auto`, what each API's clients need. The header x-slipstream-keep-alive wins.
    #[arg(long, value_name = "KIND", default_value = "auto")]
    keep_alive: KeepAlive,
}

/// How long a model stays; `None` is for ever.
#[derive(Debug, Clone, Copy)]
struct Ttl(Option<Duration>);

fn ttl(text: &str) -> std::result::Result<Ttl, String> {
    match text {
        "off" => Ok(Ttl(None)),
        seconds => {
            let seconds = seconds.parse().map_err(|_| "not a whole number of seconds, or `off`")?;
            Ok(Ttl(Some(Duration::from_secs(seconds))))
        }
    }
}

/// Prompts that outlive the process.
#[derive(Debug, clap::Args)]
struct DiskArguments {
    /// Keep prompts in this folder too, for conversations that go on after a restart. It is made if there is
    /// none; servers may share it.
    #[arg(long, value_name = "DIR")]
    ssd_cache: Option<PathBuf>,
    /// Bytes that the folder may take; what was used least recently goes first [default: 16Gi].
    #[arg(long, value_name = "BYTES", requires = "ssd_cache", value_parser = bytes)]
    ssd_cache_max: Option<u64>,
    /// Bytes that may be written to it in a day (UTC), for the drive's sake [default: 64Gi].
    #[arg(long, value_name = "BYTES", requires = "ssd_cache", value_parser = bytes)]
    ssd_cache_day_max: Option<u64>,
}

impl DiskArguments {
    fn config(&self) -> Option<DiskConfig> {
        Some(DiskConfig {
            folder: self.ssd_cache.clone()?,
            max_bytes: self.ssd_cache_max.unwrap_or(limits::DISK_CACHE_BYTES_DEFAULT),
            day_limit_bytes: Some(self.ssd_cache_day_max.unwrap_or(limits::DISK_DAY_BYTES_DEFAULT)),
            queue_bytes: limits::DISK_QUEUE_BYTES_DEFAULT,
        })
    }
}

fn bytes(text: &str) -> std::result::Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "not a number of bytes, such as 500M or 16Gi".to_owned())
}

fn chunk_tokens() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=65_536)
}

fn rows(text: &str) -> std::result::Result<usize, String> {
    let rows = text.parse().map_err(|_| "not a whole number".to_owned())?;
    if (1..=limits::BATCH_ROWS_MAX).contains(&rows) {
        Ok(rows)
    } else {
        Err(format!("must be between 1 and {}", limits::BATCH_ROWS_MAX))
    }
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let levers = Levers::from_environment()?;
    tracing_subscriber::fmt()
        .with_env_filter(log_filter(levers))
        .with_writer(std::io::stderr)
        .init();
    let runtime = Runtime::new()?;
    let outcome = runtime.block_on(serve(arguments, levers));
    // Clients that do not read their last words are not waited for.
    runtime.shutdown_timeout(Duration::ZERO);
    outcome
}

fn log_filter(levers: Levers) -> EnvFilter {
    let filter = EnvFilter::from_env("SLIPSTREAM_LOG");
    let placements = format!("{PLACEMENT_LOG}=info").parse();
    match levers.lane_debug {
        true => filter.add_directive(placements.expect("a target and a level are a directive")),
        false => filter,
    }
}

async fn serve(arguments: Arguments, levers: Levers) -> Result<()> {
    let clock = Clock::monotonic();
    let shutdown = shutdown_signal("finishing live requests")?;
    arguments.check()?;
    let device = Device::select()?;
    let serving = arguments.serving(device.back_end(), levers);
    let named = arguments.named(device.back_end())?;
    let residency = arguments.residency(device, &named)?;
    let single = match &named.sources()[..] {
        [model] => Some(model.directory.clone()),
        _ => None,
    };
    let hub = arguments.hub(device, &serving, &clock).await?;
    let catalogue = arguments.offered(named, hub.as_ref());
    check_settings(&residency.settings, &*catalogue, arguments.only)?;
    // The port comes first: a model takes seconds to load, a port in use is known at once.
    let listener = api::bind(&arguments.host, arguments.port).await?;
    let config = arguments.serve_config()?;
    api::check_exposure(listener.local_addr()?, &config)?;
    let loader =
        Loader { arguments: arguments.loading.clone(), serving, clock: clock.clone(), single };
    let (pause, plan) = (RebuildPause::default(), arguments.plan(device)?);
    let thread = Arc::new(FleetThread::start(clock.clone(), pause, plan, Arc::new(loader))?);
    let models = Residency::new(&thread, catalogue, residency, clock.clone());
    match arguments.models.is_empty() {
        true => print_library_card(&listener, &models, hub.as_ref(), clock.now())?,
        false => {
            let default = models.lease(Asked::DEFAULT).await?;
            print_ready_card(&listener, &models, &default, clock.now())?;
        }
    }
    let offer = match hub {
        Some(hub) => Offer::from((models, hub)),
        None => Offer::from(models),
    };
    let served = api::serve(listener, offer, &config, shutdown).await;
    thread.shut_down();
    served
}

/// Looks for what is said of models that are not there. Where others may come, that is no fault.
///
/// # Errors
/// `InvalidRequest` naming the first one.
fn check_settings(settings: &ModelSettings, catalogue: &dyn Catalogue, only: bool) -> Result<()> {
    let stray = settings.ids().find(|id| catalogue.find(id).is_none());
    stray.map_or(Ok(()), |id| {
        if !only {
            tracing::warn!("`--models-config` speaks of `{id}`, and no model is called so yet");
            return Ok(());
        }
        let names: Vec<String> =
            catalogue.sources().iter().map(|source| format!("`{}`", source.id)).collect();
        let message = format!("`--models-config` speaks of `{id}`, and no model is called so");
        let hint = format!("there are {}", names.join(", "));
        Err(Error::new(Code::InvalidRequest, message).with_hint(hint))
    })
}

impl Arguments {
    /// # Errors
    /// `InvalidRequest` when a flag has nothing to act on.
    fn check(&self) -> Result<()> {
        match (&self.disk.ssd_cache, self.prompt_cache) {
            (Some(_), ByteBudget::Off | ByteBudget::Bytes(0)) => {
                let message = "`--ssd-cache` has no effect with `--prompt-cache off`";
                Err(Error::new(Code::InvalidRequest, message))
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    fn serving(&self, back_end: BackEnd, levers: Levers) -> Serving {
        let (chunk_tokens, gap_ms) = match back_end {
            BackEnd::Cpu => (limits::PREFILL_CHUNK_TOKENS_CPU, limits::MAX_GAP_MS_CPU),
            BackEnd::Metal | BackEnd::Cuda => {
                (limits::PREFILL_CHUNK_TOKENS_DEFAULT, limits::MAX_GAP_MS_GPU)
            }
        };
        let asked_tokens = self.prefill_chunk.or(self.prefill_step_size);
        let gap = Duration::from_millis(self.max_gap.unwrap_or(gap_ms));
        Serving {
            scheduler: SchedulerConfig {
                batch_rows_max: self.batch,
                prefill_rows_max: self.prompt_concurrency,
                prefill_chunk_tokens: asked_tokens.map_or(chunk_tokens, |size| size as usize),
                max_gap: self.prefill_chunk.is_none().then_some(gap),
                levers,
                ..SchedulerConfig::default()
            },
            disk: self.disk.config(),
            max_tokens_default: self.max_tokens as usize,
            keeps_billing_line: self.keep_billing_line,
            sampling: self.sampling.overrides(),
        }
    }

    fn plan(&self, device: Device) -> Result<MemoryPlan> {
        let total_bytes = device.memory_bytes()?;
        Ok(MemoryPlan { total_bytes, kv_budget: self.kv_budget, prompt_cache: self.prompt_cache })
    }

    /// The models of the command line.
    fn named(&self, back_end: BackEnd) -> Result<Directories> {
        let sources = self.models.iter().map(|model| {
            let Found { directory, id } = self.places.find(model)?;
            check_directory(&directory)?;
            Ok(Source {
                id: id.unwrap_or_else(|| directory_id(&directory)).into(),
                weights_bytes: self.loading.estimate(&directory, back_end),
                directory,
                download: None,
            })
        });
        Directories::new(sources.collect::<Result<_>>()?)
    }

    /// The models of this machine and of the hub. Where a model is named, a server without them is one too.
    async fn hub(&self, device: Device, serving: &Serving, clock: &Clock) -> Result<Option<Hub>> {
        match self.open_hub(device, serving, clock).await {
            Ok(hub) => Ok(Some(hub)),
            Err(error) if self.models.is_empty() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "only the models that are named are served");
                Ok(None)
            }
        }
    }

    async fn open_hub(&self, device: Device, serving: &Serving, clock: &Clock) -> Result<Hub> {
        let wish = Wish {
            chunk_tokens: Some(serving.scheduler.prefill_chunk_tokens),
            kv_budget_bytes: match self.kv_budget {
                ByteBudget::Bytes(bytes) => Some(bytes),
                ByteBudget::Auto | ByteBudget::Off => None,
            },
            ..self.loading.wish()?
        };
        let config = HubConfig {
            download: DownloadConfig::new(self.places.places()?),
            machine: Some(fit::of_device(device)?.measured(clock)),
            wish,
            tokens: TokenStore::of_process(),
            tokens_everywhere: true,
            program: std::env::current_exe().ok(),
        };
        let remote = Remote::new(RemoteConfig::of_process()?, clock.clone())?;
        Hub::open(config, remote, clock.clone()).await
    }

    /// What is served.
    fn offered(&self, named: Directories, hub: Option<&Hub>) -> Arc<dyn Catalogue> {
        match hub {
            Some(hub) if !self.only => Arc::new(Offered::new(named, hub.clone())),
            Some(_) | None => Arc::new(named),
        }
    }

    fn residency(&self, device: Device, named: &Directories) -> Result<ResidencyConfig> {
        let settings = self.models_config.as_deref().map(ModelSettings::read).transpose()?;
        let room = self.plan(device)?.room(0);
        let headroom_bytes = match self.kv_budget {
            ByteBudget::Auto => limits::KV_HEADROOM_BYTES,
            ByteBudget::Off | ByteBudget::Bytes(_) => 0,
        };
        Ok(ResidencyConfig {
            default_id: named.sources().first().map(|source| Arc::clone(&source.id)),
            ttl: self.model_ttl.0,
            weights_bytes_max: Some(room.usable_bytes().saturating_sub(headroom_bytes)),
            settings: settings.unwrap_or_default(),
        })
    }

    fn serve_config(&self) -> Result<ServeConfig> {
        let file = self.api_key_file.as_deref();
        let filed = file.map(ApiKey::read_file).transpose()?.unwrap_or_default();
        Ok(ServeConfig {
            host: self.host.clone(),
            port: self.port,
            allowed_hosts: self.allowed_hosts.clone(),
            allowed_origins: self.allowed_origins.clone(),
            api_keys: self.api_keys.iter().cloned().chain(filed).collect(),
            keep_alive: self.keep_alive,
            ..ServeConfig::default()
        })
    }
}

/// Resolves at the first SIGINT or SIGTERM, which it answers by saying what is done now; a second one ends the process
/// at once.
pub(crate) fn shutdown_signal(answer: &'static str) -> Result<impl Future<Output = ()>> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        let first = async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        };
        first.await;
        eprintln!("slipstream: {answer}; once more to stop at once");
        // The receiver lives as long as the server.
        let _ = sender.send(());
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        std::process::exit(130);
    });
    Ok(async {
        let _ = receiver.await;
    })
}

use tokio::signal::unix::{SignalKind, signal};

/// Names that are printed of the library.
const NAMES_SHOWN_MAX: usize = 12;

/// What is served where no model was named.
fn print_library_card(
    listener: &TcpListener,
    models: &Residency,
    hub: Option<&Hub>,
    took: Duration,
) -> Result<()> {
    let url = url(listener)?;
    let names = models.names();
    println!("slipstream is ready after {:.1} s", took.as_secs_f64());
    println!("  URL        {url}");
    if let Some(hub) = hub {
        println!("  folder     {}", hub.places().models.display());
    }
    match names.len() {
        0 => println!("  models     none yet: `slipstream search` and `slipstream get` bring some"),
        _ => println!("  models     {}; loaded when they are asked for", listed(&names)),
    }
    println!("  try        curl {url}/models");
    Ok(())
}

/// The first of these names, and how many more there are.
fn listed(names: &[Arc<str>]) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn url(listener: &TcpListener) -> Result<String> {
    let address = listener.local_addr().map_err(|error| {
        Error::new(Code::Io, format!("failed to read the listening address: {error}"))
    })?;
    Ok(format!("http://{address}/v1"))
}

fn print_ready_card(
    listener: &TcpListener,
    models: &Residency,
    default: &Engine,
    took: Duration,
) -> Result<()> {
    let (card, scheduler) = (default.card(), default.scheduler());
    let url = url(listener)?;
    let lane = match (scheduler.batch_rows_max, &card.capabilities.serial_because[..]) {
        (1, []) => "1 row at a time (serial)".to_owned(),
        (rows, []) => format!("{rows} rows together at most"),
        (_, reasons) => format!("1 row at a time (serial): {}", reasons.join("; ")),
    };
    let (chunk_tokens, gap) = (scheduler.prefill_chunk_tokens, scheduler.max_gap);
    let chunk = match gap {
        Some(gap) => format!("{chunk_tokens} tokens a chunk at most, {} ms", gap.as_millis()),
        None => format!("{chunk_tokens} tokens a chunk, always"),
    };
    let budget = scheduler.kv_budget_bytes.map_or_else(
        || "off (rows are bounded by --batch alone)".to_owned(),
        |bytes| ByteCount(bytes).to_string(),
    );
    println!("slipstream is ready after {:.1} s", took.as_secs_f64());
    println!("  URL        {url}");
    println!("  model      {} ({} tokens of context)", card.id, card.context_tokens);
    let others: Vec<_> = models.names().into_iter().filter(|name| **name != *card.id).collect();
    if !others.is_empty() {
        println!("  also       {}", listed(&others));
    }
    println!("  back end   {}, {}", card.back_end, card.dtype);
    println!("  batch      {lane}");
    println!("  prefill    {chunk}");
    println!("  KV scheme  {}", card.kv_scheme);
    println!("  KV budget  {budget}");
    println!(
        "  prompts    {}",
        match scheduler.prompt_cache_bytes {
            0 => "not kept".to_owned(),
            bytes => format!("kept in up to {} of it", ByteCount(bytes)),
        }
    );
    match card.text_vectors() {
        Ok(vectors) => println!("  vectors    of texts; dimensions: {vectors}"),
        Err(_) => println!("  sampling   {}", described(&card.sampling_defaults)),
    }
    let (path, body) = match card.text_vectors() {
        Ok(_) => ("embeddings", r#"{"input": "Hello!"}"#),
        Err(_) => (
            "chat/completions",
            r#"{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}"#,
        ),
    };
    println!("  try        curl -N {url}/{path} -H 'Content-Type: application/json' -d '{body}'");
    Ok(())
}
