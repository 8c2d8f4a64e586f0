//! The executor that runs rows on MLX.
//!
//! Decoding is pipelined as mlx-lm 0.32.2's `GenerationBatch` is: a step's graph is built from the
//! token ids that the last one is still computing, dispatched, and only then are the last ids read.
//! So the host builds step n + 1 while the device runs step n.

use std::time::Duration;

use rand::RngExt;

use super::executor::{Executor, Sampled, Stepped};
use super::row::RowSpec;
use crate::cache::{CacheSet, KvScheme};
use crate::clock::Clock;
use crate::config::Levers;
use crate::error::{Code, Error, Result};
use crate::limits::CLEAR_CACHE_STEPS;
use crate::mlx::{Array, memory, ops};
use crate::model::Model;
use crate::sampling::{Picks, Sampler};
use crate::telemetry::MemorySnapshot;

/// Sees the ids of the rows of a forward, and the logits `[B, V]` that their next tokens are sampled
/// from.
pub type LogitsObserver = Box<dyn FnMut(&[&str], &Array)>;

/// Runs rows of one model on this thread's device.
pub struct MlxExecutor {
    model: Box<dyn Model>,
    scheme: KvScheme,
    weights_bytes: u64,
    batch: Option<Batch>,
    steps: u64,
    levers: Levers,
    observer: Option<LogitsObserver>,
}

/// A row that has not joined: its own caches, and token 0 once it is sampled.
#[derive(Debug)]
pub struct SoloRow {
    row: Row,
    caches: CacheSet,
    current: Option<u32>,
}

/// The running batch: row i of the rows, of the caches and of the register belong together.
#[derive(Debug)]
struct Batch {
    rows: Vec<Row>,
    caches: CacheSet,
    register: Register,
}

/// What of a row has no place in an array.
#[derive(Debug)]
struct Row {
    id: String,
    sampler: Sampler,
}

/// The token of each row that was sampled and not yet fed.
#[derive(Debug)]
enum Register {
    /// Read and emitted.
    Known(Vec<u32>),
    /// Dispatched and not yet read.
    InFlight(Picks),
}

impl MlxExecutor {
    /// An executor for `model`, whose weights take `weights_bytes`. KV caches stay plain.
    pub fn new(model: Box<dyn Model>, weights_bytes: u64) -> Self {
        let (scheme, levers) = (KvScheme::Plain, Levers::default());
        Self { model, scheme, weights_bytes, batch: None, steps: 0, levers, observer: None }
    }

    /// Stores KV caches as `scheme` says, which must fit the model's layers.
    #[must_use]
    pub fn with_kv_scheme(self, scheme: KvScheme) -> Self {
        Self { scheme, ..self }
    }

    /// The same with `levers` pulled.
    #[must_use]
    pub fn with_levers(self, levers: Levers) -> Self {
        Self { levers, ..self }
    }

    /// Shows every forward's logits to `observer`, in the order of the dispatches.
    pub fn observe_logits(&mut self, observer: LogitsObserver) {
        self.observer = Some(observer);
    }

    /// Runs tokens `[B, L]` of `rows` and samples the next one of each. `in_flight` are the same tokens
    /// `[B]`, if they were not read. Afterwards caches convert, when it is time (mlx-lm 0.32.2,
    /// `generate_step`: after each chunk and each step).
    fn forward(
        &mut self,
        rows: &mut [Row],
        caches: &mut CacheSet,
        tokens: &Array,
        in_flight: Option<&Array>,
    ) -> Result<Picks> {
        let hidden = last_position(self.model.hidden(tokens, caches)?)?;
        let logits = self.model.logits(&hidden)?;
        let logits = logits.reshape(&[logits.dim(0), logits.dim(-1)])?;
        if let Some(observer) = &mut self.observer {
            let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
            observer(&ids, &logits);
        }
        caches.convert(&self.scheme)?;
        let mut samplers = samplers(rows);
        match self.levers.row_sampling {
            true => Sampler::sample_each(&mut samplers, &logits, in_flight),
            false => Sampler::sample_rows(&mut samplers, &logits, in_flight),
        }
    }

    /// Builds and dispatches one step of `batch`; returns the register that was fed, and how long the
    /// dispatch alone took.
    fn dispatch(&mut self, batch: &mut Batch, clock: &Clock) -> Result<(Register, Duration)> {
        let inputs = batch.register.as_inputs()?;
        let in_flight = batch.register.in_flight();
        let sampled = self.forward(&mut batch.rows, &mut batch.caches, &inputs, in_flight)?;
        let began = clock.now();
        ops::start_evaluation(sampled.arrays())?;
        let dispatching = clock.now().saturating_sub(began);
        self.steps += 1;
        if self.steps.is_multiple_of(CLEAR_CACHE_STEPS) {
            memory::clear_cache()?;
        }
        Ok((std::mem::replace(&mut batch.register, Register::InFlight(sampled)), dispatching))
    }

    fn running(&mut self) -> Result<&mut Batch> {
        self.batch.as_mut().ok_or_else(|| Error::new(Code::Internal, "no row runs"))
    }
}

impl Executor for MlxExecutor {
    type Solo = SoloRow;

    fn open(&mut self, spec: &RowSpec) -> Result<SoloRow> {
        let sampler = Sampler::new(spec.sampling.clone(), &spec.prompt, rand::rng().random());
        let row = Row { id: spec.id.clone(), sampler };
        Ok(SoloRow { row, caches: self.model.new_caches(), current: None })
    }

