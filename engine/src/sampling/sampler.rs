//! Samplers over arrays: one per row, and picks for a batch in as few operations as its rows allow.
//!
//! A row's draw is a function of its seed and of how many draws it made before, so its tokens do not
//! depend on who shares its batch.

use super::capture::Capture;
use super::filters::Filters;
use super::history::History;
use super::{Sampled, SamplingParams, TokenLogprobs, processors};
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
    /// they were not read yet. Rows that are filtered alike are picked for together, so a batch of plain
    /// greedy rows is one argmax.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn sample_rows(
        samplers: &mut [&mut Self],
        logits: &Array,
        in_flight: Option<&Array>,
    ) -> Result<Picks> {
        Self::pick(samplers, logits, in_flight, true)
    }

    /// The same picks, each made by itself.
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
        let draws: Vec<Option<Draw>> = samplers.iter_mut().map(|sampler| sampler.draw()).collect();
        let tokens = draw_rows(&draws, &log_probabilities, together)?;
        let asked = samplers.iter().filter_map(|sampler| sampler.params.logprobs).max();
        let capture = asked.map(|top| Capture::new(&log_probabilities, &tokens, top > 0));
        Ok(Picks { tokens, capture: capture.transpose()? })
    }

    /// Tokens `[C]` for the places of a canvas from its logits `[1, C, V]`, the most likely of which are
    /// `best` `[C]`. Each place is a draw.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn propose(&mut self, logits: &Array, best: &Array) -> Result<Array> {
        if self.params.is_greedy() {
            return Ok(ops::share(best));
        }
        let places = logits.reshape(&[logits.dim(-2), logits.dim(-1)])?;
        let draws: Vec<Option<Draw>> = (0..places.dim(0)).map(|_| self.draw()).collect();
        draw_rows(&draws, &ops::log_probabilities(&places)?, true)
    }

    /// The row's next draw; none when it takes the most likely token.
    fn draw(&mut self) -> Option<Draw> {
        if self.params.is_greedy() {
            return None;
        }
        let (seed, index) = (self.seed, self.draws);
        self.draws += 1;
        let filters = Filters::new(&self.params, ops::random_unit(seed, index));
        Some(Draw { filters, sharpness: 1.0 / self.params.temperature, seed, index })
    }

    /// What the row tells of what was captured for it.
    fn tells(&self, captured: Option<TokenLogprobs>) -> Option<Box<TokenLogprobs>> {
        let (asked, mut told) = (self.params.logprobs?, captured?);
        told.top.truncate(asked as usize);
        Some(Box::new(told))
    }
}

/// How one row's token is drawn.
#[derive(Debug)]
struct Draw {
    filters: Filters,
    /// One over the temperature.
    sharpness: f32,
    seed: u64,
    index: u64,
}

/// A token `[B]` for each row of log-probabilities `[B, V]`. Rows that are filtered alike are drawn
/// `together` if that is wished.
fn draw_rows(draws: &[Option<Draw>], log_probabilities: &Array, together: bool) -> Result<Array> {
    let groups = match together {
        true => alike(draws),
        false => (0..draws.len()).map(|row| vec![row]).collect(),
    };
    if let [all] = &groups[..] {
        return draw_group(
            &all.iter().map(|row| &draws[*row]).collect::<Vec<_>>(),
            log_probabilities,
        );
    }
    let picks = groups.iter().map(|group| {
        let rows = ops::take_rows(log_probabilities, &axis_indices(group))?;
        draw_group(&group.iter().map(|row| &draws[*row]).collect::<Vec<_>>(), &rows)
    });
    let picks = ops::concatenate_axis(&picks.collect::<Result<Vec<_>>>()?, 0)?;
    ops::take_rows(&picks, &axis_indices(&places(&groups)))
}

/// Rows by their filters; greedy ones, which have none, are one group.
fn alike(draws: &[Option<Draw>]) -> Vec<Vec<usize>> {
    let filters = |row: usize| draws[row].as_ref().map(|draw| &draw.filters);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for row in 0..draws.len() {
        match groups.iter_mut().find(|group| filters(group[0]) == filters(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// For each row, where it stands in the groups, one after the other.
fn places(groups: &[Vec<usize>]) -> Vec<usize> {
    let mut placed: Vec<(usize, usize)> = groups.iter().flatten().copied().zip(0..).collect();
    placed.sort_unstable();
    placed.into_iter().map(|(_, place)| place).collect()
}

/// Tokens `[b]` for rows `[b, V]` that are filtered alike, by the Gumbel trick: the largest of the
/// log-probabilities over the temperature, each with a Gumbel number added, is a draw from their softmax
/// (Maddison et al. 2014).
fn draw_group(draws: &[&Option<Draw>], log_probabilities: &Array) -> Result<Array> {
    let draws: Vec<&Draw> = draws.iter().filter_map(|draw| draw.as_ref()).collect();
    let Some(first) = draws.first() else {
        return ops::argmax_last(log_probabilities);
    };
    let kept = first.filters.keep(log_probabilities)?;
    let sharpness: Vec<f32> = draws.iter().map(|draw| draw.sharpness).collect();
    let sharpness = ops::vector(&sharpness, kept.dtype())?.reshape(&[-1, 1])?;
    let keys: Vec<(u64, u64)> = draws.iter().map(|draw| (draw.seed, draw.index)).collect();
    let gumbel = ops::gumbel(&keys, kept.dim(-1))?;
    ops::argmax_last(&kept.multiply(&sharpness)?.add(&gumbel)?)
}

fn axis_indices(rows: &[usize]) -> Vec<i32> {
    rows.iter().map(|row| ops::axis_index(*row)).collect()
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
        let keep = axis_indices(keep);
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
