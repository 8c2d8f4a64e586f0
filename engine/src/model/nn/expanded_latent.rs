//! Attention whose keys and values are made from a latent of each token (DeepSeek-AI 2024) and kept as
//! such, head by head. Op for op as mlx-lm 0.32.2's `minicpm3.Attention`.
//!
//! Words: a head's query and key have a **plain** part and a **turned** one, which tells positions; all
//! heads share the key's turned part.

use super::attend::{Scoring, attend};
use super::{Linear, RmsNorm, Rope};
use crate::cache::{LayerSlot, Offset, Positions, TokenShape};
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::ModelConfig;

/// Heads and widths.
#[derive(Debug, Clone, Copy)]
pub struct ExpandedLatentShape {
    /// Width of the residual stream.
    pub hidden: i32,
    /// Heads.
    pub heads: i32,
    /// Width of what queries are made from.
    pub query_latent: i32,
    /// Width of what keys and values are made from.
    pub latent: i32,
    /// Width of a head's plain part.
    pub plain: i32,
    /// Width of its turned part.
    pub turned: i32,
    /// Width of a head's value.
    pub value: i32,
}

/// `o(softmax(q k^T / sqrt(plain + turned)) v)`.
#[derive(Debug)]
pub struct ExpandedLatent {
    query_compression: Linear,
    query_norm: RmsNorm,
    query_expansion: Linear,
    compression: Linear,
    norm: RmsNorm,
    expansion: Linear,
    output: Linear,
    shape: ExpandedLatentShape,
    rope: Rope,
}

impl ExpandedLatent {
    /// Takes `path.{q_a_proj,q_a_layernorm,q_b_proj,kv_a_proj_with_mqa,kv_a_layernorm,kv_b_proj,o_proj}`,
    /// biases included; norms add `epsilon` under the root.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (shape, rope, epsilon): (ExpandedLatentShape, Rope, f32),
    ) -> Result<Self> {
        let ExpandedLatentShape { hidden, heads, query_latent, latent, plain, turned, value } =
            shape;
        let at = |name: &str| format!("{path}.{name}");
        let query_norm = RmsNorm::load(weights, &at("q_a_layernorm"), query_latent, epsilon)?;
        let norm = RmsNorm::load(weights, &at("kv_a_layernorm"), latent, epsilon)?;
        let mut linear = |name: &str, outputs, inputs| {
            Linear::load(weights, config, &at(name), (outputs, inputs))
        };
        Ok(Self {
            query_compression: linear("q_a_proj", query_latent, hidden)?,
            query_norm,
            query_expansion: linear("q_b_proj", heads * (plain + turned), query_latent)?,
            compression: linear("kv_a_proj_with_mqa", latent + turned, hidden)?,
            norm,
            expansion: linear("kv_b_proj", heads * (plain + value), latent)?,
            output: linear("o_proj", hidden, heads * value)?,
            shape,
            rope,
        })
    }

    /// What its cache keeps of one token.
    pub fn token_shape(&self) -> TokenShape {
        let ExpandedLatentShape { heads, plain, turned, value, .. } = self.shape;
        TokenShape {
            heads: u64::from(heads.unsigned_abs()),
            key_dimension: u64::from((plain + turned).unsigned_abs()),
            value_dimension: u64::from(value.unsigned_abs()),
        }
    }

    /// Applies the block to `[B, L, hidden]`, writing the layer's cache.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array, positions: &Positions, cache: LayerSlot<'_>) -> Result<Array> {
        let ExpandedLatentShape { heads, plain, turned, value, .. } = self.shape;
        let queries = self.queries(x, &positions.offset)?;
        let (keys, values) = self.keys_and_values(x, &positions.offset)?;
        let mask = cache.mask(positions)?;
        let seen = cache.update(keys, values)?;
        // In f64, as Python computes it.
        let scale = f64::from(plain + turned).powf(-0.5) as f32;
        let attended = attend(&queries, &seen, Scoring { scale, cap: None, mask, sinks: None })?;
        let shape = [x.dim(0), x.dim(1), heads * value];
        self.output.forward(&attended.transpose_axes(&[0, 2, 1, 3])?.reshape(&shape)?)
    }

    /// `[B, heads, L, plain + turned]`.
    fn queries(&self, x: &Array, offset: &Offset) -> Result<Array> {
        let ExpandedLatentShape { plain, turned, .. } = self.shape;
        let latents = self.query_norm.forward(&self.query_compression.forward(x)?)?;
        let queries = self.split_heads(&self.query_expansion.forward(&latents)?, plain + turned)?;
        let (plain, turned) = parted(&queries, plain)?;
        ops::concatenate_axis(&[plain, self.rope.forward(&turned, offset)?], 3)
    }

    /// `[B, heads, L, plain + turned]` and `[B, heads, L, value]`.
    fn keys_and_values(&self, x: &Array, offset: &Offset) -> Result<(Array, Array)> {
        let ExpandedLatentShape { heads, latent, plain, turned, value, .. } = self.shape;
        let (rows, tokens) = (x.dim(0), x.dim(1));
        let (latents, shared) = parted(&self.compression.forward(x)?, latent)?;
        // One head: no axes to change places.
        let shared = self.rope.forward(&shared.reshape(&[rows, 1, tokens, turned])?, offset)?;
        let shared = ops::broadcast(&shared, &[rows, heads, tokens, turned])?;
        let expanded = self.expansion.forward(&self.norm.forward(&latents)?)?;
        let (keys, values) = parted(&self.split_heads(&expanded, plain + value)?, plain)?;
        Ok((ops::concatenate_axis(&[keys, shared], 3)?, values))
    }

    /// `[B, L, heads * width]` to `[B, heads, L, width]`.
    fn split_heads(&self, x: &Array, width: i32) -> Result<Array> {
        let shape = [x.dim(0), x.dim(1), self.shape.heads, width];
        Ok(x.reshape(&shape)?.transpose_axes(&[0, 2, 1, 3])?)
    }
}

/// The first `width` entries of the last axis, and the others.
fn parted(x: &Array, width: i32) -> Result<(Array, Array)> {
    let (axis, end) = (x.ndim() - 1, x.dim(-1));
    Ok((ops::slice_axis(x, axis, 0, width)?, ops::slice_axis(x, axis, width, end)?))
}
