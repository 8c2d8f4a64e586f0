//! Who loads and unloads models for the residency.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::error::{Code, Error, Result};
use crate::gateway::catalogue::Source;
use crate::gateway::engine::{Commons, Engine};
use crate::gateway::fleet::{Docked, FleetThread, LoadMeter, LoadOrder, ModelNumber, ModelRows};
use crate::gateway::generation;
use crate::gateway::rows::Health;
use crate::limits;
use crate::scheduler::{Board, Executor};
use crate::telemetry::{MemorySnapshot, Snapshot};
use crate::tokenizer::Tokenizer;

/// A model that is loaded.
pub(super) struct Hosted {
    pub(super) engine: Engine,
    pub(super) weights_bytes: u64,
}

/// Loads and unloads.
pub(super) trait Host: Send + Sync {
    /// Loads a model. Whoever drops the future calls [`Host::unload`] next. After an error nothing of it is left.
    fn load(&self, source: Source, meter: Arc<LoadMeter>) -> BoxFuture<'static, Result<Hosted>>;

    /// Unloads a model, or gives up its load; resolves when its memory is back.
    fn unload(&self, id: &str) -> BoxFuture<'static, ()>;

    /// Whether what is loaded makes progress.
    fn health(&self) -> Health;

    /// The allocator's figures.
    fn memory(&self) -> MemorySnapshot;

    /// What a model does, or did when it was loaded last.
    fn snapshot(&self, id: &str) -> Option<Arc<Snapshot>>;
}

/// The one model of a server that never loads another.
pub(super) struct FixedHost(Engine);

impl FixedHost {
    pub(super) fn new(engine: Engine) -> Self {
        Self(engine)
    }
}

impl Host for FixedHost {
    fn load(&self, source: Source, _meter: Arc<LoadMeter>) -> BoxFuture<'static, Result<Hosted>> {
        let message = format!("failed to load `{}`: this server has one model", source.id);
        Box::pin(async { Err(Error::new(Code::Unsupported, message)) })
    }

    fn unload(&self, _id: &str) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn health(&self) -> Health {
        self.0.rows().health()
    }

    fn memory(&self) -> MemorySnapshot {
        self.0.snapshot().memory
    }

    fn snapshot(&self, _id: &str) -> Option<Arc<Snapshot>> {
        Some(self.0.snapshot())
    }
}

/// Models on an engine thread.
pub(super) struct FleetHost<E: Executor> {
    thread: Arc<FleetThread<E>>,
    commons: Commons,
    /// The model without which the engine is nothing.
    essential: Option<Arc<str>>,
    known: Mutex<HashMap<Arc<str>, Known>>,
}

/// What stays of a model while the process lives: its counters go on when it is loaded again.
#[derive(Clone)]
struct Known {
    number: ModelNumber,
    board: Board,
}

impl<E: Executor + 'static> FleetHost<E> {
    pub(super) fn new(
        thread: Arc<FleetThread<E>>,
        commons: Commons,
        essential: Option<Arc<str>>,
    ) -> Self {
        Self { thread, commons, essential, known: Mutex::default() }
    }

    /// The model of that number.
    pub(super) fn id_of(&self, number: ModelNumber) -> Option<Arc<str>> {
        let known = self.known.lock();
        known.iter().find(|(_, one)| one.number == number).map(|(id, _)| Arc::clone(id))
    }

    fn known(&self, id: &Arc<str>) -> Known {
        let mut known = self.known.lock();
        let number = ModelNumber(u32::try_from(known.len()).unwrap_or(u32::MAX));
        let fresh = || Known { number, board: Board::new() };
        known.entry(Arc::clone(id)).or_insert_with(fresh).clone()
    }
}

impl<E: Executor + 'static> Host for FleetHost<E> {
    fn load(&self, source: Source, meter: Arc<LoadMeter>) -> BoxFuture<'static, Result<Hosted>> {
        let Known { number, board } = self.known(&source.id);
        let essential = self.essential.as_ref() == Some(&source.id);
        let (thread, commons) = (Arc::clone(&self.thread), self.commons.clone());
        Box::pin(async move {
            let directory = source.directory.clone();
            let tokenizer = spawn_blocking(move || Tokenizer::load(&directory));
            let (reply, docked) = oneshot::channel();
            let order =
                LoadOrder { model: number, source, essential, board: board.clone(), meter, reply };
            thread.load(order)?;
            let docked = docked.await.map_err(|_| generation::engine_gone())??;
            let rows = ModelRows::new(Arc::clone(&thread), number, board);
            let tokenizer = tokenizer.await.unwrap_or_else(|panic| Err(failed(&panic)));
            match engine(commons, docked, tokenizer, rows).await {
                Ok(hosted) => Ok(hosted),
                Err(error) => {
                    leave(&thread, number).await;
                    Err(error)
                }
            }
        })
    }

    fn unload(&self, id: &str) -> BoxFuture<'static, ()> {
        let number = self.known.lock().get(id).map(|known| known.number);
        let thread = Arc::clone(&self.thread);
        Box::pin(async move {
            if let Some(number) = number {
                leave(&thread, number).await;
            }
        })
    }

    fn health(&self) -> Health {
        let boards: Vec<Board> =
            self.known.lock().values().map(|known| known.board.clone()).collect();
        self.thread.health(&boards)
    }

    fn memory(&self) -> MemorySnapshot {
        self.thread.roster().memory()
    }

    fn snapshot(&self, id: &str) -> Option<Arc<Snapshot>> {
        self.known.lock().get(id).map(|known| known.board.read())
    }
}

/// The engine of a model that is on its thread; what takes long is done aside.
async fn engine<E: Executor + 'static>(
    commons: Commons,
    docked: Docked,
    tokenizer: Result<Tokenizer>,
    rows: ModelRows<E>,
) -> Result<Hosted> {
    let tokenizer = tokenizer?;
    let made = spawn_blocking(move || {
        let Docked { card, config, weights_bytes } = docked;
        tokenizer.check_fits(card.vocab_size)?;
        let engine = Engine::within(&commons, card, tokenizer, Arc::new(rows), config);
        Ok(Hosted { engine, weights_bytes })
    });
    made.await.unwrap_or_else(|panic| Err(failed(&panic)))
}

/// Has the thread drop a model, and waits for that: a thread that is busy or being rebuilt is asked again. One that
/// is gone holds nothing.
async fn leave<E: Executor + 'static>(thread: &FleetThread<E>, number: ModelNumber) {
    loop {
        match thread.unload(number) {
            Ok(gone) => {
                // The sender is only ever dropped.
                let _ = gone.await;
                return;
            }
            Err(error) if matches!(error.code(), Code::QueueFull | Code::EngineFailed) => {
                let pause = Duration::from_millis(limits::ROOM_LOOK_MS);
                thread.clock().sleep_until(thread.clock().now() + pause).await;
            }
            Err(_) => return,
        }
    }
}

fn failed(panic: &tokio::task::JoinError) -> Error {
    Error::new(Code::Internal, format!("failed to make the engine of a model: {panic}"))
}
