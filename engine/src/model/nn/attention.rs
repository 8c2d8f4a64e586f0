//! Grouped-query attention with rotary positions and a cache.

use super::attend::{Scoring, attend};
use super::{Linear, RmsNorm, Rope};
use crate::cache::{LayerSlot, Positions, TokenShape};
use crate::error::Result;
use crate::mlx::{Array, Weights};
use crate::model::ModelConfig;

/// Heads and sizes of an attention block.
#[derive(Debug, Clone, Copy)]
pub struct AttentionShape {
    /// Width of the residual stream.
    pub hidden: i32,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads; divides `heads` (Ainslie et al. 2023).
    pub kv_heads: i32,
    /// Width of one head.
    pub head_dimension: i32,
}

/// What differs between families in how queries meet keys.
#[derive(Debug)]
pub struct AttentionOptions {
    /// How queries and keys turn.
    pub rope: Rope,
    /// What their products are multiplied by.
    pub scale: f32,
    /// Scores stay within plus and minus this, softly, before the mask (Gemma 2).
    pub score_cap: Option<f32>,
    /// Norms of each head's queries and keys, before they turn.
    pub head_norms: Option<HeadNorms>,
}

/// See [`AttentionOptions::head_norms`].
#[derive(Debug)]
pub struct HeadNorms {
    /// Over the queries' head dimension.
    pub query: RmsNorm,
    /// Over the keys' head dimension.
    pub key: RmsNorm,
}

impl AttentionOptions {
    /// The usual ones: the config's rotary embedding, `1 / sqrt(head_dimension)`, nothing more.
    ///
    /// # Errors
    /// As [`Rope::of_config`].
    pub fn of_config(config: &ModelConfig, head_dimension: i32) -> Result<Self> {
        Ok(Self {
            rope: Rope::of_config(config, head_dimension)?,
            scale: (head_dimension as f32).powf(-0.5),
            score_cap: None,
            head_norms: None,
        })
    }
}

/// `o(softmax(rope(q) rope(k)^T / sqrt(d)) v)`, with what [`AttentionOptions`] add.
#[derive(Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    shape: AttentionShape,
    options: AttentionOptions,
}

impl Attention {
    /// Takes `path.{q_proj,k_proj,v_proj,o_proj}`, biases included, with the usual options.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        shape: AttentionShape,
    ) -> Result<Self> {
        let options = AttentionOptions::of_config(config, shape.head_dimension)?;
        Self::load_with(weights, config, path, shape, options)
    }

    /// The same with other options.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load_with(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        shape: AttentionShape,
        options: AttentionOptions,
    ) -> Result<Self> {
        let AttentionShape { hidden, heads, kv_heads, head_dimension } = shape;
        let mut part =
            |name: &str, shape| Linear::load(weights, config, &format!("{path}.{name}"), shape);
        Ok(Self {
            query: part("q_proj", (heads * head_dimension, hidden))?,
            key: part("k_proj", (kv_heads * head_dimension, hidden))?,
            value: part("v_proj", (kv_heads * head_dimension, hidden))?,
            output: part("o_proj", (hidden, heads * head_dimension))?,
            shape,
            options,
        })
    }

    /// What its cache keeps of one token.
    pub fn token_shape(&self) -> TokenShape {
        let dimension = u64::from(self.shape.head_dimension.unsigned_abs());
        TokenShape {
            heads: u64::from(self.shape.kv_heads.unsigned_abs()),
            key_dimension: dimension,
            value_dimension: dimension,
        }
    }

    /// Applies the block to `[B, L, hidden]`, writing the layer's cache.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array, positions: &Positions, cache: LayerSlot<'_>) -> Result<Array> {
        let AttentionShape { heads, kv_heads, .. } = self.shape;
        let AttentionOptions { rope, scale, score_cap, head_norms } = &self.options;
        let mut queries = self.split_heads(&self.query.forward(x)?, heads)?;
        let mut keys = self.split_heads(&self.key.forward(x)?, kv_heads)?;
        let values = self.split_heads(&self.value.forward(x)?, kv_heads)?;
        if let Some(norms) = head_norms {
            queries = norms.query.forward(&queries)?;
            keys = norms.key.forward(&keys)?;
        }
        let queries = rope.forward(&queries, &positions.offset)?;
        let keys = rope.forward(&keys, &positions.offset)?;
        let mask = cache.mask(positions)?;
        let seen = cache.update(keys, values)?;
        let scoring = Scoring { scale: *scale, cap: *score_cap, mask };
        let attended = attend(&queries, &seen, scoring)?;
        self.output.forward(&self.merge_heads(&attended)?)
    }

    /// `[B, L, heads * D]` to `[B, heads, L, D]`.
    fn split_heads(&self, x: &Array, heads: i32) -> Result<Array> {
        let (rows, tokens, dimension) = (x.dim(0), x.dim(1), self.shape.head_dimension);
        if tokens == 1 {
            return Ok(x.reshape(&[rows, heads, 1, dimension])?);
        }
        Ok(x.reshape(&[rows, tokens, heads, dimension])?.transpose_axes(&[0, 2, 1, 3])?)
    }

    /// `[B, heads, L, D]` to `[B, L, heads * D]`.
    fn merge_heads(&self, x: &Array) -> Result<Array> {
        let (rows, tokens) = (x.dim(0), x.dim(2));
        let width = self.shape.heads * self.shape.head_dimension;
        if tokens == 1 {
            return Ok(x.reshape(&[rows, 1, width])?);
        }
        Ok(x.transpose_axes(&[0, 2, 1, 3])?.reshape(&[rows, tokens, width])?)
    }
}
