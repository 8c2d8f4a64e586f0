//! Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1), op for op as mlx-lm
//! 0.32.2's `glm4_moe_lite` and `deepseek_v32`, and which columns it attends to where a layer chooses.
//!
//! Words: a token's **latent** is what keys and values of all heads are made from; a head's query has a
//! **plain part**, which meets keys made from latents, and a **turned part**, which meets one key with
//! positions that all heads share. One query alone is taken into the latents' space and back
//! (**absorbed**), so that keys and values of the past are never made; several make them
//! (**expanded**). The sums are the same, their bits are not.

mod headwise;
mod indexer;

pub use headwise::split_joined;
pub use indexer::IndexerSpec;

use self::headwise::Headwise;
use self::indexer::Indexer;
use super::{Linear, RmsNorm, Rope};
use crate::cache::{LatentCache, LatentColumns, Offset, Positions};
use crate::error::Result;
use crate::mlx::ops::{self, Mask};
use crate::mlx::{Array, Weights, sparse};
use crate::model::ModelConfig;

/// Heads and sizes of a latent attention block.
#[derive(Debug, Clone, Copy)]
pub struct LatentShape {
    /// Width of the residual stream.
    pub hidden: i32,
    /// Query heads.
    pub heads: i32,
    /// Width of what queries are made from; `None` where that is the residual stream itself.
    pub query_latent: Option<i32>,
    /// Width of a latent.
    pub latent: i32,
    /// Width of a query's plain part.
    pub plain: i32,
    /// Width of its turned part.
    pub turned: i32,
    /// Width of one head's value.
    pub value: i32,
}

impl LatentShape {
    /// The sizes under the names that checkpoints use.
    ///
    /// # Errors
    /// `BadModel` when one is missing or no count.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        Ok(Self {
            hidden: config.count("hidden_size")?,
            heads: config.count("num_attention_heads")?,
            query_latent: config.optional_count("q_lora_rank")?,
            latent: config.count("kv_lora_rank")?,
            plain: config.count("qk_nope_head_dim")?,
            turned: config.count("qk_rope_head_dim")?,
            value: config.count("v_head_dim")?,
        })
    }

    /// Width of one head's query.
    pub fn query(&self) -> i32 {
        self.plain + self.turned
    }
}

/// A latent attention block as an architecture describes it.
#[derive(Debug, Clone)]
pub struct LatentAttentionSpec {
    /// Its sizes.
    pub shape: LatentShape,
    /// What the norms of latents add under the root.
    pub epsilon: f32,
    /// How queries and keys turn.
    pub rope: Rope,
    /// What their products are multiplied by.
    pub scale: f32,
}

/// What all layers of one forward share.
#[derive(Debug)]
pub struct LatentStep<'positions> {
    offset: &'positions Offset,
    /// Booleans that broadcast to `[B, 1, L, S]`; `None` hides nothing.
    visible: Option<Array>,
}

impl<'positions> LatentStep<'positions> {
    /// For `tokens` new columns at `positions`, behind `width` others.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn new(positions: &'positions Positions, width: i32, tokens: i32) -> Result<Self> {
        let visible = match &positions.full_mask {
            Mask::None => None,
            Mask::Causal => Some(ops::causal_mask(tokens, width + tokens)?),
            Mask::Array(visible) => Some(ops::share(visible)),
        };
        Ok(Self { offset: &positions.offset, visible })
    }
}

/// Which of the columns that it may see a query attends to.
#[derive(Debug)]
pub enum Chosen {
    /// All.
    All,
    /// One query per row: those at `indices` `[B, 1, 1, k]`, of which `visible` may be seen. Where a row
    /// has fewer than `k` columns of its own, the rest are columns that it may not see.
    Columns {
        /// Where they stand.
        indices: Array,
        /// Booleans `[B, 1, 1, k]`; `None` hides nothing.
        visible: Option<Array>,
    },
    /// Several queries: where these booleans `[B, 1, L, S]` are true, the mask applied.
    Marked(Array),
}

/// Latent attention with its cache, and with an indexer where the layer has one.
#[derive(Debug)]
pub struct LatentAttention {
    queries: Queries,
    compression: Linear,
    latent_norm: RmsNorm,
    embedding: Headwise,
    unembedding: Headwise,
    output: Linear,
    indexer: Option<Indexer>,
    spec: LatentAttentionSpec,
}

#[derive(Debug)]
enum Queries {
    Direct(Linear),
    Compressed { down: Linear, norm: RmsNorm, up: Linear },
}

