//! `slipstream serve`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use slipstream_engine::api;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{SchedulerConfig, ServeConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{Engine, ModelCard};
use slipstream_engine::limits;
use slipstream_engine::mlx::{BackEnd, Device};
use slipstream_engine::tokenizer::Tokenizer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::load::ModelArguments;

/// What `slipstream serve` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Rows that decode together at most; 1 runs every request alone.
    #[arg(long, visible_alias = "decode-concurrency", value_name = "ROWS",
          default_value_t = limits::BATCH_ROWS_DEFAULT, value_parser = rows)]
    batch: usize,
    /// Rows that prefill at a time at most.
    #[arg(long, value_name = "ROWS", default_value_t = 1, value_parser = rows)]
    prompt_concurrency: usize,
    /// Prompt tokens run between two decode steps at most [default: 256 on a processor, 2048 on a
    /// GPU].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    prefill_step_size: Option<u32>,
    /// A name, beyond the loopback ones, that clients may call this server by (repeatable).
    #[arg(long = "allowed-host", value_name = "HOST")]
    allowed_hosts: Vec<String>,
    /// A web origin whose pages may use this server (repeatable).
    #[arg(long = "allowed-origin", value_name = "ORIGIN")]
    allowed_origins: Vec<String>,
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
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("SLIPSTREAM_LOG"))
        .with_writer(std::io::stderr)
        .init();
    let runtime = Runtime::new()?;
    let outcome = runtime.block_on(serve(arguments));
    // Clients that do not read their last words are not waited for.
    runtime.shutdown_timeout(Duration::ZERO);
    outcome
}

async fn serve(arguments: Arguments) -> Result<()> {
    let clock = Clock::monotonic();
    let shutdown = shutdown_signal()?;
    let scheduler = arguments.scheduler_config(Device::select()?.back_end());
    // The port comes first: a model takes seconds to load, a port in use is known at once.
    let listener = api::bind(&arguments.host, arguments.port).await?;
    let (rows, card) = arguments.model.start(scheduler.clone(), clock.clone())?;
    let tokenizer = Tokenizer::load(&arguments.model.model)?;
    let rows = Arc::new(rows);
    let engine =
        Engine::new(card.clone(), tokenizer, rows.clone(), scheduler.clone(), clock.clone());
    print_ready_card(&listener, &card, &scheduler, clock.now())?;
    let served = api::serve(listener, engine, &arguments.serve_config(), shutdown).await;
    rows.shut_down();
    served
}

impl Arguments {
    fn scheduler_config(&self, back_end: BackEnd) -> SchedulerConfig {
        let by_back_end = match back_end {
            BackEnd::Cpu => limits::PREFILL_CHUNK_TOKENS_CPU,
            BackEnd::Metal | BackEnd::Cuda => limits::PREFILL_CHUNK_TOKENS_DEFAULT,
        };
        SchedulerConfig {
            batch_rows_max: self.batch,
            prefill_rows_max: self.prompt_concurrency,
            prefill_chunk_tokens: self.prefill_step_size.map_or(by_back_end, |size| size as usize),
            ..SchedulerConfig::default()
        }
    }

    fn serve_config(&self) -> ServeConfig {
        ServeConfig {
            host: self.host.clone(),
            port: self.port,
            allowed_hosts: self.allowed_hosts.clone(),
            allowed_origins: self.allowed_origins.clone(),
            ..ServeConfig::default()
        }
    }
}

/// Resolves at the first SIGINT or SIGTERM; a second one ends the process at once.
fn shutdown_signal() -> Result<impl Future<Output = ()>> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        let first = async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        };
        first.await;
        eprintln!("slipstream: finishing live requests; once more to stop at once");
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

fn print_ready_card(
    listener: &TcpListener,
    card: &ModelCard,
    scheduler: &SchedulerConfig,
    took: Duration,
) -> Result<()> {
    let address = listener.local_addr().map_err(|error| {
        Error::new(Code::Io, format!("failed to read the listening address: {error}"))
    })?;
    let url = format!("http://{address}/v1");
    let lane = match (scheduler.batch_rows_max, &card.capabilities.serial_because[..]) {
        (1, []) => "1 row at a time (serial)".to_owned(),
        (rows, []) => format!("{rows} rows together at most"),
        (_, reasons) => format!("1 row at a time (serial): {}", reasons.join("; ")),
    };
    println!("slipstream is ready after {:.1} s", took.as_secs_f64());
    println!("  URL        {url}");
    println!("  model      {} ({} tokens of context)", card.id, card.context_tokens);
    println!("  back end   {}, {}", card.back_end, card.dtype);
    println!("  batch      {lane}");
    println!("  KV scheme  {}", card.kv_scheme);
    println!("  KV budget  none (rows are bounded by --batch)");
    println!(
        "  try        curl -N {url}/chat/completions -H 'Content-Type: application/json' \
         -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}], \"stream\": true}}'"
    );
    Ok(())
}
