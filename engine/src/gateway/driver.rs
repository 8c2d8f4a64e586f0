//! The engine thread with a scheduler on it, seen as [`Rows`].
//!
//! Three things must hold for the engine to count as healthy: its thread has a scheduler, the
//! current job or tick has not been running for ever, and live rows move. The last one is measured
//! in chunks, steps and tokens, so a loop that spins without getting anywhere shows too.

use std::sync::Arc;
use std::time::Duration;

use super::rows::{Health, Rows};
use crate::clock::Clock;
use crate::config::SchedulerConfig;
use crate::error::Result;
use crate::limits;
use crate::mlx::thread::{EngineThread, RebuildPause, ThreadState};
use crate::prompt_cache::disk::DiskTier;
use crate::scheduler::{Board, CacheCommand, EventSender, Executor, RowSpec, Scheduler};
use crate::telemetry::Snapshot;

/// A scheduler on its own thread.
///
/// When the engine fails, the scheduler goes with everything that it held, and with it the senders
/// of all live rows: a client whose channel closes without an end must report `EngineFailed`.
#[derive(Debug)]
pub struct RowThread<E: Executor> {
    thread: EngineThread<Scheduler<E>>,
    board: Board,
    clock: Clock,
}

/// What runs on the thread.
#[derive(Debug)]
pub struct Resources<E> {
    /// Runs the rows.
    pub executor: E,
    /// The settings that fit it: a budget depends on what the weights take.
    pub config: SchedulerConfig,
    /// Where prompts are kept that are to outlive the process.
    pub disk: Option<DiskTier>,
}

impl<E: Executor + 'static> RowThread<E>
where
    E::Solo: 'static,
{
    /// Starts the thread and returns once `build` made on it what it runs. `build` runs again after each failure.
    ///
    /// # Errors
    /// As [`EngineThread::start`].
    pub fn start(
        clock: Clock,
        pause: RebuildPause,
        build: impl Fn() -> Result<Resources<E>> + Send + 'static,
    ) -> Result<Self> {
        let board = Board::new();
        let (posts, time) = (board.clone(), clock.clone());
        let build_scheduler = move || {
            // Rows of a scheduler that failed are gone, even if no other follows.
            posts.bury_rows();
            let Resources { executor, config, disk } = build()?;
            let scheduler = Scheduler::new(config, executor, time.clone(), posts.clone());
            Ok(match disk {
                Some(disk) => scheduler.with_disk(disk),
                None => scheduler,
            })
        };
        let thread = EngineThread::start(clock.clone(), pause, build_scheduler)?;
        Ok(Self { thread, board, clock })
    }

    /// The thread, for jobs that are not rows.
    pub fn thread(&self) -> &EngineThread<Scheduler<E>> {
        &self.thread
    }

    /// The board with the snapshots, for whoever wants to be woken by each.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Ends the thread and waits for it. Live rows are dropped with it, so let them end first.
    pub fn shut_down(&self) {
        self.thread.shut_down();
    }
}

impl<E: Executor + 'static> Rows for RowThread<E>
where
    E::Solo: 'static,
    Scheduler<E>: 'static,
{
    fn submit(&self, spec: RowSpec, events: EventSender) -> Result<()> {
        let arrived = self.clock.now();
        self.thread.post(move |scheduler| scheduler.submit_arrived(spec, events, arrived))
    }

    fn command(&self, command: CacheCommand) -> Result<()> {
        self.thread.post(move |scheduler| scheduler.command(command))
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.board.read()
    }

    fn health(&self) -> Health {
        let snapshot = self.board.read();
        let stuck_for = (!snapshot.rows.is_empty())
            .then(|| self.clock.now().saturating_sub(snapshot.progressed_at));
        health(self.thread.state(), self.thread.working_for(), stuck_for)
    }
}

/// Health by the state of the thread, the age of its current job or tick, and the time since live
/// rows, if any, last moved.
pub(super) fn health(
    state: ThreadState,
    working_for: Option<Duration>,
    stuck_for: Option<Duration>,
) -> Health {
    let longest = Duration::from_millis(limits::STALL_MS_MAX);
    let unavailable = |reason| Health::Unavailable { reason };
    match (state, working_for, stuck_for) {
        (ThreadState::Failed { reason }, ..) => {
            unavailable(format!("the engine failed and is being rebuilt: {reason}"))
        }
        (ThreadState::Stopped, ..) => unavailable("the engine has shut down".to_owned()),
        (ThreadState::Serving, Some(age), _) if age > longest => {
            unavailable(format!("the engine has been in one step for {} s", age.as_secs()))
        }
        (ThreadState::Serving, _, Some(age)) if age > longest => {
            unavailable(format!("live rows have not moved for {} s", age.as_secs()))
        }
        (ThreadState::Serving, ..) => Health::Serving,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        state: ThreadState,
        working_s: Option<u64>,
        stuck_s: Option<u64>,
        expected: Option<&str>,
    ) {
        let (working, stuck) =
            (working_s.map(Duration::from_secs), stuck_s.map(Duration::from_secs));
        let expected = expected
            .map_or(Health::Serving, |reason| Health::Unavailable { reason: reason.to_owned() });
        assert_eq!(health(state, working, stuck), expected);
    }

    #[test]
    fn the_engine_serves_while_it_rests_or_moves() {
        check(ThreadState::Serving, None, None, None);
        check(ThreadState::Serving, Some(60), Some(60), None);
    }

    #[test]
    fn an_engine_that_does_not_move_is_unavailable_and_says_why() {
        let in_step = "the engine has been in one step for 61 s";
        check(ThreadState::Serving, Some(61), None, Some(in_step));
        check(ThreadState::Serving, None, Some(75), Some("live rows have not moved for 75 s"));
    }

    #[test]
    fn a_failed_or_stopped_engine_is_unavailable_and_says_why() {
        let failed = ThreadState::Failed { reason: "boom".to_owned() };
        check(failed, None, None, Some("the engine failed and is being rebuilt: boom"));
        check(ThreadState::Stopped, None, None, Some("the engine has shut down"));
    }
}
