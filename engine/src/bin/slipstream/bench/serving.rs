//! What serving costs beyond the engine: HTTP, JSON, tokenizer and parsers over a model without arrays.
//!
//! The server runs in this process as `slipstream serve` runs it, with the tokenizer of a real model and a
//! scripted executor ([`script`]); its clients are another process ([`client`]), so that the processor time of
//! this one is the server's. Of that, what the engine thread took is the engine's. Processor time does not
//! depend on what else the machine does; times to the first text do.

pub(crate) mod client;
mod script;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slipstream_engine::api;
use slipstream_engine::cache::KvProfile;
use slipstream_engine::clock::{Clock, process_busy};
use slipstream_engine::config::{SchedulerConfig, ServeConfig};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{
    Engine, ModelCapabilities, ModelCard, RequestDefaults, Resources, RowThread,
};
use slipstream_engine::mlx::thread::RebuildPause;
use slipstream_engine::sampling::SamplingParams;
use slipstream_engine::tokenizer::Tokenizer;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::script::{Reciter, Stage};
use super::{Outcome, median};

/// Tokens of the model's context: more than any answer here has.
const CONTEXT_TOKENS: usize = 1 << 20;

/// How much is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Streams whose tokens are priced.
    streams: usize,
    /// Words of each of them; a word is some tokens.
    words: usize,
    /// Streams of the crowd that is held against the script.
    crowd: usize,
    /// Words of each of those.
    crowd_words: usize,
    /// Requests whose first text is timed.
    probes: usize,
}

impl Load {
    /// As much as figures need that can be trusted.
    pub(super) const WHOLE: Self =
        Self { streams: 64, words: 200, crowd: 1000, crowd_words: 60, probes: 200 };
    /// As little as shows that it works.
    pub(super) const SMOKE: Self =
        Self { streams: 4, words: 5, crowd: 12, crowd_words: 5, probes: 2 };
}

/// What the tokens of a crowd cost.
struct Price {
    name: &'static str,
    streams: usize,
    tokens: u64,
    /// Processor time of the process per token, the engine thread's left out.
    serving_us: f64,
    /// Of the engine thread.
    engine_us: f64,
    /// From the first request to the last end, over all tokens.
    wall_us: f64,
    wrong: u64,
    example: Value,
}

/// Times to the first text.
struct FirstText {
    streams: usize,
    probes: usize,
    overhead_ms_median: f64,
    overhead_ms_p99: f64,
}

/// Measures a scripted server with the tokenizer of the model in `directory`.
pub(super) fn measure(directory: &Path, load: Load) -> Result<Outcome> {
    let runtime = Runtime::new()?;
    let server = Server::start(&runtime, Tokenizer::load(directory)?, load.crowd)?;
    let step = Duration::from_millis;
    // What is made once is made before anything is measured.
    server.crowd("warm", load.streams.min(8), load.words.min(20), Duration::ZERO)?;
    let prices = vec![
        server.crowd("paced", load.streams, load.words, step(20))?,
        server.crowd("at once", load.streams, load.words, Duration::ZERO)?,
        server.crowd("crowd", load.crowd, load.crowd_words, step(50))?,
    ];
    let firsts = vec![
        server.first_text(1, load.probes, Duration::ZERO)?,
        server.first_text(load.streams, load.probes, step(10))?,
    ];
    server.end(&runtime)?;
    Ok(outcome(&prices, &firsts))
}

/// A server of the script.
struct Server {
    rows: Arc<RowThread<Reciter>>,
    stage: Arc<Stage>,
    port: u16,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<Result<()>>,
}

