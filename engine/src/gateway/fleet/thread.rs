//! The engine thread with a fleet on it, and each of its models as [`Rows`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use super::{Fleet, LoadOrder, ModelLoader, ModelNumber, Roster};
use crate::clock::Clock;
use crate::config::MemoryPlan;
use crate::error::Result;
use crate::gateway::driver;
use crate::gateway::rows::{Health, Rows};
use crate::mlx::thread::{EngineThread, RebuildPause};
use crate::scheduler::{Board, CacheCommand, EventSender, Executor, RowSpec};
use crate::telemetry::Snapshot;

/// A fleet on its own thread. When the engine fails, the models that were ready are loaded again, and live rows
/// lose their senders.
pub struct FleetThread<E: Executor> {
    thread: EngineThread<Fleet<E>>,
    roster: Arc<Roster>,
    clock: Clock,
}

impl<E: Executor + 'static> FleetThread<E> {
    /// Starts the thread, without models. What is loaded shares the memory as `plan` says.
    ///
    /// # Errors
    /// As [`EngineThread::start`].
    pub fn start(
        clock: Clock,
        pause: RebuildPause,
        plan: MemoryPlan,
        loader: Arc<dyn ModelLoader<E>>,
    ) -> Result<Self> {
        let roster = Arc::<Roster>::default();
        let (time, shared) = (clock.clone(), Arc::clone(&roster));
        let failed = AtomicBool::new(false);
        let build = move || {
            let mut fleet =
                Fleet::new(time.clone(), plan, Arc::clone(&loader), Arc::clone(&shared));
            if failed.swap(true, Ordering::Relaxed) {
                fleet.restore()?;
            }
            Ok(fleet)
        };
        let thread = EngineThread::start(clock.clone(), pause, build)?;
        Ok(Self { thread, roster, clock })
    }

    /// What the thread shows of itself.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// The clock that everything on it goes by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The thread, for jobs of other kinds.
    pub fn thread(&self) -> &EngineThread<Fleet<E>> {
        &self.thread
    }

    /// Begins to load a model.
    ///
    /// # Errors
    /// As [`EngineThread::post`].
    pub fn load(&self, order: LoadOrder) -> Result<()> {
        self.thread.post(move |fleet| fleet.load(order))
    }

    /// Begins to unload a model; the receiver ends when it is gone.
    ///
    /// # Errors
    /// As [`EngineThread::post`].
    pub fn unload(&self, model: ModelNumber) -> Result<oneshot::Receiver<()>> {
        let (gone, when_gone) = oneshot::channel();
        // The engine may fail before the job runs, and must not load it again then.
        self.roster.remove(model);
        self.thread.post(move |fleet| fleet.unload(model, gone))?;
        Ok(when_gone)
    }

    /// The health of the thread whose models hang their snapshots on `boards`.
    pub fn health(&self, boards: &[Board]) -> Health {
        let snapshots: Vec<Arc<Snapshot>> = boards.iter().map(Board::read).collect();
        // Rows of one model may wait for the bytes of another's, so the last move of any of them counts.
        let moved = snapshots.iter().filter(|shown| !shown.rows.is_empty());
        let moved = moved.map(|shown| shown.progressed_at).max();
        let stuck_for = moved.map(|at| self.clock.now().saturating_sub(at));
        driver::health(self.thread.state(), self.thread.working_for(), stuck_for)
    }

    /// Ends the thread and waits for it.
    pub fn shut_down(&self) {
        self.thread.shut_down();
    }
}

impl<E: Executor> fmt::Debug for FleetThread<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FleetThread").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// One model of a fleet.
pub struct ModelRows<E: Executor> {
    thread: Arc<FleetThread<E>>,
    model: ModelNumber,
    board: Board,
}

impl<E: Executor + 'static> ModelRows<E> {
    /// The rows of `model`, whose snapshots hang on `board`.
    pub fn new(thread: Arc<FleetThread<E>>, model: ModelNumber, board: Board) -> Self {
        Self { thread, model, board }
    }
}

impl<E: Executor + 'static> Rows for ModelRows<E> {
    fn submit(&self, spec: RowSpec, events: EventSender) -> Result<()> {
        let (model, arrived) = (self.model, self.thread.clock.now());
        self.thread.thread.post(move |fleet| fleet.submit(model, spec, events, arrived))
    }

    fn command(&self, command: CacheCommand) -> Result<()> {
        let model = self.model;
        self.thread.thread.post(move |fleet| fleet.command(model, command))
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.board.read()
    }

    fn health(&self) -> Health {
        self.thread.health(std::slice::from_ref(&self.board))
    }

    fn kv_budget_bytes(&self, _at_load: Option<u64>) -> Option<u64> {
        self.thread.roster.kv_budget_bytes()
    }
}

impl<E: Executor> fmt::Debug for ModelRows<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ModelRows").field("model", &self.model).finish_non_exhaustive()
    }
}
