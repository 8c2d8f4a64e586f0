//! The executor that runs rows on MLX.
//!
//! Decoding is pipelined as mlx-lm 0.32.2's `GenerationBatch` is: a step's graph is built from the
//! token ids that the last one is still computing, dispatched, and only then are the last ids read.
//! So the host builds step n + 1 while the device runs step n.
//!
//! The one row of a model that writes in blocks is stepped by `blocks.rs`; nothing is pipelined there,
//! because what the next forward sees depends on what the last one found.
//!
//! Where a row of the batch has a grammar, its mask depends on its last token. The forward pass is
//! dispatched as ever; then the last ids are read, the masks fill on other threads while the device runs
//! the pass, and only the sampling is built after that. Masks are bits on the host and booleans on the
//! device; other rows' bits are all set, which leaves every bit of their logits as it is.

use std::time::Duration;

use rand::RngExt;
use serde::Deserialize;
use serde_json::Value;

use super::blocks::{BlockRow, CanvasObserver, Ground, Writing};
use super::executor::{Answer, Executor, Said, Sampled, Stepped, Yield};
use super::row::RowSpec;
use crate::cache::{CacheSet, KvScheme, SavedSet};
use crate::clock::Clock;
use crate::config::Levers;
use crate::error::{Code, Error, Result};
use crate::grammar::{Grammar, Guide, Outcome, Workers};
use crate::limits::CLEAR_CACHE_STEPS;
use crate::mlx::{Array, memory, ops, tensor};
use crate::model::{Decoding, Denoising, Model, text_vector};
use crate::prompt_cache::disk::{Tensor, TensorSpec};
use crate::prompt_cache::{Snapshot, UnreadTensor, Written};
use crate::sampling::{NoiseSource, Picks, Sampler, SeededNoise};
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
    /// Of a model that writes in blocks, in place of the batch.
    block_row: Option<BlockRow>,
    /// The rules that such a model is run by, its own ones unless others were asked for.
    denoising: Option<Denoising>,
    noise: NoiseMaker,
    canvas_observer: Option<CanvasObserver>,
    /// From the first row with a grammar on.
    workers: Option<Workers>,
}

/// Makes a row's noise, given its seed.
pub type NoiseMaker = Box<dyn FnMut(u64) -> Box<dyn NoiseSource>>;

/// A row that has not joined: its own caches, and token 0 once it is sampled.
#[derive(Debug)]
pub struct SoloRow {
    row: Row,
    caches: CacheSet,
    current: Option<u32>,
    /// Of a row that writes in blocks.
    writing: Option<Writing>,
    /// What of stored caches it took so far.
    stored: Vec<Array>,
}

/// The running batch: row i of the rows, of the caches and of the register belong together.
#[derive(Debug)]
struct Batch {
    rows: Vec<Row>,
    caches: CacheSet,
    register: Register,
    /// Whether it ever had more than one row: its caches may then lie otherwise than a lone row's.
    merged: bool,
}

/// The caches of one row after its first so many tokens.
#[derive(Debug)]
pub struct KeptCaches {
    caches: CacheSet,
    /// Whether shorter ones have another form, because the scheme converts late.
    converts_late: bool,
}

impl Snapshot for KeptCaches {
    fn tokens(&self) -> usize {
        self.caches.geometry().width().unsigned_abs() as usize
    }

    fn bytes(&self) -> u64 {
        self.caches.bytes()
    }

    fn can_trim(&self) -> bool {
        !self.converts_late && self.caches.can_trim()
    }

    fn share(&self) -> Self {
        Self { caches: self.caches.share(), converts_late: self.converts_late }
    }

    fn trim(&mut self, tokens: usize) -> Result<()> {
        self.caches.trim(tokens).map(|_| ())
    }

    fn write_down(&self) -> Result<Written> {
        let (state, arrays) = self.caches.save()?;
        let state = serde_json::to_value(state).map_err(|error| {
            Error::new(Code::Internal, format!("failed to describe caches: {error}"))
        })?;
        let tensors = arrays.into_iter().map(unread).collect::<Result<_>>()?;
        Ok(Written { state, tensors })
    }
}

