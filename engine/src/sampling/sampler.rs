//! Samplers over arrays: one per row, and the vectorized greedy path of a homogeneous batch.
//!
//! A row's draw is a function of its seed and of how many draws it made before, so its tokens do not
//! depend on who shares its batch.

use super::capture::Capture;
use super::history::History;
use super::{Sampled, SamplingParams, TokenLogprobs, Xtc, processors};
use crate::error::Result;
use crate::mlx::{Array, ops};

/// A row's way from logits to a token.
#[derive(Debug)]
pub struct Sampler {
    pub(super) params: SamplingParams,
    /// Prompt and answer, but for the token in flight.
    pub(super) history: History,
    seed: u64,
    draws: u64,
}

/// A token for each row of a batch, on the device, and what rows tell of it.
#[derive(Debug)]
pub struct Picks {
    tokens: Array,
    capture: Option<Capture>,
}

impl Sampler {
    /// A sampler for one row with this whole prompt; without a seed of its own it takes `fresh_seed`.
    pub fn new(params: SamplingParams, prompt: &[u32], fresh_seed: u64) -> Self {
        let seed = params.seed.unwrap_or(fresh_seed);
        Self { history: History::new(prompt, &params), params, seed, draws: 0 }
    }

    /// Picks one token per row from logits `[B, V]`. `in_flight` `[B]` are the tokens picked before, if
    /// they were not read yet. A batch of greedy rows is one argmax, the same for each row as its own.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn sample_rows(
        samplers: &mut [&mut Self],
        logits: &Array,
        in_flight: Option<&Array>,
    ) -> Result<Picks> {
        let together = samplers.iter().all(|sampler| sampler.params.is_greedy());
        Self::pick(samplers, logits, in_flight, together)
    }

    /// The same picks, each made by itself even if all rows are greedy.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn sample_each(
        samplers: &mut [&mut Self],
        logits: &Array,
        in_flight: Option<&Array>,
    ) -> Result<Picks> {
        Self::pick(samplers, logits, in_flight, false)
    }

    fn pick(
        samplers: &mut [&mut Self],
        logits: &Array,
        in_flight: Option<&Array>,
        together: bool,
    ) -> Result<Picks> {
        let logits = processors::process(samplers, logits, in_flight)?;
        let log_probabilities = ops::log_probabilities(&logits)?;
        let tokens = match together {
            true => ops::argmax_last(&log_probabilities)?,
            false => Self::pick_each(samplers, &log_probabilities)?,
        };
        let asked = samplers.iter().filter_map(|sampler| sampler.params.logprobs).max();
        let capture = asked.map(|top| Capture::new(&log_probabilities, &tokens, top > 0));
        Ok(Picks { tokens, capture: capture.transpose()? })
    }

    fn pick_each(samplers: &mut [&mut Self], log_probabilities: &Array) -> Result<Array> {
        let picks = samplers.iter_mut().enumerate().map(|(row, sampler)| {
            let row = ops::axis_index(row);
            sampler.sample(&ops::slice_axis(log_probabilities, 0, row, row + 1)?)
        });
        ops::concatenate_axis(&picks.collect::<Result<Vec<_>>>()?, 0)
    }

    /// What the row tells of what was captured for it.
    fn tells(&self, captured: Option<TokenLogprobs>) -> Option<Box<TokenLogprobs>> {
        let (asked, mut told) = (self.params.logprobs?, captured?);
        told.top.truncate(asked as usize);
        Some(Box::new(told))
    }

    /// `[1, V]` normalized log-probabilities to `[1]`.
    fn sample(&mut self, log_probabilities: &Array) -> Result<Array> {
        if self.params.is_greedy() {
            return ops::argmax_last(log_probabilities);
        }
        let chance = ops::random_unit(self.seed, self.draws);
        let kept = filter(log_probabilities, &self.params, chance)?;
        let key = ops::random_key(self.seed, self.draws)?;
        self.draws += 1;
        ops::categorical(&ops::scale(&kept, 1.0 / self.params.temperature)?, &key)
    }
}

impl Picks {
    /// The tokens, `[B]`, u32.
    pub fn tokens(&self) -> &Array {
        &self.tokens
    }

    /// Every array that has to be computed before they can be read.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        std::iter::once(&self.tokens).chain(self.capture.iter().flat_map(Capture::arrays))
    }

    /// The picks of the rows `keep`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn rows(&self, keep: &[usize]) -> Result<Self> {
        let keep: Vec<i32> = keep.iter().map(|row| ops::axis_index(*row)).collect();
        let capture = self.capture.as_ref().map(|capture| capture.rows(&keep));
        Ok(Self { tokens: ops::take_rows(&self.tokens, &keep)?, capture: capture.transpose()? })
    }

    /// Waits for the tokens and tells each row's sampler of its own. The rows must be those that were
    /// picked for.
    ///
    /// # Errors
    /// `EngineFailed` when the evaluation failed.
    pub fn read(&self, samplers: &mut [&mut Sampler]) -> Result<Vec<Sampled>> {
        let tokens = ops::read_u32(&self.tokens)?;
        let captured = self.capture.as_ref().map(Capture::read).transpose()?;
        let mut captured = captured.into_iter().flatten();
        let told = |(sampler, token): (&mut &mut Sampler, u32)| {
            sampler.history.push(token);
            Sampled { token, logprobs: sampler.tells(captured.next()) }
        };
        Ok(samplers.iter_mut().zip(tokens).map(told).collect())
    }
}

/// Log-probabilities `[.., V]` with what the parameters exclude at minus infinity, in mlx-lm
/// 0.32.2's order (`sample_utils.make_sampler`): top_p, min_p, XTC, top_k, each on what the last left.
/// `chance`, from 0 to 1, decides whether XTC acts.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn filter(log_probabilities: &Array, params: &SamplingParams, chance: f32) -> Result<Array> {
    let mut kept = ops::share(log_probabilities);
    if params.top_p > 0.0 && params.top_p < 1.0 {
        kept = keep_top_p(&kept, params.top_p)?;
    }
    if params.min_p > 0.0 {
        kept = keep_min_p(&kept, params.min_p)?;
    }
    if params.xtc.probability > 0.0 && chance <= params.xtc.probability {
        kept = drop_top_choices(&kept, &params.xtc)?;
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