impl LatentAttention {
    /// Takes the block's tensors at `path`, with `embed_q` and `unembed_out` by themselves: what is
    /// published joined, [`split_joined`] takes apart.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        spec: &LatentAttentionSpec,
        indexer: Option<&IndexerSpec>,
    ) -> Result<Self> {
        let LatentShape { hidden, heads, latent, turned, value, .. } = spec.shape;
        let at = |name: &str| format!("{path}.{name}");
        let queries = Queries::load(weights, config, path, spec)?;
        let (embedding, unembedding) = Headwise::load_pair(weights, config, path, &spec.shape)?;
        let (down, out) = ((latent + turned, hidden), (hidden, heads * value));
        let indexer = indexer.map(|indexer| {
            let query_latent = spec.shape.query_latent.ok_or_else(|| config.missing("q_lora_rank"));
            Indexer::load(weights, config, &at("indexer"), indexer, (hidden, query_latent?))
        });
        Ok(Self {
            indexer: indexer.transpose()?,
            queries,
            compression: Linear::load(weights, config, &at("kv_a_proj_with_mqa"), down)?,
            latent_norm: RmsNorm::load(weights, &at("kv_a_layernorm"), latent, spec.epsilon)?,
            embedding,
            unembedding,
            output: Linear::load(weights, config, &at("o_proj"), out)?,
            spec: spec.clone(),
        })
    }

    /// An empty cache for it, when its numbers take `value_bytes` each.
    pub fn new_cache(&self, value_bytes: u64) -> LatentCache {
        let LatentShape { latent, turned, .. } = self.spec.shape;
        let index = self.indexer.as_ref().map_or(0, Indexer::dimension);
        LatentCache::new(u64::from((latent + turned + index).unsigned_abs()) * value_bytes)
    }

    /// Applies the block to `[B, L, hidden]`, writing its cache. A layer with an indexer replaces what is
    /// `chosen`, any other attends to what the last one chose.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(
        &self,
        x: &Array,
        step: &LatentStep<'_>,
        cache: &mut LatentCache,
        chosen: &mut Chosen,
    ) -> Result<Array> {
        let (queries, compressed) = self.queries.forward(x)?;
        let (plain, turned) = self.split_heads(&queries)?;
        let turned = self.spec.rope.forward(&turned, step.offset)?;
        let seen = cache.update(&self.columns(x, step)?)?;
        if let (Some(indexer), Some(keys)) = (&self.indexer, &seen.index_keys) {
            *chosen = indexer.choose(x, &compressed, keys.as_plain()?, step)?;
        }
        let (latents, rope_keys, visible) = chosen.of(&seen, step)?;
        let turned = ops::scale(&turned, self.spec.scale)?;
        let scores = hidden(turned.matmul(rope_keys.swap_axes(-1, -2)?)?, visible)?;
        let attended = match x.dim(1) {
            1 => self.absorbed(&plain, &latents, scores)?,
            _ => self.expanded(&plain, &latents, scores)?,
        };
        self.output.forward(&self.merge_heads(&attended)?)
    }

    /// The new tokens' latents, turned keys and index keys.
    fn columns(&self, x: &Array, step: &LatentStep<'_>) -> Result<LatentColumns> {
        let LatentShape { latent, turned, .. } = self.spec.shape;
        let compressed = self.compression.forward(x)?;
        let latents = ops::slice_axis(&compressed, 2, 0, latent)?;
        let latents = self.latent_norm.forward(&latents)?.expand_dims(1)?;
        let keys = ops::slice_axis(&compressed, 2, latent, latent + turned)?.expand_dims(1)?;
        let keys = self.spec.rope.forward(&keys, step.offset)?;
        let index_keys = self.indexer.as_ref().map(|indexer| indexer.keys(x, step.offset));
        Ok(LatentColumns::plain(latents, keys, index_keys.transpose()?))
    }

    /// One query per row over the latents themselves. `scores` are those of the turned parts.
    fn absorbed(&self, plain: &Array, latents: &Array, scores: Array) -> Result<Array> {
        let queries = self.embedding.forward(plain)?;
        let scores = Mask::Array(scores);
        let attended = ops::attention(&queries, latents, latents, self.spec.scale, &scores)?;
        self.unembedding.forward(&attended)
    }

    /// Several queries over keys and values made from the latents.
    fn expanded(&self, plain: &Array, latents: &Array, scores: Array) -> Result<Array> {
        let keys = self.embedding.backward(latents)?;
        let values = self.unembedding.forward(latents)?;
        ops::attention(plain, &keys, &values, self.spec.scale, &Mask::Array(scores))
    }

    /// `[B, L, heads * query]` to the parts `[B, heads, L, plain]` and `[B, heads, L, turned]`.
    fn split_heads(&self, queries: &Array) -> Result<(Array, Array)> {
        let LatentShape { heads, plain, .. } = self.spec.shape;
        let (rows, tokens, width) = (queries.dim(0), queries.dim(1), self.spec.shape.query());
        let queries = queries.reshape(&[rows, tokens, heads, width])?;
        let queries = queries.transpose_axes(&[0, 2, 1, 3])?;
        Ok((ops::slice_axis(&queries, 3, 0, plain)?, ops::slice_axis(&queries, 3, plain, width)?))
    }

    /// `[B, heads, L, value]` to `[B, L, heads * value]`.
    fn merge_heads(&self, attended: &Array) -> Result<Array> {
        let LatentShape { heads, value, .. } = self.spec.shape;
        let (rows, tokens) = (attended.dim(0), attended.dim(2));
        let attended = attended.transpose_axes(&[0, 2, 1, 3])?;
        Ok(attended.reshape(&[rows, tokens, heads * value])?)
    }
}

