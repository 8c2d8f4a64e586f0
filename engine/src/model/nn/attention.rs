//! Grouped-query attention with rotary positions and a cache.

use super::attend::attend;
use super::{Linear, RmsNorm, Rope};
use crate::cache::{LayerSlot, Positions, TokenShape};
use crate::error::{Code, Error, Result};
use crate::mlx::ops;
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

/// What differs between the families' attention blocks.
#[derive(Debug, Clone)]
pub struct AttentionOptions {
    /// Heads and sizes.
    pub shape: AttentionShape,
    /// What scores are multiplied by before the softmax.
    pub scale: f32,
    /// How queries and keys turn; `None` leaves them without positions (Kazemnejad et al. 2023).
    pub rope: Option<Rope>,
    /// How the input becomes queries, keys and values.
    pub projections: Projections,
    /// What is normalized before the turn.
    pub head_norms: HeadNorms,
}

/// How the input becomes queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// `q_proj`, `k_proj` and `v_proj`.
    Separate,
    /// The three, one below the other, in `qkv_proj`.
    Fused,
}

/// Root-mean-square norms of queries and keys, `q_norm` and `k_norm`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadNorms {
    /// None.
    None,
    /// Each head by itself, all with the same weights.
    EachHead {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// All heads together, before they part.
    AllHeads {
        /// Added to the mean square.
        epsilon: f32,
    },
}

impl AttentionShape {
    /// The sizes that the families share: `head_dim`, where it is absent the heads' part of the hidden
    /// size; `num_key_value_heads`, where it is absent as many as query heads.
    ///
    /// # Errors
    /// `BadModel` when a field is missing or the heads do not divide.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        let hidden = config.count("hidden_size")?;
        let heads = config.count("num_attention_heads")?;
        let kv_heads = config.optional_count("num_key_value_heads")?.unwrap_or(heads);
        let head_dimension = config.optional_count("head_dim")?;
        if heads % kv_heads != 0 {
            let message = format!("{heads} query heads cannot share {kv_heads} key heads evenly");
            return Err(Error::new(Code::BadModel, message));
        }
        if head_dimension.is_none() && hidden % heads != 0 {
            let message = format!("a hidden size of {hidden} does not divide into {heads} heads");
            return Err(Error::new(Code::BadModel, message));
        }
        let head_dimension = head_dimension.unwrap_or(hidden / heads);
        Ok(Self { hidden, heads, kv_heads, head_dimension })
    }

    /// `1 / sqrt(D)`, computed in f64 as Python does.
    pub fn scale(self) -> f32 {
        f64::from(self.head_dimension).powf(-0.5) as f32
    }
}

impl AttentionOptions {
    /// Separate projections and no norms.
    pub fn plain(shape: AttentionShape, rope: Option<Rope>) -> Self {
        Self {
            shape,
            scale: shape.scale(),
            rope,
            projections: Projections::Separate,
            head_norms: HeadNorms::None,
        }
    }
}

/// `o(softmax(rope(q) rope(k)^T * scale) v)`.
#[derive(Debug)]
pub struct Attention {
    input: Input,
    output: Linear,
    norms: Norms,
    rope: Option<Rope>,
    shape: AttentionShape,
    scale: f32,
}

#[derive(Debug)]
enum Input {
    Separate { query: Linear, key: Linear, value: Linear },
    Fused(Linear),
}

#[derive(Debug)]
enum Norms {
    None,
    EachHead { query: RmsNorm, key: RmsNorm },
    AllHeads { query: RmsNorm, key: RmsNorm },
}

