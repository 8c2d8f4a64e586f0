//! The engine thread: one OS thread that owns everything which may live on one thread only.
//!
//! Arrays, models and caches never leave it. Closures go in as *jobs* over a bounded channel, and
//! plain data comes out of them. What the thread owns is its *resident*: it is built on the thread,
//! told to [`tick`](Resident::tick) between jobs for as long as it is busy, and dropped there. An
//! idle thread blocks on the channel and costs nothing, a resting one until it is time for the next tick.
//!
//! Life of the thread:
//! 1. [`EngineThread::start`] builds the resident and waits for that; an error ends it here.
//! 2. *Serving*: jobs in the order in which they were posted, ticks in between.
//! 3. A job or a tick panics: the thread is *failed*, the resident is dropped with everything that
//!    it held (so that whoever waits for it finds its channel closed) and built again, with longer
//!    and longer pauses in between while that does not succeed. Then 2 again; jobs that were still
//!    queued run then.
//! 4. [`EngineThread::shut_down`]: queued jobs run, ticks stop, the resident [retires](Resident::retire), is
//!    dropped, and the thread joined.
//!
//! Nothing here knows MLX, so the thread is tested without it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::clock::{Clock, Time};
use crate::error::{Code, Error, Result};
use crate::limits;

/// What the engine thread owns.
pub trait Resident: 'static {
    /// Does one round of work.
    fn tick(&mut self) -> Activity;

    /// Puts away what is to outlive it; it is dropped next. Not called after a panic.
    fn retire(&mut self) {}
}

/// Whether a resident wants another tick without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It has more to do.
    Busy,
    /// It has more to do after this long, unless a job comes first.
    Resting(Duration),
    /// Only a job can give it something to do.
    Idle,
}

/// What the thread is up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadState {
    /// The resident lives.
    Serving,
    /// The resident is gone and is being rebuilt.
    Failed {
        /// What the panic or the builder said.
        reason: String,
    },
    /// The thread was shut down.
    Stopped,
}

/// How long a failed thread pauses between two attempts to rebuild.
#[derive(Debug, Clone, Copy)]
pub struct RebuildPause {
    /// Before the second attempt; the first one is made at once.
    pub first: Duration,
    /// At most; each pause is twice the one before.
    pub longest: Duration,
}

impl Default for RebuildPause {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(limits::REBUILD_PAUSE_MS),
            longest: Duration::from_millis(limits::REBUILD_PAUSE_MS_MAX),
        }
    }
}

/// A handle to the thread; dropping it shuts the thread down.
pub struct EngineThread<S> {
    jobs: Mutex<Option<SyncSender<Job<S>>>>,
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

impl<S: Resident> EngineThread<S> {
    /// Starts the thread and returns once `build` made the resident on it.
    ///
    /// # Errors
    /// What `build` said, or `EngineFailed` when it panicked; `Io` when there is no thread to have.
    pub fn start(
        clock: Clock,
        pause: RebuildPause,
        build: impl Fn() -> Result<S> + Send + 'static,
    ) -> Result<Self> {
        let (jobs, queue) = mpsc::sync_channel(limits::COMMAND_QUEUE);
        let (built, first_build) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::new(clock));
        let worker = Worker { queue, build, pause, shared: Arc::clone(&shared) };
        let handle = std::thread::Builder::new()
            .name("slipstream-engine".to_owned())
            .spawn(move || worker.run(&built))
            .map_err(|error| Error::from(error).while_doing("failed to start the engine thread"))?;
        let outcome = first_build.recv();
        outcome.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the engine thread is gone")))?;
        Ok(Self { jobs: Mutex::new(Some(jobs)), shared, handle: Mutex::new(Some(handle)) })
    }

    /// Queues `job`, to run between two ticks. Never blocks. A job that is dropped unrun drops what
    /// it captured.
    ///
    /// # Errors
    /// `QueueFull`, `EngineFailed` while the resident is being rebuilt, or `ShuttingDown`.
    pub fn post(&self, job: impl FnOnce(&mut S) + Send + 'static) -> Result<()> {
        let jobs = self.jobs.lock();
        let jobs = match (&*jobs, self.state()) {
            (Some(jobs), ThreadState::Serving) => jobs,
            (Some(_), ThreadState::Failed { reason }) => return Err(engine_failed(&reason)),
            (None, _) | (_, ThreadState::Stopped) => return Err(shutting_down()),
        };
        jobs.try_send(Box::new(job)).map_err(|error| match error {
            TrySendError::Full(_) => {
                let message = format!("the engine's queue is full: {} jobs", limits::COMMAND_QUEUE);
                Error::new(Code::QueueFull, message).with_hint("try again later")
            }
            TrySendError::Disconnected(_) => shutting_down(),
        })
    }

