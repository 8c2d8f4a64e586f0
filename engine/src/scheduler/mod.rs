//! Rows, admission, plan, prefill, step and emission: a state machine over an [`Executor`].
//!
//! The [`Scheduler`] owns every live row and decides when each one runs; the executor owns the
//! arrays. It is driven by [`Scheduler::tick`] on the engine thread, knows nothing of HTTP or
//! tokenizers, and reads the time from its [`Clock`] alone, so that a simulation can replay it.
//!
//! One tick:
//! 1. Rows whose client left are evicted, wherever they are.
//! 2. The prompt work of [`plan`](plan::plan) runs: rows start, prefill a slice, sample token 0.
//!    Token 0 goes out at once. A row that goes on joins the batch, for which the step in flight is
//!    read and emitted first.
//! 3. One decode step is dispatched and the one before it is read and emitted. Rows that it ended
//!    leave the batch.
//! 4. A [`Snapshot`](crate::telemetry::Snapshot) goes to the [`Board`] when it is due.
//!
//! Invariants, checked by [`Scheduler::check_integrity`]:
//! - A submitted row is in exactly one place: waiting, prefilling, decoding or ended.
//! - `running` lists the rows of the executor's batch in its order.
//! - A step is in flight only while rows decode, and then for each of them.
//! - A serial row is live alone.

#[cfg(feature = "mlx")]
mod device;
mod emit;
mod executor;
mod plan;
mod prefill;
mod publish;
mod row;
mod rows;
mod step;

use std::collections::VecDeque;

use crate::clock::{Clock, Time};
use crate::config::SchedulerConfig;
use crate::error::{Code, Error};
use crate::mlx::thread::{Activity, Resident};
use crate::telemetry::Totals;

use plan::{Move, Occupancy, RowNumber, View};
use rows::{Row, Stage};

#[cfg(feature = "mlx")]
pub use device::{LogitsObserver, MlxExecutor, SoloRow};
pub use executor::{Executor, Sampled};
pub use publish::Board;
pub use row::{
    EventReceiver, EventSender, FinishReason, Lane, RowEvent, RowSpec, RowUsage, event_channel,
};

/// Runs rows in a shared batch; see the module's words.
#[derive(Debug)]
pub struct Scheduler<E: Executor> {
    config: SchedulerConfig,
    executor: E,
    clock: Clock,
    board: Board,
    /// In the order of arrival.
    waiting: VecDeque<Row<E::Solo>>,
    /// The row whose turn it is first.
    prefilling: VecDeque<Row<E::Solo>>,
    /// In the order of the executor's batch.
    running: Vec<Row<E::Solo>>,
    /// Whether a step was dispatched and not read.
    in_flight: bool,
    totals: Totals,
    submitted: u64,
    progressed_at: Time,
    /// When a snapshot was last posted; `None` when rows came, moved or went since.
    posted_at: Option<Time>,
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
            config,
            executor,
            clock,
            board,
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            running: Vec::new(),
            in_flight: false,
            totals: past.totals,
            submitted: past.batch.submitted_rows,
            progressed_at,
            posted_at: None,
        };
        scheduler.publish();
        scheduler
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
        let refusal = self.refusal(&spec);
        let row = Row::new(RowNumber(self.submitted), spec, events, arrived);
        self.submitted += 1;
        self.posted_at = None;
        match refusal {
            Some(error) => self.fail(row, error),
            None => self.waiting.push_back(row),
        }
    }

    /// Does one round of work; `Idle` means that no row is live, so that only a submission can
    /// change anything.
    pub fn tick(&mut self) -> Activity {
        self.evict_departed();
        for step in plan::plan(&self.view()) {
            match step {
                Move::Start { row } => self.start(row),
                Move::Prefill { row, tokens } => self.prefill(row, tokens),
                Move::FirstToken { row } => self.first_token(row),
            }
        }
        self.decode();
        if cfg!(debug_assertions) {
            self.check_integrity();
        }
        self.publish_when_due();
        if self.live_rows() == 0 { Activity::Idle } else { Activity::Busy }
    }

    /// Rows that have not ended.
    pub fn live_rows(&self) -> usize {
        self.waiting.len() + self.prefilling.len() + self.running.len()
    }

    /// Asserts the module's invariants.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_integrity(&self) {
        let live = self.live_rows() as u64;
        assert_eq!(self.submitted, live + self.totals.finished_rows, "a row was lost or doubled");
        assert!(self.waiting.iter().all(|row| matches!(row.stage, Stage::Waiting)));
        assert!(self.prefilling.iter().all(|row| matches!(row.stage, Stage::Prefilling { .. })));
        assert!(self.running.iter().all(|row| matches!(row.stage, Stage::Decoding { .. })));
        assert!(self.waiting.iter().is_sorted_by(|left, right| left.number < right.number));
        assert!(self.prefilling.iter().all(|row| row.candidate().left_tokens > 0));
        assert!(self.running.iter().all(|row| row.generated() > 0 && row.left_tokens() > 0));
        assert!(!self.in_flight || !self.running.is_empty(), "a step in flight is for nobody");
        let occupancy = self.occupancy();
        let rows = occupancy.decoding + occupancy.prefilling;
        assert!(rows <= occupancy.rows_max, "{rows} rows are live");
        assert!(occupancy.prefilling <= occupancy.prefill_rows_max);
        assert!(!occupancy.serial || rows == 1, "a serial row has company");
    }

    /// Why a row cannot even wait.
    fn refusal(&self, spec: &RowSpec) -> Option<Error> {
        let rows_max = self.config.waiting_rows_max;
        if spec.prompt.is_empty() {
            Some(Error::invalid("prompt", "the prompt has no tokens"))
        } else if spec.max_tokens == 0 {
            Some(Error::invalid("max_tokens", "max_tokens is 0, expected at least 1"))
        } else if self.waiting.len() >= rows_max {
            let message = format!("the queue is full: {rows_max} requests wait");
            Some(Error::new(Code::QueueFull, message).with_hint("try again later"))
        } else {
            None
        }
    }

    fn occupancy(&self) -> Occupancy {
        let mut started = self.prefilling.iter().chain(&self.running);
        Occupancy {
            decoding: self.running.len(),
            prefilling: self.prefilling.len(),
            serial: started.any(|row| row.spec.lane == Lane::Serial),
            ..Occupancy::empty(&self.config)
        }
    }

    fn view(&self) -> View {
        let startable = self.waiting.iter().take(self.config.batch_rows_max);
        View {
            occupancy: self.occupancy(),
            chunk_tokens: self.config.prefill_chunk_tokens,
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

impl<E: Executor + 'static> Resident for Scheduler<E>
where
    E::Solo: 'static,
{
    fn tick(&mut self) -> Activity {
        Scheduler::tick(self)
    }
}
