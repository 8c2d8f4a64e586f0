//! A row that writes block by block, on the device: it denoises a canvas forward by forward, and reads
//! it like a prompt before the next one begins.
//!
//! A step is one forward, so a client that leaves is noticed between two of them. The last canvas of a
//! row is never read: nothing comes after it.

use std::time::Duration;

use super::canvas::{Canvas, Finding, Measure};
use super::executor::Sampled;
use crate::cache::{CacheSet, KvScheme};
use crate::clock::Clock;
use crate::error::Result;
use crate::mlx::{Array, canvas as arrays, ops};
use crate::model::{Acceptance, BlockDiffusion, Denoising, Model};
use crate::sampling::{NoiseAt, NoiseSource, Sampler};

/// One forward over a canvas.
#[derive(Debug)]
pub struct CanvasForward<'forward> {
    /// The row's id.
    pub id: &'forward str,
    /// The tokens that the forward saw.
    pub canvas: &'forward [u32],
    /// Its logits `[1, C, V]`, not over their temperature.
    pub logits: &'forward Array,
    /// The most likely token of each place.
    pub best: &'forward [u32],
    /// The places that were accepted after it, ascending; none after the last one that a canvas may have.
    pub accepted: &'forward [usize],
}

/// Sees every forward over a canvas.
pub type CanvasObserver = Box<dyn FnMut(&CanvasForward<'_>)>;

/// What of the executor a step takes.
pub(super) struct Ground<'executor> {
    pub(super) model: &'executor dyn Model,
    pub(super) blocks: &'executor dyn BlockDiffusion,
    pub(super) denoising: &'executor Denoising,
    pub(super) scheme: &'executor KvScheme,
    pub(super) observer: Option<&'executor mut CanvasObserver>,
    pub(super) clock: &'executor Clock,
    /// The part of the step in which the host only waited for the device.
    pub(super) waited: Duration,
}

/// See the module's words.
#[derive(Debug)]
pub(super) struct BlockRow {
    pub(super) id: String,
    pub(super) sampler: Sampler,
    pub(super) caches: CacheSet,
    pub(super) writing: Writing,
}

/// What is written of a row, and what comes next.
#[derive(Debug)]
pub(super) struct Writing {
    noise: Box<dyn NoiseSource>,
    wanted_tokens: usize,
    finished_blocks: u64,
    now: Now,
}

#[derive(Debug)]
enum Now {
    /// Before the first canvas.
    Begun,
    /// Denoising. The guess is the last forward's.
    Denoising { canvas: Canvas, guess: Option<Array> },
    /// Between canvases: these tokens are said and not read.
    Finished(Vec<u32>),
}

/// What a forward brought, on the host but for the logits.
struct Look {
    /// Over their temperature.
    scaled: Array,
    best_array: Array,
    best: Vec<u32>,
}

impl Ground<'_> {
    /// Runs `call`, in which the host waits.
    fn wait<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let began = self.clock.now();
        let result = call();
        self.waited += self.clock.now().saturating_sub(began);
        result
    }
}

impl Writing {
    /// Nothing is written of `wanted_tokens`.
    pub(super) fn new(noise: Box<dyn NoiseSource>, wanted_tokens: usize) -> Self {
        Self { noise, wanted_tokens, finished_blocks: 0, now: Now::Begun }
    }

    /// Noise for a canvas of `tokens` places with `forwards` behind it.
    fn draw(&mut self, ground: &Ground<'_>, tokens: usize, forwards: u32) -> Vec<u32> {
        let (block, forward) = (self.finished_blocks, u64::from(forwards));
        let vocabulary = ground.blocks.vocabulary();
        self.noise.draw(NoiseAt { block, forward, tokens, vocabulary })
    }
}

