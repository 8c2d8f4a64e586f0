//! All models of a server on the one engine thread: a scheduler for each, and one account of memory.
//!
//! A **berth** is a loaded model with its scheduler. A tick of the fleet gives each berth that has work one tick,
//! in turn, and then an **arrival**, a model on its way into memory, the time of a slice. So rows of other models
//! take a step between any two parts of a checkpoint, and a model without work costs nothing.
//!
//! Budgets are the server's ([`MemoryPlan`]). Before a berth's tick its scheduler is told what the others hold, so
//! what the live rows of all may come to never exceeds the budget. A first row that waits for bytes keeps those of
//! other models from starting that came later. Kept prompts give way to rows, those of the model that ran least
//! recently first.
//!
//! A model arrives when what rows that are live may come to fits beside its weights: from then on the budget is
//! smaller by them. What rows hold that wait counts too, because they were promised to run.
//!
//! A panic on the thread drops the fleet. The [`Roster`] outlives it, and from that the berths are made again.

mod arrivals;
mod roster;
mod thread;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::card::ModelCard;
use super::catalogue::Source;
use crate::clock::{Clock, Time};
use crate::config::{MemoryPlan, SchedulerConfig};
use crate::error::{Code, Error, Result};
use crate::limits;
use crate::mlx::thread::{Activity, Resident};
use crate::prompt_cache::disk::DiskTier;
use crate::scheduler::{
    Board, CacheCommand, EventSender, Executor, Flushed, Others, RowEvent, RowSpec, Scheduler,
};
use crate::telemetry::MemorySnapshot;

use arrivals::Arrival;
use roster::Ready;

pub use arrivals::{LoadMeter, LoadOrder};
pub use roster::Roster;
pub use thread::{FleetThread, ModelRows};

/// Names a model on the engine thread. No two models of a process have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelNumber(pub u32);

/// Makes models of directories, on the engine thread.
pub trait ModelLoader<E>: Send + Sync {
    /// Begins with the model of `source`. What takes long is left to [`Loading::advance`].
    ///
    /// # Errors
    /// `BadModel` and the like when it cannot be loaded.
    fn begin(&self, source: &Source) -> Result<Box<dyn Loading<E>>>;

    /// Gives back what the allocator still has of a model that was dropped just now.
    fn dropped(&self) {}

    /// The allocator's figures.
    fn memory(&self) -> MemorySnapshot {
        MemorySnapshot::default()
    }
}

/// A model on its way into memory. Dropping it gives up.
pub trait Loading<E> {
    /// Bytes of all its weights.
    fn weights_bytes(&self) -> u64;

    /// Reads on for some milliseconds.
    ///
    /// # Errors
    /// `BadModel` and the like. It is then of no use.
    fn advance(&mut self) -> Result<LoadStep<E>>;
}

/// What a slice of a load came to.
#[derive(Debug)]
pub enum LoadStep<E> {
    /// There is more to read.
    More {
        /// Bytes of weights in memory.
        done_bytes: u64,
    },
    /// The model is there.
    Done(Box<Landed<E>>),
}

/// A model in memory.
#[derive(Debug)]
pub struct Landed<E> {
    /// Runs its rows.
    pub executor: E,
    /// What it is.
    pub card: ModelCard,
    /// The settings, but for the budgets.
    pub config: SchedulerConfig,
    /// Where its prompts are kept on disk, if they are.
    pub disk: Option<DiskTier>,
}

/// A model that is ready, as those know it who are not on the engine thread.
#[derive(Debug, Clone)]
pub struct Docked {
    /// What it is.
    pub card: ModelCard,
    /// The settings, with the budgets as they are now.
    pub config: SchedulerConfig,
    /// Bytes of its weights.
    pub weights_bytes: u64,
}

/// See the module's words.
pub struct Fleet<E: Executor> {
    clock: Clock,
    plan: MemoryPlan,
    loader: Arc<dyn ModelLoader<E>>,
    roster: Arc<Roster>,
    berths: Vec<Berth<E>>,
    /// In the order in which they were asked for; the first one is being read.
    arrivals: VecDeque<Arrival<E>>,
    shown_at: Option<Time>,
}