/// The array as it will be stored.
fn unread(array: Array) -> Result<UnreadTensor> {
    let tensor::RawSpec { dtype, shape, bytes } = tensor::spec(&array)?;
    let spec = TensorSpec { dtype: dtype.to_owned(), shape, bytes };
    let described = spec.clone();
    let read = move || {
        let bytes = tensor::read(&array)?;
        Ok(Tensor { dtype: described.dtype, shape: described.shape, bytes })
    };
    Ok(UnreadTensor { spec, read: Box::new(read) })
}

/// What of a row has no place in an array.
#[derive(Debug)]
struct Row {
    id: String,
    sampler: Sampler,
    guide: Option<Guide>,
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
        let denoising = match model.decoding() {
            Decoding::NextToken => None,
            Decoding::BlockDiffusion(blocks) => Some(*blocks.denoising()),
        };
        Self {
            model,
            scheme: KvScheme::Plain,
            weights_bytes,
            batch: None,
            steps: 0,
            levers: Levers::default(),
            observer: None,
            block_row: None,
            denoising,
            noise: Box::new(|seed| Box::new(SeededNoise(seed))),
            canvas_observer: None,
            workers: None,
        }
    }

    /// Denoises by other rules than the checkpoint's. It concerns models that write in blocks.
    #[must_use]
    pub fn with_denoising(self, denoising: Denoising) -> Self {
        Self { denoising: self.denoising.map(|_| denoising), ..self }
    }

    /// Takes noise from elsewhere than [`SeededNoise`].
    #[must_use]
    pub fn with_noise(self, noise: NoiseMaker) -> Self {
        Self { noise, ..self }
    }

    /// Shows every forward over a canvas to `observer`.
    pub fn observe_canvases(&mut self, observer: CanvasObserver) {
        self.canvas_observer = Some(observer);
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

    /// Runs tokens `[B, L]` of `rows`: logits `[B, V]` of what comes next. Afterwards caches convert, when it
    /// is time (mlx-lm 0.32.2, `generate_step`: after each chunk and each step).
    fn forward(&mut self, rows: &[Row], caches: &mut CacheSet, tokens: &Array) -> Result<Array> {
        let hidden = last_position(self.model.hidden(tokens, caches)?)?;
        let logits = self.model.logits(&hidden)?;
        let logits = logits.reshape(&[logits.dim(0), logits.dim(-1)])?;
        if let Some(observer) = &mut self.observer {
            let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
            observer(&ids, &logits);
        }
        caches.convert(&self.scheme)?;
        Ok(logits)
    }

    /// Samples the next token of each row from `logits` `[B, V]`. `in_flight` `[B]` are the tokens before, if
    /// they were not read; then no row has a grammar.
    fn sample(&self, rows: &mut [Row], logits: &Array, in_flight: Option<&Array>) -> Result<Picks> {
        let masked = masked(rows, logits)?;
        let logits = masked.as_ref().unwrap_or(logits);
        let mut samplers = samplers(rows);
        match self.levers.row_sampling {
            true => Sampler::sample_each(&mut samplers, logits, in_flight),
            false => Sampler::sample_rows(&mut samplers, logits, in_flight),
        }
    }

    /// A step of `batch` that is dispatched whole before the one before it is read.
    fn step_ahead(&mut self, batch: &mut Batch, clock: &Clock) -> Result<Stepped> {
        let inputs = batch.register.as_inputs()?;
        let logits = self.forward(&batch.rows, &mut batch.caches, &inputs)?;
        let picks = self.sample(&mut batch.rows, &logits, batch.register.in_flight())?;
        let dispatching = dispatch(picks.arrays(), clock)?;
        let fed = std::mem::replace(&mut batch.register, Register::InFlight(picks));
        let (said, waited) = self.take_in(&mut batch.rows, &fed, clock)?;
        Ok(Stepped { said, dispatching, waited })
    }

    /// A step of `batch` in which the one before is read once the forward pass is dispatched.
    fn step_masked(&mut self, batch: &mut Batch, clock: &Clock) -> Result<Stepped> {
        let inputs = batch.register.as_inputs()?;
        let logits = self.forward(&batch.rows, &mut batch.caches, &inputs)?;
        let forward = dispatch([&logits], clock)?;
        let (said, waited) = self.take_in(&mut batch.rows, &batch.register, clock)?;
        let picks = self.sample(&mut batch.rows, &logits, None)?;
        let sampling = dispatch(picks.arrays(), clock)?;
        batch.register = Register::InFlight(picks);
        Ok(Stepped { said, dispatching: forward + sampling, waited })
    }

    /// Reads what of `register` is in flight, and tells samplers and grammars of it; also says how long it
    /// waited for that.
    fn take_in(
        &self,
        rows: &mut [Row],
        register: &Register,
        clock: &Clock,
    ) -> Result<(Vec<Said>, Duration)> {
        let Register::InFlight(picks) = register else {
            return Ok((Vec::new(), Duration::ZERO));
        };
        let began = clock.now();
        let sampled = picks.read(&mut samplers(rows))?;
        let waited = clock.now().saturating_sub(began);
        Ok((self.tell(rows, sampled), waited))
    }

    /// Tells each row's grammar of its token; all masks fill at once.
    fn tell(&self, rows: &mut [Row], sampled: Vec<Sampled>) -> Vec<Said> {
        for (row, sampled) in rows.iter_mut().zip(&sampled) {
            if let (Some(guide), Some(workers)) = (&mut row.guide, &self.workers) {
                guide.take(sampled.token, workers);
            }
        }
        let answers = rows.iter_mut().map(Row::answer);
        sampled.into_iter().zip(answers).map(|(sampled, answer)| Said { sampled, answer }).collect()
    }

    /// The guide of a row with `grammar`.
    fn guide(&mut self, grammar: &Grammar) -> Result<Guide> {
        if self.workers.is_none() {
            self.workers = Some(Workers::start()?);
        }
        let workers = self.workers.as_ref();
        let workers = workers.ok_or_else(|| Error::new(Code::Internal, "no thread fills masks"))?;
        Ok(Guide::start(grammar, workers))
    }

    /// One forward of the row that writes in blocks. Reading what it found is all that it waits for.
    fn step_block(&mut self, clock: &Clock) -> Result<Stepped> {
        let (Decoding::BlockDiffusion(blocks), Some(denoising)) =
            (self.model.decoding(), &self.denoising)
        else {
            return Err(Error::new(Code::Internal, "a block of a model that writes none"));
        };
        let mut ground = Ground {
            model: &*self.model,
            blocks,
            denoising,
            scheme: &self.scheme,
            observer: self.canvas_observer.as_mut(),
            clock,
            waited: Duration::ZERO,
        };
        let row = self.block_row.as_mut();
        let row = row.ok_or_else(|| Error::new(Code::Internal, "a step without rows"))?;
        let said = row.step(&mut ground)?.into_iter().map(Said::from).collect();
        let waited = ground.waited;
        self.count_step()?;
        Ok(Stepped { said, waited, ..Stepped::default() })
    }

    /// Counts a step, and empties MLX's buffer cache now and then.
    fn count_step(&mut self) -> Result<()> {
        self.steps += 1;
        match self.steps.is_multiple_of(CLEAR_CACHE_STEPS) {
            true => memory::clear_cache(),
            false => Ok(()),
        }
    }

    fn join_alone(&mut self, row: Row, caches: CacheSet, writing: Writing) -> Result<()> {
        if self.block_row.is_some() {
            return Err(Error::new(Code::Internal, "a row joins one that writes in blocks"));
        }
        let Row { id, sampler, .. } = row;
        self.block_row = Some(BlockRow { id, sampler, caches, writing });
        Ok(())
    }

    /// Caches to be kept.
    fn kept(&self, caches: CacheSet) -> KeptCaches {
        KeptCaches { caches, converts_late: self.scheme.serial_reason().is_some() }
    }

    fn running(&mut self) -> Result<&mut Batch> {
        self.batch.as_mut().ok_or_else(|| Error::new(Code::Internal, "no row runs"))
    }
}

