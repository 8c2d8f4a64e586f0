//! Filters over log-probabilities: what may be drawn and what not.

use super::{SamplingParams, Xtc};
use crate::error::Result;
use crate::mlx::{Array, ops};

/// The filters of one draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Filters {
    /// Off at 0 and 1.
    top_p: f32,
    /// Off at 0.
    min_p: f32,
    /// None when it does not act on this draw.
    xtc: Option<Xtc>,
    /// Off at 0.
    top_k: u32,
}

impl Filters {
    /// The filters of `params`; `chance`, from 0 to 1, decides whether XTC acts.
    pub fn new(params: &SamplingParams, chance: f32) -> Self {
        let SamplingParams { top_p, min_p, top_k, ref xtc, .. } = *params;
        let acts = xtc.probability > 0.0 && chance <= xtc.probability;
        Self { top_p, min_p, xtc: acts.then(|| xtc.clone()), top_k }
    }

    /// Log-probabilities `[.., V]` with what is excluded at minus infinity, in mlx-lm 0.32.2's order
    /// (`sample_utils.make_sampler`): top_p, min_p, XTC, top_k, each on what the last left.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn keep(&self, log_probabilities: &Array) -> Result<Array> {
        let mut kept = ops::share(log_probabilities);
        if self.top_p > 0.0 && self.top_p < 1.0 {
            kept = keep_top_p(&kept, self.top_p)?;
        }
        if self.min_p > 0.0 {
            kept = keep_min_p(&kept, self.min_p)?;
        }
        if let Some(xtc) = &self.xtc {
            kept = drop_top_choices(&kept, xtc)?;
        }
        if self.top_k > 0 && (self.top_k as usize) < kept.dim(-1).unsigned_abs() as usize {
            kept = keep_top_k(&kept, self.top_k)?;
        }
        Ok(kept)
    }
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

/// Drops all tokens above the threshold but the least likely of them, and none that is exempt. What was
/// filtered before counts for nothing: the probabilities are those of the rest.
fn drop_top_choices(log_probabilities: &Array, xtc: &Xtc) -> Result<Array> {
    let probabilities = ops::probabilities(log_probabilities)?;
    let least = ops::least_above(&probabilities, xtc.threshold)?;
    let kept = ops::exclude(&probabilities.gt(&least)?, log_probabilities)?;
    if xtc.exempt.is_empty() {
        return Ok(kept);
    }
    let exempt = ops::token_matrix(&xtc.exempt, 1);
    ops::put_back(&kept, &exempt, log_probabilities)
}

/// Keeps the `top_k` largest (fewer than the vocabulary); of ties at the edge, as many as fit.
fn keep_top_k(log_probabilities: &Array, top_k: u32) -> Result<Array> {
    let vocabulary = log_probabilities.dim(-1);
    let kept = i32::try_from(top_k).unwrap_or(vocabulary);
    let order = ops::argpartition_last(&log_probabilities.negative()?, kept - 1)?;
    let losers = ops::slice_axis(&order, order.ndim() - 1, kept, vocabulary)?;
    ops::put_minus_infinity(log_probabilities, &losers)
}