struct Berth<E: Executor> {
    model: ModelNumber,
    scheduler: Scheduler<E>,
    board: Board,
    weights_bytes: u64,
    keeps_prompts: bool,
    due: Due,
    /// When it last had live rows.
    ran_at: Time,
    /// Who waits for its end.
    leaving: Option<Leaving>,
}

/// A model that is to go, once its prompts are written down.
struct Leaving {
    flush: Option<oneshot::Receiver<Result<Flushed>>>,
    _gone: oneshot::Sender<()>,
}

/// When a berth wants its next tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    At(Time),
    /// Only a job can give it something to do.
    Never,
}

impl<E: Executor> Fleet<E> {
    /// A fleet without models.
    pub fn new(
        clock: Clock,
        plan: MemoryPlan,
        loader: Arc<dyn ModelLoader<E>>,
        roster: Arc<Roster>,
    ) -> Self {
        let (berths, arrivals) = (Vec::new(), VecDeque::new());
        Self { clock, plan, loader, roster, berths, arrivals, shown_at: None }
    }

    /// Queues a row of `model` that arrived at `arrived`. A model that is not here fails it.
    pub fn submit(
        &mut self,
        model: ModelNumber,
        spec: RowSpec,
        events: EventSender,
        arrived: Time,
    ) {
        // The refusal of a row that can never run looks at the budget as it is now.
        match self.berths.iter().position(|berth| berth.model == model) {
            Some(index) => {
                self.share_memory_with(index);
                let berth = &mut self.berths[index];
                berth.scheduler.submit_arrived(spec, events, arrived);
                berth.due = Due::At(Time::ZERO);
            }
            None => drop(events.send(RowEvent::Failed(gone()))),
        }
    }

    /// Does what is asked about the kept prompts of `model`; without it, the reply is dropped.
    pub fn command(&mut self, model: ModelNumber, command: CacheCommand) {
        if let Some(berth) = self.berths.iter_mut().find(|berth| berth.model == model) {
            berth.scheduler.command(command);
            berth.due = Due::At(Time::ZERO);
        }
    }

    /// Begins to load a model, after those that were asked for before.
    pub fn load(&mut self, order: LoadOrder) {
        self.arrivals.push_back(Arrival::new(order, self.clock.now()));
    }

    /// Lets `model` go: its prompts are written down, then it is dropped and `gone` with it. Rows that are still
    /// live are dropped too. Without such a model, `gone` is dropped at once.
    pub fn unload(&mut self, model: ModelNumber, gone: oneshot::Sender<()>) {
        let arriving = self.arrivals.len();
        self.arrivals.retain(|arrival| arrival.model() != model);
        if self.arrivals.len() < arriving {
            self.loader.dropped();
            self.shown_at = None;
        }
        self.roster.remove(model);
        let Some(berth) = self.berths.iter_mut().find(|berth| berth.model == model) else {
            return;
        };
        let (reply, flush) = oneshot::channel();
        berth.scheduler.command(CacheCommand::Flush { reply });
        berth.leaving = Some(Leaving { flush: Some(flush), _gone: gone });
        berth.due = Due::At(Time::ZERO);
    }

    /// Gives each model that has work a tick, and the next arrival a slice of time.
    pub fn tick(&mut self) -> Activity {
        for index in 0..self.berths.len() {
            if self.berths[index].due.is_due(self.clock.now()) {
                self.tick_berth(index);
            }
        }
        self.dismiss();
        self.advance_arrivals();
        self.show_memory();
        self.activity()
    }

    /// The models that are here, in the order in which they came.
    pub fn models(&self) -> Vec<ModelNumber> {
        self.berths.iter().map(|berth| berth.model).collect()
    }

    /// Bytes of the weights that are here or being read.
    pub fn weights_bytes(&self) -> u64 {
        let berths = self.berths.iter().map(|berth| berth.weights_bytes);
        let arriving = self.arrivals.front().map_or(0, Arrival::weights_bytes);
        berths.sum::<u64>() + arriving
    }