    /// Runs `job` on the thread and waits for what it returns.
    ///
    /// # Errors
    /// As [`EngineThread::post`], and `EngineFailed` when the thread failed before or in the job.
    pub async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.post(move |resident| {
            // A caller who left does not want the answer.
            let _ = reply.send(job(resident));
        })?;
        answer.await.map_err(|_| match self.state() {
            ThreadState::Failed { reason } => engine_failed(&reason),
            ThreadState::Serving => engine_failed("it was rebuilt before it answered"),
            ThreadState::Stopped => shutting_down(),
        })
    }
}

impl<S> EngineThread<S> {
    /// What the thread is up to.
    pub fn state(&self) -> ThreadState {
        self.shared.state.lock().clone()
    }

    /// How long the current job or tick has been running; `None` while the thread rests.
    pub fn working_for(&self) -> Option<Duration> {
        self.shared.working_for()
    }

    /// Ends the thread after the jobs already queued and waits for it; again is harmless.
    pub fn shut_down(&self) {
        drop(self.jobs.lock().take());
        if let Some(handle) = self.handle.lock().take()
            && handle.join().is_err()
        {
            tracing::error!("the engine thread ended in a panic");
        }
    }
}

impl<S> Drop for EngineThread<S> {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl<S> fmt::Debug for EngineThread<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EngineThread").field("state", &self.state()).finish_non_exhaustive()
    }
}

fn engine_failed(reason: &str) -> Error {
    Error::new(Code::EngineFailed, format!("the engine failed: {reason}"))
        .with_hint("it is being rebuilt; try again")
}

fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "the engine is shutting down")
}

/// What the thread lets others see.
struct Shared {
    clock: Clock,
    state: Mutex<ThreadState>,
    /// When the current job or tick began, in microseconds of the clock; [`RESTING`] while the thread
    /// waits for one.
    began_us: AtomicU64,
}

const RESTING: u64 = u64::MAX;

impl Shared {
    fn new(clock: Clock) -> Self {
        let state = Mutex::new(ThreadState::Serving);
        Self { clock, state, began_us: AtomicU64::new(RESTING) }
    }

    fn set(&self, state: ThreadState) {
        *self.state.lock() = state;
    }

    /// Runs `work`, visibly, and turns a panic into its message.
    fn attempt<T>(&self, work: impl FnOnce() -> T) -> std::result::Result<T, String> {
        self.began_us.store(micros(self.clock.now()), Ordering::Release);
        // Whatever a panic leaves half done is part of the resident, which is then dropped.
        catch_unwind(AssertUnwindSafe(work)).map_err(|payload| panic_text(payload.as_ref()))
    }

    /// Notes that nothing runs until the next attempt.
    fn rest(&self) {
        self.began_us.store(RESTING, Ordering::Release);
    }

    fn working_for(&self) -> Option<Duration> {
        match self.began_us.load(Ordering::Acquire) {
            RESTING => None,
            began_us => Some(self.clock.now().saturating_sub(Duration::from_micros(began_us))),
        }
    }
}

fn micros(time: Time) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(RESTING - 1)
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// The thread's own side.
struct Worker<S, B> {
    queue: Receiver<Job<S>>,
    build: B,
    pause: RebuildPause,
    shared: Arc<Shared>,
}

/// Why the resident stopped being served.
enum Departure {
    /// Nobody can post jobs any more.
    ShutDown,
    /// A job or a tick panicked, saying this.
    Panic(String),
}

impl<S: Resident, B: Fn() -> Result<S>> Worker<S, B> {
    fn run(self, built: &SyncSender<Result<()>>) {
        let mut resident = match self.build() {
            Ok(resident) => resident,
            Err(error) => {
                let _ = built.send(Err(error));
                return;
            }
        };
        // Whoever hears that it is ready may look at once: the build is no step that goes on.
        self.shared.rest();
        let _ = built.send(Ok(()));
        while let Departure::Panic(reason) = self.serve(&mut resident) {
            tracing::error!(reason, "the engine failed and is rebuilt");
            self.shared.set(ThreadState::Failed { reason });
            self.discard(resident);
            let Some(rebuilt) = self.rebuild() else {
                self.shared.set(ThreadState::Stopped);
                return;
            };
            resident = rebuilt;
            self.shared.set(ThreadState::Serving);
        }
        if let Err(reason) = self.shared.attempt(|| resident.retire()) {
            tracing::error!(reason, "the engine failed at its end");
        }
        self.discard(resident);
        self.shared.set(ThreadState::Stopped);
    }

