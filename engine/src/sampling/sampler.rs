//! Samplers over arrays: one per row, and the vectorized greedy path of a homogeneous batch.
//!
//! A row's draw is a function of its seed and of how many draws it made before, so its tokens do not
//! depend on who shares its batch.

use super::SamplingParams;
use crate::error::Result;
use crate::mlx::{Array, ops};

/// A row's way from log-probabilities to a token.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    draws: u64,
}

impl Sampler {
    /// A sampler for one row; without a seed of its own it takes `fresh_seed`.
    pub fn new(params: SamplingParams, fresh_seed: u64) -> Self {
        let seed = params.seed.unwrap_or(fresh_seed);
        Self { params, seed, draws: 0 }
    }

    /// Picks one token per row from logits `[B, V]`: `[B]`, u32. A batch of greedy rows is one
    /// argmax, the same for each row as its own.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn sample_rows(samplers: &mut [&mut Self], logits: &Array) -> Result<Array> {
        let log_probabilities = ops::log_probabilities(logits)?;
        if samplers.iter().all(|sampler| sampler.params.is_greedy()) {
            return ops::argmax_last(&log_probabilities);
        }
        Self::pick_each(samplers, &log_probabilities)
    }

    /// The same picks, each made by itself even if all rows are greedy.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn sample_each(samplers: &mut [&mut Self], logits: &Array) -> Result<Array> {
        Self::pick_each(samplers, &ops::log_probabilities(logits)?)
    }

    fn pick_each(samplers: &mut [&mut Self], log_probabilities: &Array) -> Result<Array> {
        let picks = samplers.iter_mut().enumerate().map(|(row, sampler)| {
            let row = ops::axis_index(row);
            sampler.sample(&ops::slice_axis(log_probabilities, 0, row, row + 1)?)
        });
        ops::concatenate_axis(&picks.collect::<Result<Vec<_>>>()?, 0)
    }

    /// Tokens `[C]` for the places of a canvas from its logits `[1, C, V]`, the most likely of which are
    /// `best` `[C]`. It is one draw.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn propose(&mut self, logits: &Array, best: &Array) -> Result<Array> {
        if self.params.is_greedy() {
            return Ok(ops::share(best));
        }
        let places = logits.reshape(&[logits.dim(-2), logits.dim(-1)])?;
        self.sample(&ops::log_probabilities(&places)?)
    }

    /// `[1, V]` normalized log-probabilities to `[1]`.
    fn sample(&mut self, log_probabilities: &Array) -> Result<Array> {
        if self.params.is_greedy() {
            return ops::argmax_last(log_probabilities);
        }
        let kept = filter(log_probabilities, &self.params)?;
        let key = ops::random_key(self.seed, self.draws)?;
        self.draws += 1;
        ops::categorical(&ops::scale(&kept, 1.0 / self.params.temperature)?, &key)
    }
}

/// Log-probabilities `[.., V]` with what the parameters exclude at minus infinity, in mlx-lm
/// 0.32.2's order (`sample_utils.make_sampler`): top_p, min_p, top_k, each on what the last left.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn filter(log_probabilities: &Array, params: &SamplingParams) -> Result<Array> {
    let mut kept = ops::share(log_probabilities);
    if params.top_p > 0.0 && params.top_p < 1.0 {
        kept = keep_top_p(&kept, params.top_p)?;
    }
    if params.min_p > 0.0 {
        kept = keep_min_p(&kept, params.min_p)?;
    }
    if params.top_k > 0 && (params.top_k as usize) < kept.dim(-1).unsigned_abs() as usize {
        kept = keep_top_k(&kept, params.top_k)?;
    }
    Ok(kept)
}

/// Nucleus sampling (Holtzman et al. 2019): the threshold is the last value needed to reach `top_p`
/// of the total mass; ties with it stay.
fn keep_top_p(log_probabilities: &Array, top_p: f32) -> Result<Array> {
    let sorted = ops::sort_last(log_probabilities)?;
    let probabilities = ops::exp_f32(&sorted)?;
    let mass_above = ops::sum_of_larger(&probabilities)?;
    let smallest = |array: &Array| ops::slice_axis(array, array.ndim() - 1, 0, 1);
    let total = smallest(&mass_above)?.add(smallest(&probabilities)?)?;
    let dropped = ops::count_last(&mass_above.ge(ops::scale(&total, top_p)?)?)?;
    let threshold = sorted.take_along_axis(&dropped, -1)?;
    ops::exclude(&log_probabilities.lt(&threshold)?, log_probabilities)
}

/// Keeps tokens at least `min_p` times as likely as the most likely one (Nguyen et al. 2024).
fn keep_min_p(log_probabilities: &Array, min_p: f32) -> Result<Array> {
    let threshold = ops::shift(&log_probabilities.max_axis(-1, true)?, min_p.ln())?;
    ops::exclude(&log_probabilities.lt(&threshold)?, log_probabilities)
}

/// Keeps the `top_k` largest (fewer than the vocabulary); of ties at the edge, as many as fit.
fn keep_top_k(log_probabilities: &Array, top_k: u32) -> Result<Array> {
    let vocabulary = log_probabilities.dim(-1);
    let kept = i32::try_from(top_k).unwrap_or(vocabulary);
    let order = ops::argpartition_last(&log_probabilities.negative()?, kept - 1)?;
    let losers = ops::slice_axis(&order, order.ndim() - 1, kept, vocabulary)?;
    ops::put_minus_infinity(log_probabilities, &losers)
}
