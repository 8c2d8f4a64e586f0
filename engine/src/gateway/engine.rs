//! The facade: what the HTTP layer and the desktop shell call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::card::ModelCard;
use super::dialogue::{Dialogue, Prepared};
use super::generation::{self, Generation, LiveRow, Phase, Stopwatch};
use super::request::{self, GenerateRequest};
use super::rows::{Health, Rows};
use crate::clock::{self, Clock, Time};
use crate::config::SchedulerConfig;
use crate::error::{Code, Error, Result};
use crate::scheduler::event_channel;
use crate::telemetry::Snapshot;
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
pub struct Engine(Arc<Inner>);

struct Inner {
    card: ModelCard,
    stop_tokens: Arc<[u32]>,
    dialogue: Arc<Dialogue>,
    rows: Arc<dyn Rows>,
    scheduler: SchedulerConfig,
    clock: Clock,
    started: Time,
    started_unix_seconds: u64,
    live: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
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
        let live_max = scheduler.live_rows_max();
        Self(Arc::new(Inner {
            card,
            stop_tokens: tokenizer.stop_tokens(),
            dialogue: Arc::new(Dialogue::new(tokenizer)),
            rows,
            scheduler,
            started: clock.now(),
            clock,
            started_unix_seconds: clock::unix_seconds(),
            live: Arc::new(Semaphore::new(live_max.min(Semaphore::MAX_PERMITS))),
            phase: watch::Sender::new(Phase::Serving),
        }))
    }

    /// Starts a request.
    ///
    /// # Errors
    /// `InvalidRequest` and `ContextLengthExceeded` when it does not fit the model, `OverBudget` when
    /// it can never fit the KV budget, `QueueFull` when too many are live, `ShuttingDown` and `EngineFailed` when it cannot be served now.
    pub async fn generate(&self, request: GenerateRequest) -> Result<Generation> {
        let inner = &self.0;
        inner.check_serving()?;
        let place = inner.place_in_queue()?;
        let Prepared { tokens, beginning } = inner.prepare(&request).await?;
        let (spec, placement) = request::row(
            &request,
            tokens,
            &inner.card,
            &inner.scheduler,
            Arc::clone(&inner.stop_tokens),
        )?;
        // `SLIPSTREAM_LANE_DEBUG=1` lets this through.
        tracing::info!(target: PLACEMENT_LOG, id = spec.id, ?placement, "placed");
        let (sender, events) = event_channel(spec.max_tokens);
        let stopwatch = Stopwatch::start(inner.clock.clone());
        inner.rows.submit(spec, sender)?;
        let row = LiveRow::new(events, inner.phase.subscribe(), place);
        let reader = inner.dialogue.reader(&request, beginning);
        Ok(Generation::new(request, placement, row, reader, stopwatch))
    }

    /// The served model.
    pub fn card(&self) -> &ModelCard {
        &self.0.card
    }

    /// What the engine does now; never waits for the engine thread.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.0.rows.snapshot()
    }

    /// Whether requests are worth sending.
    pub fn health(&self) -> Health {
        match self.0.check_serving() {
            Ok(()) => self.0.rows.health(),
            Err(error) => Health::Unavailable { reason: error.message().to_owned() },
        }
    }

    /// Since when it serves, in Unix seconds.
    pub fn started_unix_seconds(&self) -> u64 {
        self.0.started_unix_seconds
    }

    /// How long it has served.
    pub fn uptime(&self) -> Duration {
        self.0.clock.now().saturating_sub(self.0.started)
    }

    /// Refuses new requests; live ones go on.
    pub fn drain(&self) {
        self.0.phase.send_if_modified(|phase| {
            let serving = *phase == Phase::Serving;
            if serving {
                *phase = Phase::Draining;
            }
            serving
        });
    }

    /// Ends live requests with `ShuttingDown`, and cancels their rows.
    pub fn stop(&self) {
        self.0.phase.send_replace(Phase::Stopped);
    }
}

impl Inner {
    fn check_serving(&self) -> Result<()> {
        match *self.phase.borrow() {
            Phase::Serving => Ok(()),
            Phase::Draining | Phase::Stopped => Err(generation::shutting_down()),
        }
    }

    fn place_in_queue(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.live).try_acquire_owned().map_err(|_| self.queue_full())
    }

    async fn prepare(&self, request: &GenerateRequest) -> Result<Prepared> {
        if request.text_bytes() <= INLINE_TEXT_BYTES_MAX {
            return self.dialogue.prepare(request);
        }
        let (long, dialogue) = (request.clone(), Arc::clone(&self.dialogue));
        tokio::task::spawn_blocking(move || dialogue.prepare(&long)).await.unwrap_or_else(|panic| {
            let message = format!("failed to tokenize `{}`: {panic}", request.prompt.param());
            Err(Error::new(Code::Internal, message))
        })
    }

    fn queue_full(&self) -> Error {
        let message = format!(
            "{} requests run or may run together and {} may wait: all places are taken",
            self.scheduler.batch_rows_max, self.scheduler.waiting_rows_max
        );
        Error::new(Code::QueueFull, message).with_hint("try again when some have finished")
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Engine").field("model", &self.0.card.id).finish_non_exhaustive()
    }
}