    /// Asserts the module's invariants.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_integrity(&self) {
        let Some(budget_bytes) = self.plan.kv_bytes(self.weights_bytes()) else { return };
        let holdings = || self.berths.iter().map(|berth| berth.scheduler.holdings());
        let projected_bytes: u64 = holdings().map(|held| held.projected_bytes).sum();
        assert!(projected_bytes <= budget_bytes, "{projected_bytes} of {budget_bytes} promised");
        let held_bytes: u64 = holdings().map(|held| held.held_bytes + held.kept_bytes).sum();
        assert!(held_bytes <= budget_bytes, "{held_bytes} of {budget_bytes} bytes held");
    }

    fn tick_berth(&mut self, index: usize) {
        self.share_memory_with(index);
        let berth = &mut self.berths[index];
        let activity = berth.scheduler.tick();
        let now = self.clock.now();
        if activity == Activity::Busy {
            berth.ran_at = now;
        }
        berth.due = Due::of(activity, now);
        // One alone has made room for itself.
        if self.berths.len() > 1 {
            self.take_back_prompts(index);
        }
    }

    /// Tells the scheduler of berth `index` what there is for it now.
    fn share_memory_with(&mut self, index: usize) {
        let weights_bytes = self.weights_bytes();
        let kv_budget_bytes = self.plan.kv_bytes(weights_bytes);
        let others = self.others(index);
        let berth = &mut self.berths[index];
        let cap_bytes = match berth.keeps_prompts {
            true => self.plan.prompt_cache_bytes(weights_bytes),
            false => 0,
        };
        berth.scheduler.share_memory(kv_budget_bytes, cap_bytes, others);
    }

    fn others(&self, index: usize) -> Others {
        let mut others = Others::default();
        if self.berths.len() == 1 {
            return others;
        }
        let own = self.berths[index].scheduler.starved();
        for (_, berth) in self.berths.iter().enumerate().filter(|(other, _)| *other != index) {
            let held = berth.scheduler.holdings();
            others.projected_bytes += held.projected_bytes;
            others.held_bytes += held.held_bytes;
            let starved = berth.scheduler.starved();
            let first = starved.filter(|row| own.is_none_or(|own| row.arrived < own.arrived));
            others.reserved_bytes += first.map_or(0, |row| row.needs_bytes);
        }
        others
    }

    /// Has models give up kept prompts that no longer fit beside the live rows, those that ran least recently
    /// first. Berth `ticked` ran just now and made room in itself already.
    fn take_back_prompts(&mut self, ticked: usize) {
        let weights_bytes = self.weights_bytes();
        let (mut held_bytes, mut kept_bytes) = (0, 0);
        for berth in &self.berths {
            let held = berth.scheduler.holdings();
            held_bytes += held.held_bytes;
            kept_bytes += held.kept_bytes;
        }
        let budget_bytes = self.plan.kv_bytes(weights_bytes).unwrap_or(u64::MAX);
        let most = self.plan.prompt_cache_bytes(weights_bytes);
        let most = most.min(budget_bytes.saturating_sub(held_bytes));
        let mut surplus_bytes = kept_bytes.saturating_sub(most);
        if surplus_bytes == 0 {
            return;
        }
        let mut order: Vec<usize> = (0..self.berths.len()).collect();
        order.sort_by_key(|index| (*index == ticked, self.berths[*index].ran_at, *index));
        for index in order {
            let scheduler = &mut self.berths[index].scheduler;
            let before = scheduler.holdings().kept_bytes;
            scheduler.trim_prompts(before.saturating_sub(surplus_bytes));
            let freed_bytes = before - scheduler.holdings().kept_bytes;
            surplus_bytes = surplus_bytes.saturating_sub(freed_bytes);
        }
    }

    /// Drops the models that may go now.
    fn dismiss(&mut self) {
        for index in (0..self.berths.len()).rev() {
            if self.berths[index].may_go() {
                let Berth { board, scheduler, leaving, .. } = self.berths.remove(index);
                drop(scheduler);
                board.bury_rows();
                self.loader.dropped();
                self.shown_at = None;
                self.show_memory();
                // Whoever waits for this finds the memory free.
                drop(leaving);
                self.wake_all();
            }
        }
    }

    /// What one model held, rows of another may wait for.
    fn wake_all(&mut self) {
        for berth in &mut self.berths {
            berth.due = Due::At(Time::ZERO);
        }
    }

    fn moor(&mut self, ready: &Ready, landed: Landed<E>) -> Result<Docked> {
        let Landed { executor, card, config, disk } = landed;
        let weights_bytes = ready.weights_bytes;
        let others_bytes: u64 = self.berths.iter().map(|berth| berth.weights_bytes).sum();
        let room = self.plan.room(others_bytes + weights_bytes);
        let kv_budget_bytes = self.plan.kv_budget.kv_bytes(&room, card.smallest_row_bytes())?;
        // What is read for a vector, or written in blocks, is always read anew.
        let keeps_prompts = card.text_vectors().is_err() && !card.capabilities.writes_blocks;
        let prompt_cache_bytes = match keeps_prompts {
            true => self.plan.prompt_cache_bytes(others_bytes + weights_bytes),
            false => 0,
        };
        let config = SchedulerConfig { kv_budget_bytes, prompt_cache_bytes, ..config };
        let board = ready.board.clone();
        let (clock, posts) = (self.clock.clone(), board.clone());
        let scheduler = Scheduler::new(config.clone(), executor, clock, posts);
        let scheduler = match disk {
            Some(disk) => scheduler.with_disk(disk),
            None => scheduler,
        };
        self.berths.push(Berth {
            model: ready.model,
            scheduler,
            board,
            weights_bytes,
            keeps_prompts,
            due: Due::At(Time::ZERO),
            ran_at: self.clock.now(),
            leaving: None,
        });
        self.shown_at = None;
        Ok(Docked { card, config, weights_bytes })
    }

    fn show_memory(&mut self) {
        let now = self.clock.now();
        let period = Duration::from_millis(limits::SNAPSHOT_PERIOD_MS);
        if self.shown_at.is_none_or(|shown| now.saturating_sub(shown) >= period) {
            let weights_bytes = self.weights_bytes();
            let memory = MemorySnapshot { weights_bytes, ..self.loader.memory() };
            self.roster.show(memory, self.plan.kv_bytes(weights_bytes));
            self.shown_at = Some(now);
        }
    }

    fn activity(&self) -> Activity {
        let now = self.clock.now();
        if self.arrivals.iter().any(Arrival::is_begun) {
            return Activity::Busy;
        }
        let waits = (!self.arrivals.is_empty())
            .then_some(now + Duration::from_millis(limits::ROOM_LOOK_MS));
        let due = self.berths.iter().filter_map(|berth| berth.due.at()).chain(waits).min();
        match due {
            None => Activity::Idle,
            Some(at) if at <= now => Activity::Busy,
            Some(at) => Activity::Resting(at - now),
        }
    }
}