impl Executor for MlxExecutor {
    type Solo = SoloRow;
    type Snapshot = KeptCaches;

    fn yields(&self) -> Yield {
        match self.denoising {
            None => Yield::TokenPerStep,
            Some(_) => Yield::Blocks,
        }
    }

    fn open(&mut self, spec: &RowSpec, kept: Option<KeptCaches>) -> Result<SoloRow> {
        if self.denoising.is_some() && spec.grammar.is_some() {
            let message = "a model that writes blocks of tokens has no masks for a grammar";
            return Err(Error::new(Code::Unsupported, message));
        }
        let fresh_seed = rand::rng().random();
        let sampler = Sampler::new(spec.sampling.clone(), &spec.prompt, fresh_seed);
        let writing = self.denoising.is_some().then(|| {
            let seed = spec.sampling.seed.unwrap_or(fresh_seed);
            Writing::new((self.noise)(seed), spec.max_tokens)
        });
        let guide = spec.grammar.as_ref().map(|grammar| self.guide(grammar)).transpose()?;
        let row = Row { id: spec.id.clone(), sampler, guide };
        let caches = kept.map_or_else(|| self.model.new_caches(), |kept| kept.caches);
        Ok(SoloRow { row, caches, current: None, writing, stored: Vec::new() })
    }

