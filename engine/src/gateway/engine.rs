//! The facade: what the HTTP layer and the desktop shell call.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::card::ModelCard;
use super::dialogue::{Dialogue, Prepared};
use super::embedding::{self, EmbedRequest, Embedded};
use super::generation::{self, FinishReason, Generation, LiveRow, Phase, Stopwatch};
use super::guidance::{self, Structure};
use super::live::LiveRequests;
use super::profile::Profile;
use super::request::{self, GenerateRequest};
use super::residency::Lease;
use super::rows::{Health, Rows};
use crate::clock::{self, Clock, Time};
use crate::config::SchedulerConfig;
use crate::error::{Code, Error, Result};
use crate::grammar::{Constraint, Grammar, Grammars, Reasoning};
use crate::limits::GRAMMAR_COMPILERS_MAX;
use crate::output::Beginning;
use crate::scheduler::{RowSpec, event_channel};
use crate::telemetry::{Meters, RequestMeter, Snapshot};
use crate::tokenizer::Tokenizer;

/// The log target of placements.
pub const PLACEMENT_LOG: &str = "slipstream::placement";

/// Prompts with more text than this are tokenized on a blocking thread.
const INLINE_TEXT_BYTES_MAX: usize = 8 * 1024;

/// One served model, ready for requests. Clones share it.
///
/// It serves; after [`Engine::drain`] it refuses new requests and finishes live ones; after
/// [`Engine::stop`] it ends those too.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    /// The model with the defaults of the profile by which it was asked for.
    card: Arc<ModelCard>,
    /// Keeps the model loaded.
    lease: Option<Arc<Lease>>,
}

/// What all engines of a server share.
#[derive(Debug, Clone)]
pub(super) struct Commons {
    pub(super) clock: Clock,
    pub(super) started: Time,
    pub(super) started_unix_seconds: u64,
    pub(super) meters: Meters,
    pub(super) phase: watch::Sender<Phase>,
}

struct Inner {
    commons: Commons,
    card: ModelCard,
    stop_tokens: Arc<[u32]>,
    dialogue: Arc<Dialogue>,
    grammars: Arc<Grammars>,
    /// Grammars that may compile at once.
    compilers: Semaphore,
    rows: Arc<dyn Rows>,
    scheduler: SchedulerConfig,
    places: Arc<Semaphore>,
    live: Arc<LiveRequests>,
    meters: Meters,
}

impl Commons {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            started: clock.now(),
            clock,
            started_unix_seconds: clock::unix_seconds(),
            meters: Meters::new(""),
            phase: watch::Sender::new(Phase::Serving),
        }
    }

    pub(super) fn check_serving(&self) -> Result<()> {
        match *self.phase.borrow() {
            Phase::Serving => Ok(()),
            Phase::Draining | Phase::Stopped => Err(generation::shutting_down()),
        }
    }

    /// Resolves when no requests are taken any more.
    pub(super) async fn drained(&self) {
        let serving = |phase: &Phase| *phase == Phase::Serving;
        // The sender lives here, so the wait cannot fail.
        let _ = self.phase.subscribe().wait_for(|phase| !serving(phase)).await;
    }

    /// Resolves when live requests are to end.
    pub(super) async fn stopped(&self) {
        generation::stopped(&mut self.phase.subscribe()).await;
    }

    pub(super) fn drain(&self) {
        self.phase.send_if_modified(|phase| {
            let serving = *phase == Phase::Serving;
            if serving {
                *phase = Phase::Draining;
            }
            serving
        });
    }

    pub(super) fn stop(&self) {
        self.phase.send_replace(Phase::Stopped);
    }
}

impl Engine {
    /// The engine that runs rows of the model `card` on `rows`.
    pub fn new(
        card: ModelCard,
        tokenizer: Tokenizer,
        rows: Arc<dyn Rows>,
        scheduler: SchedulerConfig,
        clock: Clock,
    ) -> Self {
        Self::within(&Commons::new(clock), card, tokenizer, rows, scheduler)
    }

