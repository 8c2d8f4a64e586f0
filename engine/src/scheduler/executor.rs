//! What the scheduler asks of whatever runs the model.
//!
//! The MLX executor is `device.rs`; tests drive the same scheduler with a scripted one.

use std::time::Duration;

use serde_json::Value;

use super::row::RowSpec;
use crate::clock::Clock;
use crate::error::{Code, Error, Result};
use crate::prompt_cache::Snapshot;
use crate::prompt_cache::disk::Tensor;
use crate::telemetry::MemorySnapshot;

pub use crate::sampling::Sampled;

/// What the steps of an executor bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yield {
    /// One token for each row, one step late.
    TokenPerStep,
    /// For the one row there is, now and then the tokens of a whole block, at once.
    Blocks,
}

/// A token that was read, and what it made of its row's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The token.
    pub sampled: Sampled,
    /// The answer with it.
    pub answer: Answer,
}

/// Where a row's answer stands by its grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It may go on; a row without a grammar always may.
    Open,
    /// It is whole, and nothing but its end can follow.
    Whole,
    /// It cannot go on, and is not whole.
    Stuck(Error),
}

impl From<Sampled> for Said {
    /// A token of a row without a grammar.
    fn from(sampled: Sampled) -> Self {
        Self { sampled, answer: Answer::Open }
    }
}

/// What a decode step brought.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stepped {
    /// The tokens of the step before it: one per row, or none when nothing was in flight. With
    /// [`Yield::Blocks`] those of the block that this step finished, in order, or none.
    pub said: Vec<Said>,
    /// The part of the call in which the step was handed to the device. On a processor this waits for
    /// the step's own computations, since only so many of them may be outstanding.
    pub dispatching: Duration,
    /// The part of the call in which the host only waited for the device.
    pub waited: Duration,
}

/// Runs rows on a device. Rows of the running batch are known by their index in it; the scheduler
/// keeps its own list in the same order.
///
/// A row with a grammar has its matcher here. It takes a token whenever one is read, be it by a step, a
/// flush or as token 0, so it always stands where its client does. What is sampled for a row whose answer
/// has ended is nobody's: the row leaves before that is read.
pub trait Executor {
    /// The device side of one row before it joins the batch: its solo caches and its sampler.
    type Solo;

    /// What the caches of one row hold after its first so many tokens.
    type Snapshot: Snapshot;

    /// What its steps bring. It never changes.
    fn yields(&self) -> Yield {
        Yield::TokenPerStep
    }

    /// Makes a row that is empty, or has the first tokens of its prompt in its caches already, as `kept` holds
    /// them. Computes nothing.
    fn open(&mut self, spec: &RowSpec, kept: Option<Self::Snapshot>) -> Result<Self::Solo>;

    /// What the caches of a row that has not joined hold: a share, so nothing is copied before either side goes
    /// on. `None` where they cannot be kept.
    fn keep(&self, _solo: &Self::Solo) -> Option<Self::Snapshot> {
        None
    }

    /// What the caches of row `index` of the batch hold, by itself: a copy unless the row was always alone. What
    /// is sampled and not yet fed is not in it. `None` where they cannot be kept.
    fn extract(&mut self, _index: usize) -> Result<Option<Self::Snapshot>> {
        Ok(None)
    }

    /// Takes the next tensor of a stored snapshot, for a row that was opened with nothing.
    ///
    /// # Errors
    /// `BadModel` when it is none that a cache holds. The row is then of no use.
    fn restore(&mut self, _solo: &mut Self::Solo, _tensor: Tensor) -> Result<()> {
        Err(unstored())
    }

    /// Makes the tensors that a row took the snapshot that they are, as `state` tells, and goes on from there
    /// without its last `surplus_tokens`. The snapshot itself, with them, is what is returned.
    ///
    /// # Errors
    /// `BadModel` when they are no snapshot of such a row. The row is then of no use.
    fn restored(
        &mut self,
        _solo: &mut Self::Solo,
        _state: &Value,
        _surplus_tokens: usize,
    ) -> Result<Self::Snapshot> {
        Err(unstored())
    }

    /// Runs the next `tokens` of the row's prompt into its solo caches and waits for them. Logits
    /// are not computed. An error leaves the batch untouched.
    fn prefill(&mut self, solo: &mut Self::Solo, tokens: &[u32]) -> Result<()>;

    /// Runs the last `tokens` of the prompt, samples token 0 and waits for it. It is one token, as in
    /// mlx-lm, unless the tail split is switched off. An error leaves the batch untouched. It is not called
    /// with [`Yield::Blocks`], where the end of a prompt is prefilled like the rest.
    fn first_token(&mut self, solo: &mut Self::Solo, tokens: &[u32]) -> Result<Said>;

    /// Runs the last `tokens` of the prompt of a row for a vector and reads that: what the model made of the
    /// last token, its first `dimensions` numbers if it is to be cut, of length 1. An error leaves the batch
    /// untouched, and is what an executor says that makes none.
    fn vector(
        &mut self,
        solo: &mut Self::Solo,
        tokens: &[u32],
        dimensions: Option<usize>,
    ) -> Result<Vec<f32>> {
        let _ = (solo, tokens, dimensions);
        Err(Error::new(Code::Unsupported, "nothing here makes vectors"))
    }

    /// Adds a row, whose token 0 was sampled if there is one, as the last row of the batch: an empty batch adopts
    /// its caches without a copy, a running one is extended. Only valid with nothing in flight.
    fn join(&mut self, solo: Self::Solo) -> Result<()>;

    /// Dispatches one decode step for all rows, then reads the step dispatched before it, and takes
    /// the time of its waiting from `clock`. Where a row has a grammar, the step before is read once the
    /// forward pass is dispatched, because it says which tokens may be sampled. With [`Yield::Blocks`]
    /// nothing stays in flight.
    fn step(&mut self, clock: &Clock) -> Result<Stepped>;

    /// Reads the step in flight, if any, without dispatching another.
    fn flush(&mut self) -> Result<Vec<Said>>;

    /// Keeps the rows at the indices `keep` (ascending) and drops the others, in flight ones too.
    fn filter(&mut self, keep: &[usize]) -> Result<()>;

    /// Drops the batch and what is in flight, after an error that no single row caused.
    fn reset(&mut self);

    /// KV bytes of a row that has not joined.
    fn solo_kv_bytes(&self, solo: &Self::Solo) -> u64;

    /// KV bytes of the whole running batch, padding included.
    fn batch_kv_bytes(&self) -> u64;

    /// The allocator's figures.
    fn memory(&self) -> MemorySnapshot;
}

fn unstored() -> Error {
    Error::new(Code::Internal, "nothing here was ever stored")
}