impl Server {
    fn start(runtime: &Runtime, tokenizer: Tokenizer, rows_max: usize) -> Result<Self> {
        let (clock, stage) = (Clock::monotonic(), Arc::<Stage>::default());
        let scheduler = SchedulerConfig {
            batch_rows_max: rows_max.max(64),
            prefill_rows_max: rows_max.max(64),
            ..SchedulerConfig::default()
        };
        let (spoken, shared, config) = (tokenizer.clone(), Arc::clone(&stage), scheduler.clone());
        let build = move || {
            let executor = Reciter::new(spoken.clone(), Arc::clone(&shared))?;
            Ok(Resources { executor, config: config.clone(), disk: None })
        };
        let rows = Arc::new(RowThread::start(clock.clone(), RebuildPause::default(), build)?);
        let engine = Engine::new(card(&tokenizer), tokenizer, rows.clone(), scheduler, clock);
        let listener = runtime.block_on(api::bind("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let (shutdown, asked) = oneshot::channel::<()>();
        let served = runtime.spawn(async move {
            let config = ServeConfig::default();
            api::serve(listener, engine, &config, async { drop(asked.await) }).await
        });
        Ok(Self { rows, stage, port, shutdown, served })
    }

    fn end(self, runtime: &Runtime) -> Result<()> {
        drop(self.shutdown);
        let served = runtime.block_on(self.served);
        self.rows.shut_down();
        served.map_err(|panic| Error::new(Code::Internal, panic.to_string()))?
    }

    /// What the tokens of `streams` streams at once cost, and whether all came.
    fn crowd(
        &self,
        name: &'static str,
        streams: usize,
        words: usize,
        step: Duration,
    ) -> Result<Price> {
        self.stage.set_step(step);
        let before = self.spent();
        let told = self.clients(streams, words, 0)?;
        let after = self.spent();
        let tokens = after.tokens - before.tokens;
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / tokens.max(1) as f64;
        let engine = after.engine.saturating_sub(before.engine);
        let process = after.process.saturating_sub(before.process);
        Ok(Price {
            name,
            streams,
            tokens,
            serving_us: each(process.saturating_sub(engine)),
            engine_us: each(engine),
            wall_us: told["seconds"].as_f64().unwrap_or(f64::NAN) * 1e6 / tokens.max(1) as f64,
            wrong: told["wrong"].as_u64().unwrap_or(streams as u64),
            example: told["example"].clone(),
        })
    }

    /// How long the first text takes beyond the engine's own time, beside all streams but one.
    fn first_text(&self, streams: usize, probes: usize, step: Duration) -> Result<FirstText> {
        const ENDLESS_WORDS: usize = 20_000;
        self.stage.set_step(step);
        let told = self.clients(streams, ENDLESS_WORDS, probes)?;
        let numbers = |name: &str| {
            let numbers = told[name].as_array().into_iter().flatten();
            numbers.filter_map(Value::as_f64).collect::<Vec<_>>()
        };
        let both = numbers("first_text_ms").into_iter().zip(numbers("engine_ms"));
        let mut overhead: Vec<f64> = both.map(|(whole, engine)| whole - engine).collect();
        overhead.sort_by(f64::total_cmp);
        let p99 = overhead.get((overhead.len() * 99).div_ceil(100).saturating_sub(1));
        let overhead_ms_p99 = p99.copied().unwrap_or(f64::NAN);
        let overhead_ms_median = median(overhead);
        Ok(FirstText { streams, probes, overhead_ms_median, overhead_ms_p99 })
    }

    /// Runs the clients in their process; what they say.
    fn clients(&self, streams: usize, words: usize, probes: usize) -> Result<Value> {
        let output = Command::new(std::env::current_exe()?)
            .args(["bench-clients", "--port", &self.port.to_string()])
            .args(["--streams", &streams.to_string(), "--words", &words.to_string()])
            .args(["--probes", &probes.to_string()])
            .stderr(Stdio::inherit())
            .output()?;
        let told = serde_json::from_slice(&output.stdout);
        told.map_err(|error| Error::new(Code::Io, format!("the clients said nothing: {error}")))
    }

    fn spent(&self) -> Spent {
        Spent {
            process: process_busy(),
            engine: self.stage.engine_busy(),
            tokens: self.rows.board().read().totals.generated_tokens,
        }
    }
}

/// What the process has spent so far, and for how much.
struct Spent {
    process: Duration,
    engine: Duration,
    tokens: u64,
}

fn card(tokenizer: &Tokenizer) -> ModelCard {
    ModelCard {
        id: "script".to_owned(),
        context_tokens: CONTEXT_TOKENS,
        vocab_size: tokenizer.vocab_size(),
        dtype: "none".to_owned(),
        back_end: "script".to_owned(),
        kv_scheme: "off".to_owned(),
        capabilities: ModelCapabilities::default(),
        sampling_defaults: SamplingParams::default(),
        max_tokens_default: CONTEXT_TOKENS,
        keeps_billing_line: false,
        request_defaults: RequestDefaults::default(),
        kv: KvProfile { layers: Vec::new() },
    }
}

fn outcome(prices: &[Price], firsts: &[FirstText]) -> Outcome {
    let price = |price: &Price| {
        json!({
            "name": price.name, "streams": price.streams, "tokens": price.tokens,
            "serving_cpu_us": price.serving_us, "engine_cpu_us": price.engine_us,
            "wall_us": price.wall_us, "wrong_streams": price.wrong, "example": price.example,
        })
    };
    let first = |first: &FirstText| {
        json!({
            "streams": first.streams, "probes": first.probes,
            "overhead_ms_median": first.overhead_ms_median,
            "overhead_ms_p99": first.overhead_ms_p99,
        })
    };
    let json = json!({
        "tokens": prices.iter().map(price).collect::<Vec<_>>(),
        "first_text": firsts.iter().map(first).collect::<Vec<_>>(),
    });
    Outcome { name: "serving", json, table: table(prices, firsts) }
}

fn table(prices: &[Price], firsts: &[FirstText]) -> String {
    let mut lines = vec![
        "serving a scripted model, microseconds per token".to_owned(),
        format!(
            "{:<8} {:>7} {:>8} {:>11} {:>10} {:>7} {:>6}",
            "", "streams", "tokens", "serving CPU", "engine CPU", "wall", "wrong"
        ),
    ];
    lines.extend(prices.iter().map(|price| {
        let Price { name, streams, tokens, serving_us, engine_us, wall_us, wrong, .. } = price;
        format!(
            "{name:<8} {streams:>7} {tokens:>8} {serving_us:>11.1} {engine_us:>10.1} {wall_us:>7.1} \
             {wrong:>6}"
        )
    }));
    lines.push("\nfirst text of a new request beyond the engine's own time, ms".to_owned());
    lines.extend(firsts.iter().map(|first| {
        let FirstText { streams, probes, overhead_ms_median, overhead_ms_p99 } = first;
        format!(
            "{streams} streams, {probes} requests: median {overhead_ms_median:.2}, p99 {overhead_ms_p99:.2}"
        )
    }));
    lines.join("\n")
}
