//! Rows, admission, plan, prefill, step and emission: a state machine over an [`Executor`].
//!
//! The [`Scheduler`] owns every live row and decides when each one runs; the executor owns the
//! arrays. It is driven by [`Scheduler::tick`] on the engine thread, knows nothing of HTTP or
//! tokenizers, and reads the time from its [`Clock`] alone, so that a simulation can replay it.
//!
//! One tick:
//! 1. Rows whose client left are evicted, wherever they are.
//! 2. The prompt work of a [`Pass`] runs: rows start, prefill a slice, sample token 0 (or end with
//!    the vector of their prompt, if they are for one). Token 0 goes out at once (a row that writes in
//!    blocks has none yet). A row that goes on joins the batch, for which the step in flight is read and
//!    emitted first.
//! 3. One decode step is dispatched and the one before it is read and emitted. Rows that it ended
//!    leave the batch. Where rows write in blocks a step is one pass over the block under construction,
//!    read at once, and brings all tokens of a block when that is finished.
//! 4. Of what was kept in memory a piece goes to the disk, if it is due there ([`archive`]).
//! 5. A [`Snapshot`](crate::telemetry::Snapshot) goes to the [`Board`] when it is due.
//!
//! Invariants, checked by [`Scheduler::check_integrity`]:
//! - A submitted row is in exactly one place: waiting, prefilling, decoding or ended.
//! - `running` lists the rows of the executor's batch in its order.
//! - A step is in flight only while rows decode, and then for each of them.
//! - A serial row is live alone.
//! - What the caches of the live rows may come to fits the KV budget, and what they hold is no more.

mod archive;
#[cfg(feature = "mlx")]
mod blocks;
#[cfg(feature = "mlx")]
mod canvas;
#[cfg(feature = "mlx")]
mod device;
mod emit;
mod executor;
mod kept;
mod pace;
mod plan;
mod prefill;
mod prompts;
mod publish;
mod queue;
mod row;
mod rows;
mod share;
mod step;

use std::collections::VecDeque;

use crate::clock::{Clock, Time};
use crate::config::{ByteCount, SchedulerConfig};
use crate::error::{Code, Error};
use crate::mlx::thread::{Activity, Resident};
use crate::prompt_cache::PromptCache;
use crate::prompt_cache::disk::DiskTier;
use crate::telemetry::{StepWindow, Totals};

use archive::Archive;
use pace::Pacer;
use plan::{Move, Occupancy, Pass, Projection, View};
use queue::{Queue, RowNumber};
use rows::{Row, Stage};

#[cfg(feature = "mlx")]
pub use blocks::{CanvasForward, CanvasObserver};
#[cfg(feature = "mlx")]
pub use device::{LogitsObserver, MlxExecutor, NoiseMaker, SoloRow};
pub use executor::{Answer, Executor, Said, Sampled, Stepped, Yield};
pub(crate) use kept::no_disk;
pub use kept::{CacheCommand, Cleared, Flushed, KeptPrompt, KeptPrompts, Reply};
pub use publish::Board;
pub use row::{
    EventReceiver, EventSender, FinishReason, Lane, Priority, Purpose, RowEvent, RowSpec, RowUsage,
    event_channel,
};
pub use share::{Holdings, Others, Starved};

/// Runs rows in a shared batch; see the module's words.
#[derive(Debug)]
pub struct Scheduler<E: Executor> {
    config: SchedulerConfig,
    executor: E,
    clock: Clock,
    board: Board,
    waiting: Queue<Row<E::Solo>>,
    /// The row whose turn it is first.
    prefilling: VecDeque<Row<E::Solo>>,
    /// In the order of the executor's batch.
    running: Vec<Row<E::Solo>>,
    /// What rows left behind for later ones.
    prompts: PromptCache<E::Snapshot>,
    /// The disk tier of them, if there is one.
    archive: Option<Archive<E::Snapshot>>,
    /// Whether a step was dispatched and not read.
    in_flight: bool,
    pacer: Pacer,
    steps: StepWindow,
    /// When the rows that still run last heard a token; `None` when no row ran since.
    heard_at: Option<Time>,
    totals: Totals,
    submitted: u64,
    progressed_at: Time,
    /// When a snapshot was last posted; `None` when rows came, moved or went since.
    posted_at: Option<Time>,
    /// What others hold of the same budgets.
    others: Others,
}