    fn prefill(&mut self, solo: &mut SoloRow, tokens: &[u32]) -> Result<()> {
        // The hidden states are never evaluated: only what the caches need of them is.
        self.model.hidden(&ops::token_matrix(tokens, 1), &mut solo.caches)?;
        solo.caches.convert(&self.scheme)?;
        ops::evaluate(solo.caches.arrays())?;
        memory::clear_cache()
    }

    fn first_token(&mut self, solo: &mut SoloRow, tokens: &[u32]) -> Result<Sampled> {
        let inputs = ops::token_matrix(tokens, 1);
        let row = std::slice::from_mut(&mut solo.row);
        let picks = self.forward(row, &mut solo.caches, &inputs, None)?;
        let sampled = only(picks.read(&mut samplers(row))?)?;
        solo.current = Some(sampled.token);
        Ok(sampled)
    }

    fn join(&mut self, solo: SoloRow) -> Result<()> {
        let SoloRow { row, caches, current } = solo;
        let current = current.ok_or_else(|| Error::new(Code::Internal, "a row joins too early"))?;
        match &mut self.batch {
            None => {
                let register = Register::Known(vec![current]);
                self.batch = Some(Batch { rows: vec![row], caches, register });
            }
            Some(batch) => {
                if let Some(reason) = self.scheme.serial_reason() {
                    let message = format!("a row joins others, but {reason}");
                    return Err(Error::new(Code::Internal, message));
                }
                let Register::Known(tokens) = &mut batch.register else {
                    return Err(Error::new(Code::Internal, "a row joins a step in flight"));
                };
                tokens.push(current);
                batch.rows.push(row);
                match self.levers.remerge {
                    true => batch.caches.remerge(caches)?,
                    false => batch.caches.extend(caches)?,
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, clock: &Clock) -> Result<Stepped> {
        let mut batch =
            self.batch.take().ok_or_else(|| Error::new(Code::Internal, "a step without rows"))?;
        let (fed, dispatching) = self.dispatch(&mut batch, clock)?;
        let stepped = match fed {
            Register::Known(_) => Stepped { dispatching, ..Stepped::default() },
            Register::InFlight(picks) => {
                let began = clock.now();
                let sampled = picks.read(&mut samplers(&mut batch.rows))?;
                let waited = clock.now().saturating_sub(began);
                Stepped { sampled, dispatching, waited }
            }
        };
        self.batch = Some(batch);
        Ok(stepped)
    }

    fn flush(&mut self) -> Result<Vec<Sampled>> {
        let Some(batch) = &mut self.batch else {
            return Ok(Vec::new());
        };
        let Register::InFlight(picks) = &batch.register else {
            return Ok(Vec::new());
        };
        let sampled = picks.read(&mut samplers(&mut batch.rows))?;
        batch.register = Register::Known(sampled.iter().map(|sampled| sampled.token).collect());
        Ok(sampled)
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        if keep.is_empty() {
            self.batch = None;
            return Ok(());
        }
        let batch = self.running()?;
        batch.caches.filter(keep)?;
        batch.register.filter(keep)?;
        let mut index = 0;
        batch.rows.retain(|_| {
            let kept = keep.binary_search(&index).is_ok();
            index += 1;
            kept
        });
        Ok(())
    }

    fn reset(&mut self) {
        self.batch = None;
    }

    fn solo_kv_bytes(&self, solo: &SoloRow) -> u64 {
        solo.caches.bytes()
    }

    fn batch_kv_bytes(&self) -> u64 {
        self.batch.as_ref().map_or(0, |batch| batch.caches.bytes())
    }

    fn memory(&self) -> MemorySnapshot {
        MemorySnapshot { weights_bytes: self.weights_bytes, ..memory::snapshot() }
    }
}

impl Register {
    /// Tokens `[B, 1]` to feed.
    fn as_inputs(&self) -> Result<Array> {
        match self {
            Self::Known(tokens) => Ok(ops::token_matrix(tokens, tokens.len())),
            Self::InFlight(picks) => Ok(picks.tokens().reshape(&[-1, 1])?),
        }
    }

    /// The tokens that were not read, `[B]`.
    fn in_flight(&self) -> Option<&Array> {
        match self {
            Self::Known(_) => None,
            Self::InFlight(picks) => Some(picks.tokens()),
        }
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        match self {
            Self::Known(tokens) => *tokens = keep.iter().map(|row| tokens[*row]).collect(),
            Self::InFlight(picks) => *picks = picks.rows(keep)?,
        }
        Ok(())
    }
}

impl std::fmt::Debug for MlxExecutor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = self.batch.as_ref().map_or(0, |batch| batch.rows.len());
        formatter.debug_struct("MlxExecutor").field("rows", &rows).finish_non_exhaustive()
    }
}

/// The last of the positions `[B, L, hidden]`: `[B, 1, hidden]`. The others never reach the head.
fn last_position(hidden: Array) -> Result<Array> {
    match hidden.dim(1) {
        1 => Ok(hidden),
        length => ops::slice_axis(&hidden, 1, length - 1, length),
    }
}

fn samplers(rows: &mut [Row]) -> Vec<&mut Sampler> {
    rows.iter_mut().map(|row| &mut row.sampler).collect()
}

fn only(sampled: Vec<Sampled>) -> Result<Sampled> {
    let [only] = <[Sampled; 1]>::try_from(sampled).map_err(|others| {
        Error::new(Code::Internal, format!("{} tokens for one row", others.len()))
    })?;
    Ok(only)
}
