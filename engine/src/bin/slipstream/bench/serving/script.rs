//! A model without arrays: every row recites a text that its seed names, one token a step.
//!
//! Everything but the arrays is what a real model is served by: the engine thread, its scheduler, the rows'
//! channels. A step takes the time that it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slipstream_engine::clock::{Clock, Time, thread_busy};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::prompt_cache::Unkept;
use slipstream_engine::scheduler::{Executor, RowSpec, Said, Sampled, Stepped};
use slipstream_engine::telemetry::MemorySnapshot;
use slipstream_engine::tokenizer::Tokenizer;

/// What a row recites: its seed says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Whose it is.
    pub(super) client: u64,
    /// Words of the answer.
    pub(super) words: u64,
}

const WORDS_MAX: u64 = 1_000_000;

impl Part {
    /// The seed that asks for it.
    pub(super) fn seed(self) -> u64 {
        self.client * WORDS_MAX + self.words
    }

    fn of_seed(seed: u64) -> Self {
        Self { client: seed / WORDS_MAX, words: seed % WORDS_MAX }
    }

    /// The answer. No two clients have a word in common, and no word comes twice, so whatever is lost,
    /// repeated or another's shows.
    pub(super) fn text(self) -> String {
        (0..self.words).map(|word| format!(" {}.{word}", self.client)).collect()
    }
}

/// What the engine thread and its watchers share.
#[derive(Debug, Default)]
pub(super) struct Stage {
    step_micros: AtomicU64,
    busy_nanos: AtomicU64,
}

impl Stage {
    /// From now on a step takes `step` at least.
    pub(super) fn set_step(&self, step: Duration) {
        self.step_micros.store(step.as_micros() as u64, Ordering::Relaxed);
    }

    /// Processor time of the engine thread, up to its last step.
    pub(super) fn engine_busy(&self) -> Duration {
        Duration::from_nanos(self.busy_nanos.load(Ordering::Relaxed))
    }
}

/// Recites on the engine thread.
#[derive(Debug)]
pub(super) struct Reciter {
    tokenizer: Tokenizer,
    stage: Arc<Stage>,
    stop: u32,
    batch: Vec<Line>,
    in_flight: bool,
    /// When the last step was over.
    stepped_at: Time,
}

/// What a row still has to say.
#[derive(Debug)]
pub(super) struct Line(std::vec::IntoIter<u32>);

impl Reciter {
    /// # Errors
    /// `BadModel` when the tokenizer has no token that ends an answer.
    pub(super) fn new(tokenizer: Tokenizer, stage: Arc<Stage>) -> Result<Self> {
        let stop = tokenizer.stop_tokens().first().copied();
        let stop =
            stop.ok_or_else(|| Error::new(Code::BadModel, "the tokenizer has no token that ends"))?;
        let (batch, stepped_at) = (Vec::new(), Time::ZERO);
        Ok(Self { tokenizer, stage, stop, batch, in_flight: false, stepped_at })
    }

    fn say(&self, line: &mut Line) -> Said {
        Sampled::from(line.0.next().unwrap_or(self.stop)).into()
    }

    /// What is in flight.
    fn read(&mut self) -> Vec<Said> {
        if !self.in_flight {
            return Vec::new();
        }
        let mut batch = std::mem::take(&mut self.batch);
        let said = batch.iter_mut().map(|line| self.say(line)).collect();
        self.batch = batch;
        said
    }
}

impl Executor for Reciter {
    type Solo = Line;
    type Snapshot = Unkept;

    fn open(&mut self, spec: &RowSpec, _: Option<Unkept>) -> Result<Line> {
        let part = Part::of_seed(spec.sampling.seed.unwrap_or(0));
        Ok(Line(self.tokenizer.encode(&part.text(), false)?.into_iter()))
    }

    fn prefill(&mut self, _: &mut Line, _: &[u32]) -> Result<()> {
        Ok(())
    }

    fn first_token(&mut self, line: &mut Line, _: &[u32]) -> Result<Said> {
        Ok(self.say(line))
    }

    fn join(&mut self, line: Line) -> Result<()> {
        self.batch.push(line);
        Ok(())
    }

    fn step(&mut self, clock: &Clock) -> Result<Stepped> {
        let step = Duration::from_micros(self.stage.step_micros.load(Ordering::Relaxed));
        let rest = (self.stepped_at + step).saturating_sub(clock.now());
        // The device computes.
        std::thread::sleep(rest);
        self.stepped_at = clock.now();
        let said = self.read();
        self.in_flight = true;
        let busy = u64::try_from(thread_busy().as_nanos()).unwrap_or(u64::MAX);
        self.stage.busy_nanos.store(busy, Ordering::Relaxed);
        Ok(Stepped { said, waited: rest, ..Stepped::default() })
    }

    fn flush(&mut self) -> Result<Vec<Said>> {
        let said = self.read();
        self.in_flight = false;
        Ok(said)
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        let mut index = 0..;
        self.batch.retain(|_| index.next().is_some_and(|index| keep.binary_search(&index).is_ok()));
        self.in_flight &= !self.batch.is_empty();
        Ok(())
    }

    fn reset(&mut self) {
        self.batch.clear();
        self.in_flight = false;
    }

    fn solo_kv_bytes(&self, _: &Line) -> u64 {
        0
    }

    fn batch_kv_bytes(&self) -> u64 {
        0
    }

    fn memory(&self) -> MemorySnapshot {
        MemorySnapshot::default()
    }
}