    /// Runs jobs and ticks until there is a reason not to.
    fn serve(&self, resident: &mut S) -> Departure {
        let mut activity = Activity::Idle;
        loop {
            let worked = match self.next_job(activity) {
                Ok(Some(job)) => self.run_queued(resident, job),
                Ok(None) => Ok(()),
                Err(departure) => return departure,
            };
            let worked = worked.and_then(|()| self.shared.attempt(|| resident.tick()));
            match worked {
                Ok(wants) => activity = wants,
                Err(reason) => return Departure::Panic(reason),
            }
        }
    }

    /// The next job if there is one; an idle resident waits for it.
    fn next_job(&self, activity: Activity) -> std::result::Result<Option<Job<S>>, Departure> {
        match activity {
            Activity::Idle => {
                self.shared.rest();
                self.queue.recv().map(Some).map_err(|_| Departure::ShutDown)
            }
            Activity::Resting(pause) => {
                self.shared.rest();
                match self.queue.recv_timeout(pause) {
                    Ok(job) => Ok(Some(job)),
                    Err(RecvTimeoutError::Timeout) => Ok(None),
                    Err(RecvTimeoutError::Disconnected) => Err(Departure::ShutDown),
                }
            }
            Activity::Busy => match self.queue.try_recv() {
                Ok(job) => Ok(Some(job)),
                Err(TryRecvError::Empty) => Ok(None),
                Err(TryRecvError::Disconnected) => Err(Departure::ShutDown),
            },
        }
    }

    /// Runs `job` and those behind it, but not forever: live rows want their tick.
    fn run_queued(&self, resident: &mut S, job: Job<S>) -> std::result::Result<(), String> {
        self.shared.attempt(|| job(resident))?;
        for job in self.queue.try_iter().take(limits::COMMAND_QUEUE) {
            self.shared.attempt(|| job(resident))?;
        }
        Ok(())
    }

    fn build(&self) -> Result<S> {
        self.shared.attempt(&self.build).unwrap_or_else(|panic| Err(engine_failed(&panic)))
    }

    /// Builds until that succeeds; `None` when the thread is to end instead.
    fn rebuild(&self) -> Option<S> {
        let mut pause = self.pause.first;
        loop {
            match self.build() {
                Ok(resident) => return Some(resident),
                Err(error) => {
                    tracing::error!(%error, "the engine could not be rebuilt");
                    self.shared.set(ThreadState::Failed { reason: error.to_string() });
                }
            }
            if !self.wait(pause) {
                return None;
            }
            pause = self.pause.longest.min(pause * 2);
        }
    }