impl<E: Executor> Scheduler<E> {
    /// An idle scheduler that posts its snapshots to `board`, the first one now. It counts on from the
    /// counters that it finds there.
    ///
    /// # Panics
    /// When a cap of `config` is 0: nothing could ever run.
    pub fn new(config: SchedulerConfig, executor: E, clock: Clock, board: Board) -> Self {
        assert!(config.batch_rows_max > 0, "a batch needs room for a row");
        assert!(config.prefill_rows_max > 0, "a prompt needs room to prefill");
        assert!(config.prefill_chunk_tokens > 0, "a chunk needs room for a token");
        board.bury_rows();
        let past = board.read();
        let progressed_at = clock.now();
        let mut scheduler = Self {
            waiting: Queue::new(config.batch_rows_max == 1),
            pacer: Pacer::new(&config),
            prompts: PromptCache::new(match executor.yields() {
                Yield::TokenPerStep => config.prompt_cache_bytes,
                // Nothing proves yet that a canvas over kept caches is the one over read ones.
                Yield::Blocks => 0,
            }),
            archive: None,
            config,
            executor,
            clock,
            board,
            prefilling: VecDeque::new(),
            running: Vec::new(),
            in_flight: false,
            steps: StepWindow::default(),
            heard_at: None,
            totals: past.totals,
            submitted: past.batch.submitted_rows,
            progressed_at,
            posted_at: None,
            others: Others::default(),
        };
        scheduler.publish();
        scheduler
    }

    /// Keeps prompts on disk too, if they are kept at all.
    #[must_use]
    pub fn with_disk(mut self, disk: DiskTier) -> Self {
        self.archive = self.prompts.is_on().then(|| Archive::new(disk));
        self.publish();
        self
    }

    /// Queues a row that arrives now; see [`Scheduler::submit_arrived`].
    pub fn submit(&mut self, spec: RowSpec, events: EventSender) {
        let arrived = self.clock.now();
        self.submit_arrived(spec, events, arrived);
    }

    /// Queues a row that arrived at `arrived`, which may be a while ago when the engine thread was
    /// busy. A row that cannot be queued hears its [`RowEvent::Failed`] at once.
    pub fn submit_arrived(&mut self, spec: RowSpec, events: EventSender, arrived: Time) {
        if self.live_rows() == 0 {
            self.progressed_at = self.clock.now();
        }
        if self.live_rows() >= self.config.live_rows_max() {
            // Their places may be free already.
            self.evict_departed();
        }
        let refusal = self.refusal(&spec);
        let row = Row::new(RowNumber(self.submitted), spec, events, arrived);
        self.submitted += 1;
        self.posted_at = None;
        match refusal {
            Some(error) => self.fail(row, error),
            None => self.waiting.push(row),
        }
    }

    /// Does one round of work; `Idle` means that no row is live and nothing is to be written down, so that only a
    /// submission can change anything.
    pub fn tick(&mut self) -> Activity {
        self.evict_departed();
        self.run_prompts();
        self.decode();
        self.make_room();
        let archiving = self.write_down();
        if cfg!(debug_assertions) {
            self.check_integrity();
        }
        self.publish_when_due();
        if self.live_rows() == 0 { archiving } else { Activity::Busy }
    }

    /// Runs the prompt work of a tick.
    fn run_prompts(&mut self) {
        let mut view = self.view();
        let mut pass = Pass::new(&view);
        loop {
            let moves = pass.next(&view);
            for step in &moves {
                match *step {
                    Move::Start { row } => self.start(row),
                    Move::Restore { row } => self.restore(row),
                    Move::Prefill { row, tokens } => self.prefill(row, tokens),
                    Move::FirstToken { row, tokens } => self.first_token(row, tokens),
                    Move::Vector { row, tokens } => self.vector(row, tokens),
                }
            }
            if !matches!(moves.last(), Some(Move::Start { .. })) {
                return;
            }
            view = self.view();
        }
    }

    /// Rows that have not ended.
    pub fn live_rows(&self) -> usize {
        self.waiting.len() + self.prefilling.len() + self.running.len()
    }

    /// Forgets the times of past steps, so that the next ones are measured alone.
    pub fn forget_step_times(&mut self) {
        self.steps = StepWindow::default();
    }