impl Queries {
    fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        spec: &LatentAttentionSpec,
    ) -> Result<Self> {
        let LatentShape { hidden, heads, query_latent, .. } = spec.shape;
        let width = heads * spec.shape.query();
        let at = |name: &str| format!("{path}.{name}");
        let Some(latent) = query_latent else {
            return Ok(Self::Direct(Linear::load(
                weights,
                config,
                &at("q_proj"),
                (width, hidden),
            )?));
        };
        Ok(Self::Compressed {
            down: Linear::load(weights, config, &at("q_a_proj"), (latent, hidden))?,
            norm: RmsNorm::load(weights, &at("q_a_layernorm"), latent, spec.epsilon)?,
            up: Linear::load(weights, config, &at("q_b_proj"), (width, latent))?,
        })
    }

    /// Queries of all heads side by side, and what they were made from.
    fn forward(&self, x: &Array) -> Result<(Array, Array)> {
        match self {
            Self::Direct(queries) => Ok((queries.forward(x)?, ops::share(x))),
            Self::Compressed { down, norm, up } => {
                let compressed = norm.forward(&down.forward(x)?)?;
                Ok((up.forward(&compressed)?, compressed))
            }
        }
    }
}

impl Chosen {
    /// The latents and turned keys to attend to, and which of them are visible.
    fn of(
        &self,
        seen: &LatentColumns,
        step: &LatentStep<'_>,
    ) -> Result<(Array, Array, Option<Array>)> {
        let (latents, keys) = (seen.latents.as_plain()?, seen.rope_keys.as_plain()?);
        let all = |visible| (ops::share(latents), ops::share(keys), visible);
        match self {
            Self::All => Ok(all(step.visible.as_ref().map(ops::share))),
            Self::Marked(visible) => Ok(all(Some(ops::share(visible)))),
            Self::Columns { indices, visible } => Ok((
                sparse::take_columns(latents, indices)?,
                sparse::take_columns(keys, indices)?,
                visible.as_ref().map(ops::share),
            )),
        }
    }
}

/// `scores` with the least finite number where they are not `visible`.
fn hidden(scores: Array, visible: Option<Array>) -> Result<Array> {
    match visible {
        Some(visible) => ops::keep_where(&visible, &scores),
        None => Ok(scores),
    }
}

/// `1 / sqrt(D)` for queries of `dimension`, grown as YaRN grows its attention where `scaling` says so
/// (mlx-lm 0.32.2, `mscale_all_dim`).
///
/// # Errors
/// `BadModel` when a field is of another kind, or `factor` is missing.
pub fn latent_scale(scaling: Option<&ModelConfig>, dimension: i32) -> Result<f32> {
    // In f64, as Python computes it.
    let plain = f64::from(dimension).powf(-0.5);
    let Some(scaling) = scaling else { return Ok(plain as f32) };
    let growth = scaling.optional_precise_number("mscale_all_dim")?.unwrap_or(0.0);
    if growth == 0.0 {
        return Ok(plain as f32);
    }
    let factor = scaling.precise_number("factor")?;
    let magnitude = if factor > 1.0 { 0.1 * growth * factor.ln() + 1.0 } else { 1.0 };
    Ok((plain * magnitude * magnitude) as f32)
}