    /// Lets `pause` pass, dropping the jobs that nobody can run; `false` when the thread is to end.
    fn wait(&self, pause: Duration) -> bool {
        self.shared.rest();
        loop {
            match self.queue.recv_timeout(pause) {
                Ok(job) => drop(job),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Drops the resident; a panic in that is only reported.
    fn discard(&self, resident: S) {
        if let Err(reason) = self.shared.attempt(|| drop(resident)) {
            tracing::error!(reason, "dropping the engine's state panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts its ticks down and says when it arrives; the `Rc` holds it to one thread.
    struct Countdown {
        ticks_left: Rc<usize>,
        ticked: Vec<usize>,
        arrived: Option<mpsc::Sender<Vec<usize>>>,
    }

    impl Resident for Countdown {
        fn tick(&mut self) -> Activity {
            assert!(*self.ticks_left != 13, "thirteen ticks are bad luck");
            self.ticked.push(*self.ticks_left);
            self.ticks_left = Rc::new(self.ticks_left.saturating_sub(1));
            if *self.ticks_left > 0 {
                return Activity::Busy;
            }
            if let Some(arrived) = self.arrived.take() {
                arrived.send(self.ticked.clone()).unwrap();
            }
            Activity::Idle
        }
    }

    const PAUSE: RebuildPause =
        RebuildPause { first: Duration::from_millis(1), longest: Duration::from_millis(2) };

    fn countdown() -> Result<Countdown> {
        Ok(Countdown { ticks_left: Rc::new(0), ticked: Vec::new(), arrived: None })
    }

    fn start(build: impl Fn() -> Result<Countdown> + Send + 'static) -> EngineThread<Countdown> {
        EngineThread::start(Clock::monotonic(), PAUSE, build).unwrap()
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Waits until the thread serves again after a failure.
    fn call_until_served(thread: &EngineThread<Countdown>) -> usize {
        loop {
            match block_on(thread.call(|resident| resident.ticked.len())) {
                Ok(ticked) => return ticked,
                Err(error) => assert_eq!(error.code(), Code::EngineFailed, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_job_runs_on_the_thread_and_its_result_comes_back() {
        let thread = start(countdown);
        let here = std::thread::current().id();
        let there = block_on(thread.call(|_| std::thread::current().id())).unwrap();
        assert_ne!(here, there);
    }

    #[test]
    fn a_busy_resident_ticks_without_further_jobs() {
        let thread = start(countdown);
        let (arrived, arrival) = mpsc::channel();
        thread
            .post(move |resident| {
                resident.ticks_left = Rc::new(4);
                resident.arrived = Some(arrived);
            })
            .unwrap();
        assert_eq!(arrival.recv().unwrap(), [4, 3, 2, 1]);
    }

    #[test]
    fn an_idle_thread_does_not_tick() {
        let thread = start(countdown);
        let ticks_after_rest = || {
            let ticks = block_on(thread.call(|resident| resident.ticked.len())).unwrap();
            while thread.working_for().is_some() {
                std::thread::yield_now();
            }
            ticks
        };
        assert_eq!([ticks_after_rest(), ticks_after_rest(), ticks_after_rest()], [0, 1, 2]);
    }

    #[test]
    fn a_panic_in_a_job_is_reported_and_the_next_job_finds_a_new_resident() {
        let thread = start(countdown);
        let asked = block_on(thread.call(|_| -> usize { panic!("bad {}", "job") }));
        assert_eq!(asked.unwrap_err().code(), Code::EngineFailed);
        assert_eq!(call_until_served(&thread), 0);
        assert_eq!(thread.state(), ThreadState::Serving);
    }

    #[test]
    fn a_panic_in_a_tick_drops_what_the_resident_held() {
        struct Bomb(#[allow(dead_code)] oneshot::Sender<()>);
        impl Resident for Bomb {
            fn tick(&mut self) -> Activity {
                panic!("boom");
            }
        }
        let (held, mut dropped) = oneshot::channel();
        let held = Mutex::new(Some(held));
        let build = move || {
            let held = held.lock().take();
            held.map(Bomb).ok_or_else(|| Error::new(Code::BadModel, "no second bomb"))
        };
        let thread = EngineThread::start(Clock::monotonic(), PAUSE, build).unwrap();
        assert!(
            dropped.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty)
        );
        thread.post(|_| {}).unwrap();
        assert!(block_on(dropped).is_err(), "the sender was dropped unused");
        loop {
            match thread.state() {
                ThreadState::Failed { reason } if reason == "no second bomb" => break,
                ThreadState::Failed { reason } => assert_eq!(reason, "boom"),
                ThreadState::Serving | ThreadState::Stopped => panic!("{thread:?}"),
            }
            std::thread::yield_now();
        }
        let refused = thread.post(|_| {}).unwrap_err();
        assert_eq!(refused.code(), Code::EngineFailed);
        assert!(refused.message().contains("no second bomb"), "{refused}");
        thread.shut_down();
        assert_eq!(thread.state(), ThreadState::Stopped);
    }

    #[test]
    fn a_rebuild_is_tried_until_it_succeeds() {
        let builds = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&builds);
        let thread = start(move || match counter.fetch_add(1, Ordering::SeqCst) {
            1 => Err(Error::new(Code::BadModel, "not yet")),
            2 => panic!("not yet either"),
            _ => countdown(),
        });
        thread.post(|resident| resident.ticks_left = Rc::new(13)).unwrap();
        assert!(builds.load(Ordering::SeqCst) >= 1);
        while builds.load(Ordering::SeqCst) < 4 {
            std::thread::yield_now();
        }
        call_until_served(&thread);
    }

    #[test]
    fn an_error_or_a_panic_of_the_first_build_is_returned() {
        let refuse = || Err::<Countdown, _>(Error::new(Code::BadModel, "no weights"));
        let error = EngineThread::start(Clock::monotonic(), PAUSE, refuse).unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::BadModel, "no weights"));
        let explode = || -> Result<Countdown> { panic!("no device") };
        let error = EngineThread::start(Clock::monotonic(), PAUSE, explode).unwrap_err();
        assert_eq!(error.code(), Code::EngineFailed);
        assert!(error.message().contains("no device"), "{error}");
    }

    #[test]
    fn a_full_queue_refuses_and_shutting_down_runs_what_was_queued() {
        let thread = start(countdown);
        let (open, gate) = mpsc::channel::<()>();
        let (entered, inside) = mpsc::channel::<()>();
        thread
            .post(move |_| {
                entered.send(()).unwrap();
                let _ = gate.recv();
            })
            .unwrap();
        inside.recv().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..limits::COMMAND_QUEUE {
            let ran = Arc::clone(&ran);
            thread
                .post(move |_| {
                    ran.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap();
        }
        assert!(thread.working_for().is_some());
        assert_eq!(thread.post(|_| {}).unwrap_err().code(), Code::QueueFull);
        open.send(()).unwrap();
        thread.shut_down();
        assert_eq!(ran.load(Ordering::SeqCst), limits::COMMAND_QUEUE);
        assert_eq!(thread.post(|_| {}).unwrap_err().code(), Code::ShuttingDown);
    }
}
