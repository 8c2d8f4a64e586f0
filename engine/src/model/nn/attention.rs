//! Grouped-query attention with rotary positions and a cache.

use super::attend::attend;
use super::{Linear, Rope};
use crate::cache::{LayerSlot, Positions};
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

impl AttentionShape {
    /// Numbers in one token's keys and values.
    pub fn token_elements(&self) -> u64 {
        2 * u64::from(self.kv_heads.unsigned_abs()) * u64::from(self.head_dimension.unsigned_abs())
    }
}

/// `o(softmax(rope(q) rope(k)^T / sqrt(d)) v)`.
#[derive(Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    rope: Rope,
    shape: AttentionShape,
    scale: f32,
}

impl Attention {
    /// Takes `path.{q_proj,k_proj,v_proj,o_proj}`, biases included.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        shape: AttentionShape,
    ) -> Result<Self> {
        let AttentionShape { hidden, heads, kv_heads, head_dimension } = shape;
        let mut part =
            |name: &str, shape| Linear::load(weights, config, &format!("{path}.{name}"), shape);
        Ok(Self {
            query: part("q_proj", (heads * head_dimension, hidden))?,
            key: part("k_proj", (kv_heads * head_dimension, hidden))?,
            value: part("v_proj", (kv_heads * head_dimension, hidden))?,
            output: part("o_proj", (hidden, heads * head_dimension))?,
            rope: Rope::of_config(config, head_dimension)?,
            shape,
            scale: (head_dimension as f32).powf(-0.5),
        })
    }

    /// Applies the block to `[B, L, hidden]`, writing the layer's cache.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array, positions: &Positions, cache: LayerSlot<'_>) -> Result<Array> {
        let AttentionShape { heads, kv_heads, .. } = self.shape;
        let queries = self.split_heads(&self.query.forward(x)?, heads)?;
        let keys = self.split_heads(&self.key.forward(x)?, kv_heads)?;
        let values = self.split_heads(&self.value.forward(x)?, kv_heads)?;
        let queries = self.rope.forward(&queries, &positions.offset)?;
        let keys = self.rope.forward(&keys, &positions.offset)?;
        let mask = cache.mask(positions)?;
        let seen = cache.update(keys, values)?;
        let attended = attend(&queries, &seen, self.scale, mask)?;
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
