//! The stack that most families are: an embedding, blocks of attention and feed-forward around a
//! residual stream, a norm, a head. What differs between them is in the parts.

use super::{AttentionShape, Embedding, FeedForward, Linear, Mixer, RmsNorm};
use crate::cache::{CacheSet, Positions, TokenShape, Window};
use crate::error::Result;
use crate::mlx::{Array, ops};
use crate::model::{Model, ModelConfig};

/// A decoder-only transformer.
#[derive(Debug)]
pub struct Decoder {
    /// Tokens to vectors.
    pub embedding: Embedding,
    /// In order.
    pub blocks: Vec<Block>,
    /// Before the head.
    pub norm: RmsNorm,
    /// `None` when the embedding is the head too.
    pub head: Option<Linear>,
    /// Logits stay within plus and minus this, softly (Gemma 2).
    pub logit_cap: Option<f32>,
    /// How large logits are made.
    pub logit_scale: LogitScale,
}

/// How large logits are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitScale {
    /// As the head makes them.
    Plain,
    /// From hidden states divided by this (MiniCPM).
    OfDividedInput(f32),
    /// Divided by this (Granite).
    Divided(f32),
}

/// Attention, then feed-forward, each added to what came in.
#[derive(Debug)]
pub struct Block {
    /// How far it sees; `None` is everything.
    pub window: Option<Window>,
    /// Before attention.
    pub attention_norm: Option<RmsNorm>,
    /// The attention, or what a family has in its place.
    pub attention: Mixer,
    /// After attention, before the sum.
    pub attended_norm: Option<RmsNorm>,
    /// Before the feed-forward block.
    pub mlp_norm: Option<RmsNorm>,
    /// The feed-forward block.
    pub mlp: FeedForward,
    /// After the feed-forward block, before the sum.
    pub fed_norm: Option<RmsNorm>,
    /// How sums are taken.
    pub residual: Residual,
}

/// How a block's result is added to what came in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Residual {
    /// As it is.
    Plain,
    /// Times this (Granite, MiniCPM).
    Scaled(f32),
    /// f16 sums stop at the greatest finite number (Gemma 3).
    Finite,
}

/// The sizes that a decoder's parts need.
#[derive(Debug, Clone, Copy)]
pub struct DecoderSizes {
    /// Heads and their widths.
    pub attention: AttentionShape,
    /// Width inside the feed-forward blocks.
    pub intermediate: i32,
    /// Tokens that the embedding knows.
    pub vocabulary: i32,
    /// How many blocks there are.
    pub layers: i32,
    /// What norms add under the root.
    pub epsilon: f32,
}

impl DecoderSizes {
    /// Under the names that most checkpoints use.
    ///
    /// # Errors
    /// `BadModel` when one is missing or no count.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        Ok(Self {
            attention: AttentionShape::of_config(config)?,
            intermediate: config.count("intermediate_size")?,
            vocabulary: config.count("vocab_size")?,
            layers: config.count("num_hidden_layers")?,
            epsilon: config.number("rms_norm_eps")?,
        })
    }

    /// Vocabulary and width: the shape of the embedding and of the head.
    pub fn table(&self) -> (i32, i32) {
        (self.vocabulary, self.attention.hidden)
    }
}

impl Model for Decoder {
    fn new_caches(&self) -> CacheSet {
        let layers = self.blocks.iter().map(|block| block.attention.new_cache(block.window));
        CacheSet::solo(layers.collect())
    }

    fn token_shapes(&self) -> Vec<Option<TokenShape>> {
        self.blocks.iter().map(|block| block.attention.token_shape()).collect()
    }

    fn hidden(&self, tokens: &Array, caches: &mut CacheSet) -> Result<Array> {
        let count = tokens.dim(1).unsigned_abs() as usize;
        let positions = caches.positions(count)?;
        let mut x = self.embedding.forward(tokens)?;
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &positions, caches, index)?;
        }
        caches.advance(count);
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        let logits = match self.logit_scale {
            LogitScale::Plain => self.head_forward(hidden)?,
            LogitScale::OfDividedInput(by) => self.head_forward(&ops::divide(hidden, by)?)?,
            LogitScale::Divided(by) => ops::divide(&self.head_forward(hidden)?, by)?,
        };
        match self.logit_cap {
            Some(cap) => ops::soft_cap(&logits, cap),
            None => Ok(logits),
        }
    }
}

impl Decoder {
    fn head_forward(&self, hidden: &Array) -> Result<Array> {
        match &self.head {
            Some(head) => head.forward(hidden),
            None => self.embedding.as_head(hidden),
        }
    }
}

impl Block {
    fn forward(
        &self,
        x: &Array,
        positions: &Positions,
        caches: &mut CacheSet,
        index: usize,
    ) -> Result<Array> {
        let input = normed(self.attention_norm.as_ref(), ops::share(x))?;
        let attended = self.attention.forward(&input, positions, caches, index)?;
        let x = self.residual.add(x, &normed(self.attended_norm.as_ref(), attended)?)?;
        let fed = self.mlp.forward(&normed(self.mlp_norm.as_ref(), ops::share(&x))?)?;
        self.residual.add(&x, &normed(self.fed_norm.as_ref(), fed)?)
    }
}

impl Residual {
    fn add(self, x: &Array, result: &Array) -> Result<Array> {
        match self {
            Self::Plain => Ok(x.add(result)?),
            Self::Scaled(factor) => Ok(x.add(ops::scale(result, factor)?)?),
            Self::Finite => ops::add_finite(x, result),
        }
    }
}

fn normed(norm: Option<&RmsNorm>, x: Array) -> Result<Array> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx::{Device, Dtype};

    #[test]
    fn only_finite_sums_of_f16_stop_at_its_greatest_number() {
        Device::cpu();
        let sum = |residual: Residual, dtype| {
            let values = Array::from_slice(&[60_000.0_f32, -60_000.0, 1.5], &[3]);
            let values = values.as_dtype(dtype).unwrap();
            ops::read_f32(&residual.add(&values, &values).unwrap()).unwrap()
        };
        assert_eq!(sum(Residual::Finite, Dtype::Float16), [65_504.0, -65_504.0, 3.0]);
        assert_eq!(sum(Residual::Finite, Dtype::Float32), [120_000.0, -120_000.0, 3.0]);
        let infinite = [f32::INFINITY, f32::NEG_INFINITY, 3.0];
        assert_eq!(sum(Residual::Plain, Dtype::Float16), infinite);
    }
}