    fn restore(&mut self, solo: &mut SoloRow, tensor: Tensor) -> Result<()> {
        solo.stored.push(tensor::write(&tensor.dtype, &tensor.shape, &tensor.bytes)?);
        Ok(())
    }

    fn restored(
        &mut self,
        solo: &mut SoloRow,
        state: &Value,
        surplus_tokens: usize,
    ) -> Result<KeptCaches> {
        let saved = SavedSet::deserialize(state).map_err(|error| {
            Error::new(Code::BadModel, format!("failed to read stored caches: {error}"))
        })?;
        let arrays = std::mem::take(&mut solo.stored);
        let caches = CacheSet::restore(self.model.new_caches(), &saved, arrays)?;
        let kept = self.kept(caches);
        let mut own = kept.share();
        if surplus_tokens > 0 {
            own.trim(surplus_tokens)?;
        }
        solo.caches = own.caches;
        Ok(kept)
    }

    fn keep(&self, solo: &SoloRow) -> Option<KeptCaches> {
        Some(self.kept(solo.caches.share()))
    }

    fn extract(&mut self, index: usize) -> Result<Option<KeptCaches>> {
        let Some(batch) = &self.batch else { return Ok(None) };
        let caches = match batch.merged {
            false => batch.caches.share(),
            true => {
                let caches = batch.caches.extract(index)?;
                // Not waited for: the batch goes on, and its buffers are free once the copies have landed.
                ops::start_evaluation(caches.arrays())?;
                caches
            }
        };
        Ok(Some(self.kept(caches)))
    }

    fn prefill(&mut self, solo: &mut SoloRow, tokens: &[u32]) -> Result<()> {
        // The hidden states are never evaluated: only what the caches need of them is.
        self.model.hidden(&ops::token_matrix(tokens, 1), &mut solo.caches)?;
        solo.caches.convert(&self.scheme)?;
        ops::evaluate(solo.caches.arrays())?;
        memory::clear_cache()
    }

    fn first_token(&mut self, solo: &mut SoloRow, tokens: &[u32]) -> Result<Said> {
        let inputs = ops::token_matrix(tokens, 1);
        let row = std::slice::from_mut(&mut solo.row);
        let logits = self.forward(row, &mut solo.caches, &inputs)?;
        let picks = self.sample(row, &logits, None)?;
        let sampled = picks.read(&mut samplers(row))?;
        let said = only(self.tell(row, sampled))?;
        solo.current = Some(said.sampled.token);
        Ok(said)
    }

    fn vector(
        &mut self,
        solo: &mut SoloRow,
        tokens: &[u32],
        dimensions: Option<usize>,
    ) -> Result<Vec<f32>> {
        let hidden = self.model.hidden(&ops::token_matrix(tokens, 1), &mut solo.caches)?;
        let vector = text_vector(&hidden, dimensions)?;
        memory::clear_cache()?;
        Ok(vector)
    }