impl Attention {
    /// Takes `path.{q_proj,k_proj,v_proj,o_proj}`, biases included, or what `options` say instead.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        options: &AttentionOptions,
    ) -> Result<Self> {
        let shape = options.shape;
        let width = shape.heads * shape.head_dimension;
        let output = format!("{path}.o_proj");
        Ok(Self {
            input: Input::load(weights, config, path, options)?,
            output: Linear::load(weights, config, &output, (shape.hidden, width))?,
            norms: Norms::load(weights, path, options)?,
            rope: options.rope.clone(),
            shape,
            scale: options.scale,
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

    /// Applies the block to `[B, L, hidden]`, writing the layer's cache. Turned queries are multiplied
    /// by `query_scale`, broadcast to `[B, H, L, D]`, if there is one.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(
        &self,
        x: &Array,
        positions: &Positions,
        query_scale: Option<&Array>,
        cache: LayerSlot<'_>,
    ) -> Result<Array> {
        let AttentionShape { heads, kv_heads, .. } = self.shape;
        let (queries, keys, values) = self.input.forward(x, self.shape)?;
        let (query_norm, key_norm) = self.norms.each();
        let queries = self.split_heads(&self.norms.all_queries(queries)?, heads, query_norm)?;
        let keys = self.split_heads(&self.norms.all_keys(keys)?, kv_heads, key_norm)?;
        let values = self.split_heads(&values, kv_heads, None)?;
        let queries = self.turn(queries, positions)?;
        let keys = self.turn(keys, positions)?;
        let queries = match query_scale {
            Some(scale) => queries.multiply(scale)?,
            None => queries,
        };
        let mask = cache.mask(positions)?;
        let seen = cache.update(keys, values)?;
        let attended = attend(&queries, &seen, self.scale, mask)?;
        self.output.forward(&self.merge_heads(&attended)?)
    }

    fn turn(&self, x: Array, positions: &Positions) -> Result<Array> {
        match &self.rope {
            Some(rope) => rope.forward(&x, &positions.offset),
            None => Ok(x),
        }
    }

    /// `[B, L, heads * D]` to `[B, heads, L, D]`, each head normalized by `norm`. The norm comes before
    /// the transpose, as in the oracle: what it sums is then contiguous.
    fn split_heads(&self, x: &Array, heads: i32, norm: Option<&RmsNorm>) -> Result<Array> {
        let (rows, tokens, dimension) = (x.dim(0), x.dim(1), self.shape.head_dimension);
        let shape = match tokens {
            1 => [rows, heads, 1, dimension],
            _ => [rows, tokens, heads, dimension],
        };
        let split = x.reshape(&shape)?;
        let split = match norm {
            Some(norm) => norm.forward(&split)?,
            None => split,
        };
        match tokens {
            1 => Ok(split),
            _ => Ok(split.transpose_axes(&[0, 2, 1, 3])?),
        }
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

impl Input {
    fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        options: &AttentionOptions,
    ) -> Result<Self> {
        let AttentionShape { hidden, heads, kv_heads, head_dimension } = options.shape;
        let (queries, keys) = (heads * head_dimension, kv_heads * head_dimension);
        let mut part = |name: &str, outputs| {
            Linear::load(weights, config, &format!("{path}.{name}"), (outputs, hidden))
        };
        Ok(match options.projections {
            Projections::Separate => Self::Separate {
                query: part("q_proj", queries)?,
                key: part("k_proj", keys)?,
                value: part("v_proj", keys)?,
            },
            Projections::Fused => Self::Fused(part("qkv_proj", queries + 2 * keys)?),
        })
    }

    /// Queries, keys and values, their heads side by side.
    fn forward(&self, x: &Array, shape: AttentionShape) -> Result<(Array, Array, Array)> {
        match self {
            Self::Separate { query, key, value } => {
                Ok((query.forward(x)?, key.forward(x)?, value.forward(x)?))
            }
            Self::Fused(all) => {
                let all = all.forward(x)?;
                let queries = shape.heads * shape.head_dimension;
                let keys = queries + shape.kv_heads * shape.head_dimension;
                let part = |start, stop| ops::slice_axis(&all, 2, start, stop);
                Ok((part(0, queries)?, part(queries, keys)?, part(keys, all.dim(2))?))
            }
        }
    }
}

impl Norms {
    fn load(weights: &mut Weights, path: &str, options: &AttentionOptions) -> Result<Self> {
        let AttentionShape { heads, kv_heads, head_dimension, .. } = options.shape;
        let mut norm = |name: &str, heads: i32, epsilon| {
            RmsNorm::load(weights, &format!("{path}.{name}"), heads * head_dimension, epsilon)
        };
        Ok(match options.head_norms {
            HeadNorms::None => Self::None,
            HeadNorms::EachHead { epsilon } => Self::EachHead {
                query: norm("q_norm", 1, epsilon)?,
                key: norm("k_norm", 1, epsilon)?,
            },
            HeadNorms::AllHeads { epsilon } => Self::AllHeads {
                query: norm("q_norm", heads, epsilon)?,
                key: norm("k_norm", kv_heads, epsilon)?,
            },
        })
    }

    /// Those of single heads, for queries and keys.
    fn each(&self) -> (Option<&RmsNorm>, Option<&RmsNorm>) {
        match self {
            Self::EachHead { query, key } => (Some(query), Some(key)),
            Self::None | Self::AllHeads { .. } => (None, None),
        }
    }

    fn all_queries(&self, queries: Array) -> Result<Array> {
        match self {
            Self::AllHeads { query, .. } => query.forward(&queries),
            Self::None | Self::EachHead { .. } => Ok(queries),
        }
    }

    fn all_keys(&self, keys: Array) -> Result<Array> {
        match self {
            Self::AllHeads { key, .. } => key.forward(&keys),
            Self::None | Self::EachHead { .. } => Ok(keys),
        }
    }
}