    /// The same among others.
    pub(super) fn within(
        commons: &Commons,
        mut card: ModelCard,
        tokenizer: Tokenizer,
        rows: Arc<dyn Rows>,
        scheduler: SchedulerConfig,
    ) -> Self {
        let live_max = scheduler.live_rows_max();
        card.sampling_defaults.xtc.exempt = never_dropped(&tokenizer, card.vocab_size);
        let grammars = Arc::new(Grammars::new(tokenizer.clone(), card.vocab_size));
        let stop_tokens = tokenizer.stop_tokens();
        let dialogue = Arc::new(Dialogue::new(tokenizer, card.keeps_billing_line));
        let inner = Inner {
            commons: commons.clone(),
            meters: commons.meters.of(&card.id),
            grammars,
            compilers: Semaphore::new(GRAMMAR_COMPILERS_MAX),
            card: card.clone(),
            stop_tokens,
            dialogue,
            rows,
            scheduler,
            places: Arc::new(Semaphore::new(live_max.min(Semaphore::MAX_PERMITS))),
            live: Arc::default(),
        };
        Self { inner: Arc::new(inner), card: Arc::new(card), lease: None }
    }

    /// The same engine for a request that asked for `profile`, which holds a lease of its model.
    pub(super) fn leased(&self, lease: Lease, profile: Option<&Profile>) -> Self {
        let card = match profile {
            Some(profile) => Arc::new(profile.over(&self.inner.card)),
            None => Arc::clone(&self.card),
        };
        Self { inner: Arc::clone(&self.inner), card, lease: Some(Arc::new(lease)) }
    }

    /// Starts a request.
    ///
    /// # Errors
    /// `InvalidRequest` and `ContextLengthExceeded` when it does not fit the model, `OverBudget` when
    /// it can never fit the KV budget, `QueueFull` when too many are live, `ShuttingDown` and `EngineFailed` when it cannot be served now.
    pub async fn generate(&self, request: GenerateRequest) -> Result<Generation> {
        let client = Arc::clone(&request.client);
        let started = self.start(request).await;
        started.inspect_err(|error| self.inner.meters.refused(&client, error.code().name()))
    }

    async fn start(&self, request: GenerateRequest) -> Result<Generation> {
        let inner = &self.inner;
        inner.commons.check_serving()?;
        inner.card.check_answers()?;
        let place = inner.place_in_queue()?;
        let prepared = inner.prepare(&request, self.keeps_prompts()).await?;
        let Prepared { tokens, boundaries, beginning } = prepared;
        let stop_tokens = Arc::clone(&inner.stop_tokens);
        let (mut spec, placement) =
            request::row(&request, tokens, &self.card, &inner.scheduler_now(), stop_tokens)?;
        spec.boundaries = boundaries;
        spec.grammar = inner.grammar(&request, beginning).await?;
        // `SLIPSTREAM_LANE_DEBUG=1` lets this through.
        tracing::info!(target: PLACEMENT_LOG, id = spec.id, ?placement, "placed");
        let (sender, events) = event_channel(spec.max_tokens);
        let stopwatch = Stopwatch::start(inner.commons.clock.clone());
        let presence = inner.live.enter(&request.id);
        inner.rows.submit(spec, sender)?;
        let lane = placement.lane.name();
        let meter = inner.meters.request(lane, &request.client, stopwatch.submitted());
        let row = LiveRow::new(events, inner.commons.phase.subscribe(), presence, place);
        let reader = inner.dialogue.reader(&request, beginning);
        let tokenizer = inner.dialogue.tokenizer().clone();
        let generation =
            Generation::new(request, placement, row, (tokenizer, reader), stopwatch, meter);
        Ok(generation.holding(self.lease.clone()))
    }

    /// Ends the live request `id` where it is, as [`FinishReason::Cancelled`]; `false` when no such
    /// request is live.
    ///
    /// [`FinishReason::Cancelled`]: super::FinishReason::Cancelled
    pub fn cancel(&self, id: &str) -> bool {
        self.inner.live.cancel(id)
    }