impl<E: Executor> Berth<E> {
    /// Whether it is to go and nothing of it is on its way to the disk.
    fn may_go(&mut self) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        match leaving.flush.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Err(oneshot::error::TryRecvError::Empty)) => false,
            Some(Ok(_) | Err(oneshot::error::TryRecvError::Closed)) | None => true,
        }
    }
}

impl Due {
    fn of(activity: Activity, now: Time) -> Self {
        match activity {
            Activity::Busy => Self::At(now),
            Activity::Resting(pause) => Self::At(now + pause),
            Activity::Idle => Self::Never,
        }
    }

    fn at(self) -> Option<Time> {
        match self {
            Self::At(time) => Some(time),
            Self::Never => None,
        }
    }

    fn is_due(self, now: Time) -> bool {
        self.at().is_some_and(|at| at <= now)
    }
}

/// What a row hears that comes for a model which has just gone.
fn gone() -> Error {
    Error::new(Code::ModelUnavailable, "the model was unloaded before the request ran")
        .with_hint("try again")
}

impl<E: Executor + 'static> Resident for Fleet<E> {
    fn tick(&mut self) -> Activity {
        let activity = Fleet::tick(self);
        if cfg!(debug_assertions) {
            self.check_integrity();
        }
        activity
    }

    fn retire(&mut self) {
        // However many models there are, a shutdown takes no longer.
        let deadline = self.clock.now() + Duration::from_millis(limits::DISK_FLUSH_MS);
        for berth in &mut self.berths {
            berth.scheduler.retire_within(deadline.saturating_sub(self.clock.now()));
        }
    }
}

impl<E: Executor> fmt::Debug for Fleet<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (models, arrivals) = (self.models(), self.arrivals.len());
        formatter
            .debug_struct("Fleet")
            .field("models", &models)
            .field("arrivals", &arrivals)
            .finish_non_exhaustive()
    }
}
