//! The decoder that most dense families are: an architecture describes it, and it loads and runs.
//!
//! Words: a **sublayer** is attention or the feed-forward block with its norms; its **branch** is what
//! it adds to the residual stream.

use super::{Attention, AttentionOptions, Embedding, Gating, Linear, Mlp, QueryScale, RmsNorm};
use crate::cache::{
    CacheSet, FullCache, LayerCache, LayerSlot, Positions, RotatingCache, TokenShape, Window,
};
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::{Model, ModelConfig};

/// A decoder as an architecture describes it. [`DecoderSpec::of_config`] is the plain one.
#[derive(Debug)]
pub struct DecoderSpec {
    /// Width of the residual stream.
    pub hidden: i32,
    /// Width of the feed-forward block.
    pub intermediate: i32,
    /// Size of the logits.
    pub vocabulary: i32,
    /// Added to the mean square in every norm.
    pub epsilon: f32,
    /// The layers, from the embedding on.
    pub layers: Vec<LayerSpec>,
    /// Where a sublayer's norm stands.
    pub norms: NormPlacement,
    /// How the feed-forward block's input becomes gate and value.
    pub gating: Gating,
    /// What makes the logits.
    pub head: HeadSource,
    /// Factors along the way.
    pub factors: Factors,
    /// What queries are scaled by according to their positions.
    pub query_scale: Option<QueryScale>,
}

/// One layer.
#[derive(Debug, Clone)]
pub struct LayerSpec {
    /// How far it sees; `None` is everything.
    pub window: Option<Window>,
    /// Its attention.
    pub attention: AttentionOptions,
}

/// Where a sublayer's norm stands, and what it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// On the sublayer's input: `input_layernorm`, `post_attention_layernorm`.
    Before,
    /// On the branch: `post_attention_layernorm`, `post_feedforward_layernorm`.
    After,
}

/// What makes the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadSource {
    /// The embedding's table.
    Embedding,
    /// `lm_head`.
    Own,
    /// `lm_head` where there is one, else the embedding's table.
    OwnIfPresent,
}

/// Factors along the way; 1 is none.
#[derive(Debug, Clone, Copy)]
pub struct Factors {
    /// Of the embedded tokens.
    pub embedding: f32,
    /// Of each branch.
    pub branch: f32,
    /// What the head's input is divided by.
    pub head_input_divisor: f32,
    /// What the logits are divided by.
    pub logits_divisor: f32,
}

impl Factors {
    /// All 1.
    pub const NONE: Self =
        Self { embedding: 1.0, branch: 1.0, head_input_divisor: 1.0, logits_divisor: 1.0 };
}

impl DecoderSpec {
    /// Norms before separate projections, without factors; `tied` says whether `tie_word_embeddings`
    /// is on where the config does not say.
    ///
    /// # Errors
    /// `BadModel` when a field is missing or of another kind.
    pub fn of_config(config: &ModelConfig, layers: Vec<LayerSpec>, tied: bool) -> Result<Self> {
        Ok(Self {
            hidden: config.count("hidden_size")?,
            intermediate: config.count("intermediate_size")?,
            vocabulary: config.count("vocab_size")?,
            epsilon: config.number("rms_norm_eps")?,
            layers,
            norms: NormPlacement::Before,
            gating: Gating::Separate,
            head: match config.flag("tie_word_embeddings", tied)? {
                true => HeadSource::Embedding,
                false => HeadSource::Own,
            },
            factors: Factors::NONE,
            query_scale: None,
        })
    }
}

/// A decoder with its weights.
#[derive(Debug)]
pub struct Decoder {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Option<Linear>,
    factors: Factors,
    query_scale: Option<QueryScale>,
}

#[derive(Debug)]
struct Block {
    window: Option<Window>,
    attention: Attention,
    mlp: Mlp,
    norms: Norms,
    factor: f32,
}

#[derive(Debug)]
struct Norms {
    placement: NormPlacement,
    attention: RmsNorm,
    mlp: RmsNorm,
}