    /// Ends all live requests where they are, and those that come still.
    pub(super) fn cancel_all(&self) {
        self.inner.live.cancel_all();
    }

    /// The token ids of the prompt of `request`, as [`Engine::generate`] would run it.
    ///
    /// # Errors
    /// `InvalidRequest` when the chat template refuses it.
    pub async fn prompt_tokens(&self, request: &GenerateRequest) -> Result<Vec<u32>> {
        Ok(self.inner.prepare(request, false).await?.tokens)
    }

    /// The vectors of the texts of `request`, in their order. All texts are held against the model before
    /// one is run. Dropping the future cancels what runs.
    ///
    /// # Errors
    /// `Unsupported` when the model makes none, `InvalidRequest`, `ContextLengthExceeded` and `OverBudget` when
    /// a text does not fit, `QueueFull` when too many requests are live, `ShuttingDown` and `EngineFailed` when
    /// it cannot be served now, `InvalidRequest` too when somebody cancelled it.
    pub async fn embed(&self, request: EmbedRequest) -> Result<Vec<Vec<f32>>> {
        let inner = &self.inner;
        let client = Arc::clone(&request.client);
        let refused = |error: &Error| inner.meters.refused(&client, error.code().name());
        let (_place, rows) = inner.admit(request).inspect_err(refused)?;
        let Some(first) = rows.first() else {
            return Ok(Vec::new());
        };
        let mut meter = inner.meters.request(first.lane.name(), &client, inner.commons.clock.now());
        let presence = inner.live.enter(&first.id);
        let vectors = tokio::select! {
            biased;
            () = inner.commons.stopped() => Err(generation::shutting_down()),
            () = presence.cancelled() => Err(embedding::cancelled()),
            vectors = inner.embed_each(rows, &meter) => vectors,
        };
        meter.ended(if vectors.is_ok() { FinishReason::Stop.name() } else { "failed" }, 0);
        vectors
    }

    /// The tokenizer of the served model.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.inner.dialogue.tokenizer()
    }

    /// The served model.
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// How its rows are scheduled, as of when its model was loaded.
    pub fn scheduler(&self) -> &SchedulerConfig {
        &self.inner.scheduler
    }

    /// What the engine does now; never waits for the engine thread.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.inner.rows.snapshot()
    }

    /// Whether prompts are kept for later requests.
    pub fn keeps_prompts(&self) -> bool {
        self.inner.scheduler.prompt_cache_bytes > 0
    }

    pub(super) fn commons(&self) -> &Commons {
        &self.inner.commons
    }

    pub(super) fn rows(&self) -> &dyn Rows {
        &*self.inner.rows
    }

    /// The clock that everything here goes by.
    pub fn clock(&self) -> &Clock {
        &self.inner.commons.clock
    }

    /// Resolves when the engine no longer takes requests.
    pub async fn drained(&self) {
        self.inner.commons.drained().await;
    }

    /// Whether requests are worth sending.
    pub fn health(&self) -> Health {
        match self.inner.commons.check_serving() {
            Ok(()) => self.inner.rows.health(),
            Err(error) => Health::Unavailable { reason: error.message().to_owned() },
        }
    }

    /// Refuses new requests; live ones go on.
    pub fn drain(&self) {
        self.inner.commons.drain();
    }

    /// Ends live requests with `ShuttingDown`, and cancels their rows.
    pub fn stop(&self) {
        self.inner.commons.stop();
    }
}

impl Inner {
    /// The settings with the KV budget as it is now.
    fn scheduler_now(&self) -> SchedulerConfig {
        let kv_budget_bytes = self.rows.kv_budget_bytes(self.scheduler.kv_budget_bytes);
        SchedulerConfig { kv_budget_bytes, ..self.scheduler.clone() }
    }

