//! A matcher whose masks fill while the device runs the step.
//!
//! A guide hands its matcher to a worker with each token, and asks for it back when the mask is needed. It
//! is asked at the same points whatever the workers' pace, so what it answers depends on the tokens alone.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;

use super::compiler::Grammar;
use super::matcher::{Mask, Matcher};
use crate::error::{Code, Error, Result};
use crate::limits::MASK_THREADS_MAX;

/// What a row's grammar says after the tokens so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// These tokens may come next.
    Open(Mask),
    /// The answer is whole: the row ends.
    Satisfied,
    /// The answer cannot go on, and is not whole.
    Stuck(Error),
}

/// A row's matcher, here or at a worker.
#[derive(Debug)]
pub struct Guide(Place);

#[derive(Debug)]
enum Place {
    Here(Box<Turn>),
    Away(mpsc::Receiver<Box<Turn>>),
}

#[derive(Debug)]
struct Turn {
    matcher: Option<Matcher>,
    outcome: Outcome,
}

impl Guide {
    /// A guide at the start of `grammar`; its first mask begins to fill.
    pub fn start(grammar: &Grammar, workers: &Workers) -> Self {
        let grammar = grammar.clone();
        Self(workers.run(move || turn(grammar.matcher())))
    }

    /// Takes the token that was said; the next mask begins to fill. After the end of the answer there is
    /// nothing to take.
    pub fn take(&mut self, token: u32, workers: &Workers) {
        let here = self.here();
        if !matches!(here.outcome, Outcome::Open(_)) {
            return;
        }
        let Some(mut matcher) = here.matcher.take() else {
            return;
        };
        self.0 = workers.run(move || match matcher.accept(token) {
            Ok(()) => turn(matcher),
            Err(error) => Box::new(Turn { matcher: None, outcome: Outcome::Stuck(error) }),
        });
    }

    /// What the grammar says now; waits for the worker.
    pub fn outcome(&mut self) -> &Outcome {
        &self.here().outcome
    }

    fn here(&mut self) -> &mut Turn {
        if let Place::Away(coming) = &self.0 {
            self.0 = Place::Here(coming.recv().unwrap_or_else(|_| lost()));
        }
        match &mut self.0 {
            Place::Here(turn) => turn,
            Place::Away(_) => unreachable!("it just came"),
        }
    }
}

/// The matcher with what it says now.
fn turn(mut matcher: Matcher) -> Box<Turn> {
    let outcome = match matcher.mask() {
        Ok(Some(mask)) => Outcome::Open(mask),
        Ok(None) => Outcome::Satisfied,
        Err(error) => Outcome::Stuck(error),
    };
    Box::new(Turn { matcher: Some(matcher), outcome })
}

/// The worker died with the matcher.
fn lost() -> Box<Turn> {
    let error = Error::new(Code::Internal, "the thread that fills token masks failed");
    Box::new(Turn { matcher: None, outcome: Outcome::Stuck(error) })
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that fill masks. They end when this is dropped.
pub struct Workers(mpsc::Sender<Job>);

impl Workers {
    /// As many threads as help: one for each core, four at most.
    ///
    /// # Errors
    /// `Io` when the system refuses a thread.
    pub fn start() -> Result<Self> {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let (jobs, waiting) = mpsc::channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        for index in 0..cores.min(MASK_THREADS_MAX) {
            let waiting = Arc::clone(&waiting);
            let name = format!("masks-{index}");
            thread::Builder::new().name(name).spawn(move || work(&waiting))?;
        }
        Ok(Self(jobs))
    }

    fn run(&self, job: impl FnOnce() -> Box<Turn> + Send + 'static) -> Place {
        let (done, coming) = mpsc::sync_channel(1);
        // A guide that was dropped has no use for the turn.
        let job = move || drop(done.send(job()));
        // Should all threads be gone, the job is dropped, and with it its end of `coming`.
        drop(self.0.send(Box::new(job)));
        Place::Away(coming)
    }
}

fn work(waiting: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        let job = waiting.lock().recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Workers").finish_non_exhaustive()
    }
}