impl BlockRow {
    /// Runs one forward and returns the tokens of the canvas if that finished it.
    pub(super) fn step(&mut self, ground: &mut Ground<'_>) -> Result<Vec<Sampled>> {
        let (mut canvas, guess) = self.canvas(ground)?;
        let seen = canvas.tokens().to_vec();
        let inputs = ops::token_matrix(&seen, 1);
        let logits = ground.blocks.canvas_logits(&inputs, guess.as_ref(), &self.caches)?;
        let temperature = ground.denoising.temperature_at(canvas.forwards());
        let look = ground.wait(|| Look::at(&logits, temperature))?;
        let (accepted, finished) = match canvas.is_at_last(ground.denoising) {
            true => (Vec::new(), true),
            false => self.accept(ground, &mut canvas, &look)?,
        };
        if let Some(observer) = &mut ground.observer {
            let (id, canvas, best) = (self.id.as_str(), &seen, &look.best);
            observer(&CanvasForward { id, canvas, logits: &logits, best, accepted: &accepted });
        }
        if !finished {
            self.writing.now = Now::Denoising { canvas, guess: Some(look.scaled) };
            return Ok(Vec::new());
        }
        let tokens = look.best.iter().map(|token| Sampled::from(*token)).collect();
        self.finish(look.best);
        Ok(tokens)
    }

    /// The canvas to go on with. A new one begins once what was said before it is read.
    fn canvas(&mut self, ground: &mut Ground<'_>) -> Result<(Canvas, Option<Array>)> {
        match std::mem::replace(&mut self.writing.now, Now::Begun) {
            Now::Denoising { canvas, guess } => return Ok((canvas, guess)),
            Now::Begun => {}
            Now::Finished(said) => {
                ground.model.hidden(&ops::token_matrix(&said, 1), &mut self.caches)?;
                self.caches.convert(ground.scheme)?;
                ground.wait(|| ops::evaluate(self.caches.arrays()))?;
            }
        }
        let tokens = ground.denoising.canvas.of(self.writing.wanted_tokens);
        Ok((Canvas::new(self.writing.draw(ground, tokens, 0)), None))
    }

    /// Accepts what the forward found; says which places, and whether the canvas is finished.
    fn accept(
        &mut self,
        ground: &Ground<'_>,
        canvas: &mut Canvas,
        look: &Look,
    ) -> Result<(Vec<usize>, bool)> {
        let proposed_array = self.sampler.propose(&look.scaled, &look.best_array)?;
        let proposed = ops::read_u32(&proposed_array)?;
        let rule = ground.denoising.acceptance;
        let measure = match rule {
            Acceptance::EntropyBound(_) => {
                Measure::Entropies(ops::read_f32(&arrays::entropies(&look.scaled)?)?)
            }
            Acceptance::Confident(_) => Measure::Probabilities(ops::read_f32(
                &arrays::probabilities_of(&look.scaled, &proposed_array)?,
            )?),
        };
        let mean_entropy = || match &measure {
            Measure::Entropies(entropies) => Ok(mean(entropies)),
            Measure::Probabilities(_) => {
                Ok(mean(&ops::read_f32(&arrays::entropies(&look.scaled)?)?))
            }
        };
        let noise = self.writing.draw(ground, proposed.len(), canvas.forwards() + 1);
        let finding = Finding { proposed: &proposed, measure: measure.clone() };
        let accepted = canvas.accept(&finding, rule, &noise);
        let finished = canvas.is_finished(&look.best, ground.denoising, mean_entropy)?;
        Ok((accepted, finished))
    }

    fn finish(&mut self, said: Vec<u32>) {
        self.writing.wanted_tokens = self.writing.wanted_tokens.saturating_sub(said.len());
        self.writing.finished_blocks += 1;
        self.writing.now = Now::Finished(said);
    }
}

impl Look {
    /// `[1, C, V]`.
    fn at(logits: &Array, temperature: f32) -> Result<Self> {
        let shape = [logits.dim(1), logits.dim(2)];
        let scaled = ops::divide(logits, temperature)?;
        let best_array = ops::argmax_last(&scaled.reshape(&shape)?)?;
        let best = ops::read_u32(&best_array)?;
        Ok(Self { scaled, best_array, best })
    }
}

fn mean(numbers: &[f32]) -> f32 {
    numbers.iter().sum::<f32>() / numbers.len().max(1) as f32
}