    fn join(&mut self, solo: SoloRow) -> Result<()> {
        let SoloRow { row, caches, current, writing, stored: _ } = solo;
        if let Some(writing) = writing {
            return self.join_alone(row, caches, writing);
        }
        let current = current.ok_or_else(|| Error::new(Code::Internal, "a row joins too early"))?;
        match &mut self.batch {
            None => {
                let register = Register::Known(vec![current]);
                self.batch = Some(Batch { rows: vec![row], caches, register, merged: false });
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
                batch.merged = true;
                match self.levers.remerge {
                    true => batch.caches.remerge(caches)?,
                    false => batch.caches.extend(caches)?,
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, clock: &Clock) -> Result<Stepped> {
        if self.denoising.is_some() {
            return self.step_block(clock);
        }
        let mut batch =
            self.batch.take().ok_or_else(|| Error::new(Code::Internal, "a step without rows"))?;
        let stepped = match batch.rows.iter().any(|row| row.guide.is_some()) {
            true => self.step_masked(&mut batch, clock)?,
            false => self.step_ahead(&mut batch, clock)?,
        };
        self.batch = Some(batch);
        self.count_step()?;
        Ok(stepped)
    }

    fn flush(&mut self) -> Result<Vec<Said>> {
        let Some(mut batch) = self.batch.take() else {
            return Ok(Vec::new());
        };
        let said = match &batch.register {
            Register::Known(_) => Vec::new(),
            Register::InFlight(picks) => {
                let sampled = picks.read(&mut samplers(&mut batch.rows))?;
                self.tell(&mut batch.rows, sampled)
            }
        };
        if !said.is_empty() {
            let tokens = said.iter().map(|said| said.sampled.token).collect();
            batch.register = Register::Known(tokens);
        }
        self.batch = Some(batch);
        Ok(said)
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        if keep.is_empty() {
            self.reset();
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
        self.block_row = None;
    }

    fn solo_kv_bytes(&self, solo: &SoloRow) -> u64 {
        solo.caches.bytes() + solo.stored.iter().map(|array| array.nbytes() as u64).sum::<u64>()
    }

    fn batch_kv_bytes(&self) -> u64 {
        let batch = self.batch.iter().map(|batch| &batch.caches);
        let caches = batch.chain(self.block_row.iter().map(|row| &row.caches));
        caches.map(CacheSet::bytes).sum()
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

fn only(said: Vec<Said>) -> Result<Said> {
    let [only] = <[Said; 1]>::try_from(said).map_err(|others| {
        Error::new(Code::Internal, format!("{} tokens for one row", others.len()))
    })?;
    Ok(only)
}

impl Row {
    /// Where its answer stands; waits for its mask.
    fn answer(&mut self) -> Answer {
        match self.guide.as_mut().map(Guide::outcome) {
            None | Some(Outcome::Open(_)) => Answer::Open,
            Some(Outcome::Satisfied) => Answer::Whole,
            Some(Outcome::Stuck(error)) => Answer::Stuck(error.clone()),
        }
    }

    /// Its mask; `None` when everything is allowed, or nothing that is sampled counts.
    fn mask(&mut self) -> Option<&[u32]> {
        match self.guide.as_mut()?.outcome() {
            Outcome::Open(mask) => Some(mask.words()),
            Outcome::Satisfied | Outcome::Stuck(_) => None,
        }
    }
}

/// `logits` `[B, V]` with minus infinity where a row's grammar forbids the token; `None` when none does.
fn masked(rows: &mut [Row], logits: &Array) -> Result<Option<Array>> {
    if rows.iter().all(|row| row.guide.is_none()) {
        return Ok(None);
    }
    let masks: Vec<Option<&[u32]>> = rows.iter_mut().map(Row::mask).collect();
    ops::keep_bits(&masks, logits).map(Some)
}

/// Hands `arrays` to the device; says how long that took.
fn dispatch<'a>(arrays: impl IntoIterator<Item = &'a Array>, clock: &Clock) -> Result<Duration> {
    let began = clock.now();
    ops::start_evaluation(arrays)?;
    Ok(clock.now().saturating_sub(began))
}