    /// Asserts the module's invariants.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_integrity(&self) {
        let live = self.live_rows() as u64;
        assert_eq!(self.submitted, live + self.totals.finished_rows, "a row was lost or doubled");
        assert!(self.waiting.in_turn().all(|row| matches!(row.stage, Stage::Waiting)));
        let prefills =
            |row: &Row<_>| matches!(row.stage, Stage::Restoring { .. } | Stage::Prefilling { .. });
        assert!(self.prefilling.iter().all(prefills));
        assert!(self.running.iter().all(|row| matches!(row.stage, Stage::Decoding { .. })));
        assert!(self.waiting.is_in_order(), "a row was overtaken by one of its own priority");
        assert!(self.prefilling.iter().all(|row| row.candidate().left_tokens > 0));
        let says_token_0 = self.executor.yields() == Yield::TokenPerStep;
        assert!(self.running.iter().all(|row| row.generated() > 0 || !says_token_0));
        assert!(self.running.iter().all(|row| row.left_tokens() > 0));
        assert!(!self.in_flight || !self.running.is_empty(), "a step in flight is for nobody");
        let occupancy = self.occupancy();
        let rows = occupancy.decoding + occupancy.prefilling;
        assert!(rows <= occupancy.rows_max, "{rows} rows are live");
        assert!(occupancy.prefilling <= occupancy.prefill_rows_max);
        assert!(!occupancy.serial || rows == 1, "a serial row has company");
        let projected_bytes = occupancy.projection.bytes();
        let budget_bytes = occupancy.kv_budget_bytes.unwrap_or(u64::MAX);
        assert!(projected_bytes <= budget_bytes, "{projected_bytes} of {budget_bytes} bytes");
    }

    /// Why a row cannot even wait.
    fn refusal(&self, spec: &RowSpec) -> Option<Error> {
        let rows_max = self.config.live_rows_max();
        if spec.prompt.is_empty() {
            Some(Error::invalid("prompt", "the prompt has no tokens"))
        } else if spec.max_tokens == 0 && spec.purpose == Purpose::Answer {
            Some(Error::invalid("max_tokens", "max_tokens is 0, expected at least 1"))
        } else if self.live_rows() >= rows_max {
            let message = format!("the queue is full: {rows_max} requests run or wait");
            Some(Error::new(Code::QueueFull, message).with_hint("try again later"))
        } else {
            let budget_bytes = self.config.kv_budget_bytes;
            budget_bytes.and_then(|budget_bytes| over_budget(spec, budget_bytes))
        }
    }

    fn occupancy(&self) -> Occupancy {
        let started = || self.prefilling.iter().chain(&self.running);
        let projection = Projection::default();
        Occupancy {
            decoding: self.running.len(),
            prefilling: self.prefilling.len(),
            serial: started().any(|row| row.spec.lane == Lane::Serial),
            projection: started().fold(projection, |rows, row| rows.with(row.kv_bytes_max())),
            kv_budget_bytes: self.own_budget_bytes(),
            reserved_bytes: self.others.reserved_bytes,
            ..Occupancy::empty(&self.config)
        }
    }

    fn view(&self) -> View {
        let startable = self.waiting.in_turn().take(self.config.batch_rows_max);
        View {
            occupancy: self.occupancy(),
            chunks: self.pacer.chunks(),
            tail_split: !self.config.levers.no_tail_split,
            prefilling: self.prefilling.iter().map(Row::candidate).collect(),
            waiting: startable.map(Row::candidate).collect(),
        }
    }

    /// Notes that a row moved, for whoever watches the engine's pulse.
    fn note_progress(&mut self) -> Time {
        self.progressed_at = self.clock.now();
        self.progressed_at
    }
}

/// Why a row can never run under a budget of `budget_bytes`, if it cannot.
pub fn over_budget(spec: &RowSpec, budget_bytes: u64) -> Option<Error> {
    let needs_bytes = spec.kv_bytes;
    if needs_bytes <= budget_bytes {
        return None;
    }
    let (needs, budget) = (ByteCount(needs_bytes), ByteCount(budget_bytes));
    let (prompt_tokens, max_tokens) = (spec.prompt.len(), spec.max_tokens);
    let (what, param, shorter) = match spec.purpose {
        Purpose::Answer => (
            format!("{prompt_tokens} prompt tokens and {max_tokens} of answer"),
            "max_tokens",
            "a shorter prompt, a smaller `max_tokens`",
        ),
        Purpose::Vector { .. } => {
            (format!("a text of {prompt_tokens} tokens"), "input", "a shorter text")
        }
    };
    let message = format!(
        "the request needs {needs} of KV cache ({needs_bytes} bytes) for {what}, and the KV budget is \
         {budget} ({budget_bytes} bytes)"
    );
    let hint = format!("{shorter}, or a larger `--kv-budget`");
    Some(Error::new(Code::OverBudget, message).with_param(param).with_hint(hint))
}

impl<E: Executor + 'static> Resident for Scheduler<E>
where
    E::Solo: 'static,
    E::Snapshot: 'static,
{
    fn tick(&mut self) -> Activity {
        Scheduler::tick(self)
    }

    fn retire(&mut self) {
        Scheduler::retire(self);
    }
}