impl Decoder {
    /// Takes the weights of the decoder that `spec` describes.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(config: &ModelConfig, weights: &mut Weights, spec: &DecoderSpec) -> Result<Self> {
        let table = (spec.vocabulary, spec.hidden);
        let own_head = match spec.head {
            HeadSource::Embedding => false,
            HeadSource::Own => true,
            HeadSource::OwnIfPresent => weights.contains("lm_head.weight"),
        };
        let blocks = spec.layers.iter().enumerate().map(|(index, layer)| {
            Block::load(config, weights, &format!("model.layers.{index}"), (spec, layer))
        });
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            embedding: Embedding::load(weights, config, "model.embed_tokens", table)?,
            norm: RmsNorm::load(weights, "model.norm", spec.hidden, spec.epsilon)?,
            head: own_head.then(|| Linear::load(weights, config, "lm_head", table)).transpose()?,
            factors: spec.factors,
            query_scale: spec.query_scale,
        })
    }
}

impl Model for Decoder {
    fn new_caches(&self) -> CacheSet {
        let layer = |block: &Block| match block.window {
            None => LayerCache::Full(FullCache::new()),
            Some(window) => LayerCache::Rotating(RotatingCache::new(window)),
        };
        CacheSet::solo(self.blocks.iter().map(layer).collect())
    }

    fn token_shapes(&self) -> Vec<Option<TokenShape>> {
        self.blocks.iter().map(|block| Some(block.attention.token_shape())).collect()
    }

    fn hidden(&self, tokens: &Array, caches: &mut CacheSet) -> Result<Array> {
        let count = tokens.dim(1);
        let positions = caches.positions(count.unsigned_abs() as usize)?;
        let mut x = scaled(self.embedding.forward(tokens)?, self.factors.embedding)?;
        let query_scale = self.query_scale.map(|own| own.at(&positions.offset, count, x.dtype()));
        let query_scale = query_scale.transpose()?;
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &positions, query_scale.as_ref(), caches.layer(index))?;
        }
        caches.advance(count.unsigned_abs() as usize);
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        let hidden = divided(ops::share(hidden), self.factors.head_input_divisor)?;
        let logits = match &self.head {
            Some(head) => head.forward(&hidden),
            None => self.embedding.as_head(&hidden),
        };
        divided(logits?, self.factors.logits_divisor)
    }
}

impl Block {
    fn load(
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        (spec, layer): (&DecoderSpec, &LayerSpec),
    ) -> Result<Self> {
        let at = |name: &str| format!("{path}.{name}");
        let sizes = (spec.hidden, spec.intermediate);
        Ok(Self {
            window: layer.window,
            attention: Attention::load(weights, config, &at("self_attn"), &layer.attention)?,
            mlp: Mlp::load(weights, config, &at("mlp"), sizes, spec.gating)?,
            norms: Norms::load(weights, path, spec)?,
            factor: spec.factors.branch,
        })
    }

    fn forward(
        &self,
        x: &Array,
        positions: &Positions,
        query_scale: Option<&Array>,
        cache: LayerSlot<'_>,
    ) -> Result<Array> {
        let attend = |x: &Array| self.attention.forward(x, positions, query_scale, cache);
        let x = self.add_branch(x, &self.norms.attention, attend)?;
        self.add_branch(&x, &self.norms.mlp, |x| self.mlp.forward(x))
    }

    fn add_branch(
        &self,
        x: &Array,
        norm: &RmsNorm,
        sublayer: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        let branch = match self.norms.placement {
            NormPlacement::Before => sublayer(&norm.forward(x)?)?,
            NormPlacement::After => norm.forward(&sublayer(x)?)?,
        };
        Ok(x.add(scaled(branch, self.factor)?)?)
    }
}

impl Norms {
    fn load(weights: &mut Weights, path: &str, spec: &DecoderSpec) -> Result<Self> {
        let mut norm = |name: &str| {
            RmsNorm::load(weights, &format!("{path}.{name}"), spec.hidden, spec.epsilon)
        };
        let (attention, mlp) = match spec.norms {
            NormPlacement::Before => ("input_layernorm", "post_attention_layernorm"),
            NormPlacement::After => ("post_attention_layernorm", "post_feedforward_layernorm"),
        };
        Ok(Self { placement: spec.norms, attention: norm(attention)?, mlp: norm(mlp)? })
    }
}

fn scaled(x: Array, factor: f32) -> Result<Array> {
    if factor == 1.0 { Ok(x) } else { ops::scale(&x, factor) }
}

fn divided(x: Array, divisor: f32) -> Result<Array> {
    if divisor == 1.0 { Ok(x) } else { ops::divide(&x, divisor) }
}