    fn place_in_queue(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| self.queue_full())
    }

    /// The rows of a request for vectors, and its place among the live ones.
    fn admit(&self, request: EmbedRequest) -> Result<(OwnedSemaphorePermit, Vec<RowSpec>)> {
        self.commons.check_serving()?;
        let rows = embedding::rows(request, &self.card, &self.scheduler_now())?;
        Ok((self.place_in_queue()?, rows))
    }

    /// One after the other, so that a request of many texts has one place in the queue and no more.
    async fn embed_each(&self, rows: Vec<RowSpec>, meter: &RequestMeter) -> Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(rows.len());
        for row in rows {
            let prompt_tokens = row.prompt.len();
            let Embedded { vector, cached_tokens, queue_ms } =
                embedding::run(&*self.rows, row).await?;
            meter.prefilled(prompt_tokens, cached_tokens, queue_ms);
            vectors.push(vector);
        }
        Ok(vectors)
    }

    /// The prompt of `request`; `cut` says whether its boundaries are looked for.
    async fn prepare(&self, request: &GenerateRequest, cut: bool) -> Result<Prepared> {
        if request.text_bytes() <= INLINE_TEXT_BYTES_MAX {
            return self.dialogue.prepare(request, cut);
        }
        let (long, dialogue) = (request.clone(), Arc::clone(&self.dialogue));
        let prepared = tokio::task::spawn_blocking(move || dialogue.prepare(&long, cut)).await;
        prepared.unwrap_or_else(|panic| {
            let message = format!("failed to tokenize `{}`: {panic}", request.prompt.param());
            Err(Error::new(Code::Internal, message))
        })
    }

    /// What the answer of `request`, which begins at `beginning`, must match.
    async fn grammar(
        &self,
        request: &GenerateRequest,
        beginning: Beginning,
    ) -> Result<Option<Grammar>> {
        let format = self.dialogue.format_of(request);
        let structure = guidance::structure(request, &format, self.dialogue.tokenizer())?;
        let Some(Structure { constraint, param }) = structure else {
            return Ok(None);
        };
        if self.card.capabilities.writes_blocks {
            return Err(self.card.writes_blocks(&param));
        }
        let reasoning = guidance::reasoning(request, &format, &constraint, beginning);
        let compiled = match reasoning {
            Ok(reasoning) => self.compiled(constraint, reasoning).await,
            Err(error) => Err(error),
        };
        compiled.map(Some).map_err(|error| error.with_param(param))
    }

    async fn compiled(
        &self,
        constraint: Constraint,
        reasoning: Option<Reasoning>,
    ) -> Result<Grammar> {
        if let Some(known) = self.grammars.known(&constraint, reasoning.as_ref()) {
            return known;
        }
        let failed = |message| Error::new(Code::Internal, format!("failed to compile: {message}"));
        let _turn = self.compilers.acquire().await.map_err(|closed| failed(closed.to_string()))?;
        let grammars = Arc::clone(&self.grammars);
        let compiled = tokio::task::spawn_blocking(move || {
            let grammar = grammars.compile(&constraint)?;
            Ok(match reasoning {
                Some(reasoning) => grammar.after(reasoning),
                None => grammar,
            })
        });
        let compiled = compiled.await;
        compiled.unwrap_or_else(|panic| Err(failed(panic.to_string())))
    }

    fn queue_full(&self) -> Error {
        let message = format!(
            "{} requests run or may run together and {} may wait: all places are taken",
            self.scheduler.batch_rows_max, self.scheduler.waiting_rows_max
        );
        Error::new(Code::QueueFull, message).with_hint("try again when some have finished")
    }
}

/// The tokens that XTC never drops, as in mlx-lm 0.32.2's server: a line break (and what the tokenizer puts
/// around it) and what ends an answer. A token that the model cannot say needs no such care.
fn never_dropped(tokenizer: &Tokenizer, vocab_size: usize) -> Arc<[u32]> {
    let mut tokens: BTreeSet<u32> = tokenizer.stop_tokens().iter().copied().collect();
    // A tokenizer that cannot encode a line break has none to keep.
    tokens.extend(tokenizer.encode("\n", true).unwrap_or_default());
    tokens.into_iter().filter(|token| (*token as usize) < vocab_size).collect()
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Engine").field("model", &self.card.id).finish_non_exhaustive()
    }
}
