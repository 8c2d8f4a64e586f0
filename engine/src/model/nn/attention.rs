//! Grouped-query attention with rotary positions and a cache.

use super::attend::{Scoring, attend};
use super::{Linear, QueryScale, RmsNorm, Rope};
use crate::cache::{Columns, KeyValues, LayerSlot, Positions, TokenShape};
use crate::error::{Code, Error, Result};
use crate::mlx::ops::Mask;
use crate::mlx::{Array, Weights, ops};
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
    /// Norms of queries, keys and values, before any turn.
    pub head_norms: Option<HeadNorms>,
    /// What turned queries are multiplied by according to their positions.
    pub query_scale: Option<QueryScale>,
    /// How the input becomes queries, keys and values.
    pub projections: Projections,
    /// `[heads]`: a score of each query head that no value answers to (gpt-oss).
    pub sinks: Option<Array>,
}

/// See [`AttentionOptions::head_norms`].
#[derive(Debug)]
pub struct HeadNorms {
    /// Of the queries.
    pub query: RmsNorm,
    /// Of the keys, where the block makes any.
    pub key: Option<RmsNorm>,
    /// Of the values, where they have one (Gemma 4).
    pub value: Option<RmsNorm>,
    /// What they are taken over.
    pub span: NormSpan,
}

/// What such a norm is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormSpan {
    /// Each head by itself, all with the same weights.
    EachHead,
    /// All heads together, before they part.
    AllHeads,
}

/// How the input becomes queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// `q_proj`, `k_proj` and `v_proj`.
    Separate,
    /// The three, one below the other, in `qkv_proj`.
    Fused,
    /// `q_proj` and `k_proj`: what the latter makes is both, until the norms (Gemma 4).
    KeysAsValues,
    /// `q_proj`: keys and values are an earlier layer's (Brandon et al. 2024).
    QueriesOnly,
    /// As `Separate`, but `q_proj` makes a gate below each head's query: what the head attended to is
    /// multiplied by the gate's sigmoid (Qiu et al. 2025).
    Gated,
}

impl AttentionShape {
    /// The sizes under the names that most checkpoints use: `head_dim`, where it is absent the heads'
    /// part of the hidden size; `num_key_value_heads`, where it is absent as many as query heads.
    ///
    /// # Errors
    /// `BadModel` when a field is missing or the heads do not divide.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        let hidden = config.count("hidden_size")?;
        let heads = config.count("num_attention_heads")?;
        let kv_heads = config.optional_count("num_key_value_heads")?.unwrap_or(heads);
        let head_dimension = config.optional_count("head_dim")?;
        if head_dimension.is_none() && hidden % heads != 0 {
            let message = format!("a hidden size of {hidden} does not divide into {heads} heads");
            return Err(Error::new(Code::BadModel, message));
        }
        let head_dimension = head_dimension.unwrap_or(hidden / heads);
        Self { hidden, heads, kv_heads, head_dimension }.checked()
    }

    /// The same, if its query heads share its key heads evenly.
    ///
    /// # Errors
    /// `BadModel` when they do not.
    pub fn checked(self) -> Result<Self> {
        let Self { heads, kv_heads, .. } = self;
        if heads % kv_heads == 0 {
            return Ok(self);
        }
        let message = format!("{heads} query heads cannot share {kv_heads} key heads evenly");
        Err(Error::new(Code::BadModel, message))
    }
}

impl AttentionOptions {
    /// The usual ones: `1 / sqrt(head_dimension)` and this rotary embedding, nothing more.
    pub fn of_rope(rope: Rope, head_dimension: i32) -> Self {
        Self {
            rope,
            // In f64, as Python computes it.
            scale: f64::from(head_dimension).powf(-0.5) as f32,
            score_cap: None,
            head_norms: None,
            query_scale: None,
            projections: Projections::Separate,
            sinks: None,
        }
    }
}

/// `o(softmax(rope(q) rope(k)^T / sqrt(d)) v)`, with what [`AttentionOptions`] add.
#[derive(Debug)]
pub struct Attention {
    input: Input,
    output: Linear,
    shape: AttentionShape,
    options: AttentionOptions,
}

#[derive(Debug)]
enum Input {
    Separate { query: Linear, key: Linear, value: Linear },
    Fused(Linear),
    KeysAsValues { query: Linear, key: Linear },
    QueriesOnly(Linear),
    Gated { query: Linear, key: Linear, value: Linear },
}

/// What the input becomes, heads side by side.
struct Projected {
    queries: Array,
    keys_and_values: Option<(Array, Array)>,
    /// `[B, L, heads * D]`.
    gate: Option<Array>,
}

impl Attention {
    /// Takes `path.o_proj` and what the options' projections name, biases included.
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
        let output = (shape.hidden, shape.heads * shape.head_dimension);
        Ok(Self {
            input: Input::load(weights, config, path, (shape, options.projections))?,
            output: Linear::load(weights, config, &format!("{path}.o_proj"), output)?,
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
        let (output, _) = self.forward_showing(x, positions, cache)?;
        Ok(output)
    }

    /// The same, with the columns that it attended to, for later layers to attend to.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward_showing(
        &self,
        x: &Array,
        positions: &Positions,
        cache: LayerSlot<'_>,
    ) -> Result<(Array, KeyValues)> {
        let projected = self.input.forward(x, self.shape)?;
        let new = self.own_columns(&projected, positions)?;
        let mask = cache.mask(positions)?;
        let seen = cache.write(&new)?;
        Ok((self.attend(&projected, positions, &seen, mask)?, seen))
    }

    /// Applies the block to `[B, L, hidden]` over `seen`, the columns of an earlier layer with the same
    /// tokens, under that layer's mask.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward_over(
        &self,
        x: &Array,
        positions: &Positions,
        seen: &KeyValues,
        mask: &Mask,
    ) -> Result<Array> {
        self.attend(&self.input.forward(x, self.shape)?, positions, seen, mask)
    }

    /// Applies the block to `[1, L, hidden]`, whose tokens see one another and `before`, all of it
    /// alike. Nothing is written.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward_beside(
        &self,
        x: &Array,
        positions: &Positions,
        before: Option<&KeyValues>,
    ) -> Result<Array> {
        let projected = self.input.forward(x, self.shape)?;
        let own = self.own_columns(&projected, positions)?.in_form_of(before)?;
        let seen = match before {
            Some(before) => before.zip(&own, Columns::then)?,
            None => own,
        };
        self.attend(&projected, positions, &seen, &Mask::None)
    }

    /// Keys, turned, and values `[B, H, L, D]`.
    fn own_columns(&self, projected: &Projected, positions: &Positions) -> Result<KeyValues> {
        let Some((keys, values)) = &projected.keys_and_values else {
            return Err(Error::new(Code::Internal, "a block without keys was asked for some"));
        };
        let kv_heads = self.shape.kv_heads;
        let keys = self.heads(keys, kv_heads, |norms| norms.key.as_ref())?;
        let keys = self.options.rope.forward(&keys, &positions.offset)?;
        let values = self.heads(values, kv_heads, |norms| norms.value.as_ref())?;
        Ok(KeyValues::plain(keys, values))
    }

    fn attend(
        &self,
        projected: &Projected,
        positions: &Positions,
        seen: &KeyValues,
        mask: &Mask,
    ) -> Result<Array> {
        let AttentionOptions { rope, scale, score_cap, query_scale, sinks, .. } = &self.options;
        let Projected { queries, gate, .. } = projected;
        let queries = self.heads(queries, self.shape.heads, |norms| Some(&norms.query))?;
        let mut queries = rope.forward(&queries, &positions.offset)?;
        if let Some(query_scale) = query_scale {
            queries = query_scale.forward(queries, &positions.offset)?;
        }
        let scoring = Scoring { scale: *scale, cap: *score_cap, mask, sinks: sinks.as_ref() };
        let attended = self.merge_heads(&attend(&queries, seen, scoring)?)?;
        match gate {
            Some(gate) => self.output.forward(&attended.multiply(ops::sigmoid(gate)?)?),
            None => self.output.forward(&attended),
        }
    }

    /// `[B, L, heads * D]` to `[B, heads, L, D]`, through the norm that `pick` names if there is one.
    fn heads(
        &self,
        x: &Array,
        heads: i32,
        pick: impl Fn(&HeadNorms) -> Option<&RmsNorm>,
    ) -> Result<Array> {
        let norms = self.options.head_norms.as_ref();
        match norms.and_then(|norms| Some((norms.span, pick(norms)?))) {
            None => self.split_heads(x, heads),
            Some((NormSpan::AllHeads, norm)) => self.split_heads(&norm.forward(x)?, heads),
            Some((NormSpan::EachHead, norm)) => norm.forward(&self.split_heads(x, heads)?),
        }
    }

    /// `[B, L, heads * D]`, or the same with an axis of heads, to `[B, heads, L, D]`.
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

impl Input {
    fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (shape, projections): (AttentionShape, Projections),
    ) -> Result<Self> {
        let AttentionShape { hidden, heads, kv_heads, head_dimension } = shape;
        let (queries, keys) = (heads * head_dimension, kv_heads * head_dimension);
        let mut part = |name: &str, outputs| {
            Linear::load(weights, config, &format!("{path}.{name}"), (outputs, hidden))
        };
        Ok(match projections {
            Projections::Separate => Self::Separate {
                query: part("q_proj", queries)?,
                key: part("k_proj", keys)?,
                value: part("v_proj", keys)?,
            },
            Projections::Fused => Self::Fused(part("qkv_proj", queries + 2 * keys)?),
            Projections::KeysAsValues => {
                Self::KeysAsValues { query: part("q_proj", queries)?, key: part("k_proj", keys)? }
            }
            Projections::QueriesOnly => Self::QueriesOnly(part("q_proj", queries)?),
            Projections::Gated => Self::Gated {
                query: part("q_proj", 2 * queries)?,
                key: part("k_proj", keys)?,
                value: part("v_proj", keys)?,
            },
        })
    }

    fn forward(&self, x: &Array, shape: AttentionShape) -> Result<Projected> {
        match self {
            Self::Separate { query, key, value } => {
                Ok(Projected::all(query.forward(x)?, key.forward(x)?, value.forward(x)?))
            }
            Self::Fused(all) => {
                let all = all.forward(x)?;
                let queries = shape.heads * shape.head_dimension;
                let keys = queries + shape.kv_heads * shape.head_dimension;
                let part = |start, stop| ops::slice_axis(&all, 2, start, stop);
                Ok(Projected::all(part(0, queries)?, part(queries, keys)?, part(keys, all.dim(2))?))
            }
            Self::KeysAsValues { query, key } => {
                let keys = key.forward(x)?;
                Ok(Projected::all(query.forward(x)?, ops::share(&keys), keys))
            }
            Self::QueriesOnly(query) => {
                Ok(Projected { queries: query.forward(x)?, keys_and_values: None, gate: None })
            }
            Self::Gated { query, key, value } => {
                let (queries, gate) = part_gates(&query.forward(x)?, shape)?;
                let keys_and_values = Some((key.forward(x)?, value.forward(x)?));
                Ok(Projected { queries, keys_and_values, gate: Some(gate) })
            }
        }
    }
}

impl Projected {
    fn all(queries: Array, keys: Array, values: Array) -> Self {
        Self { queries, keys_and_values: Some((keys, values)), gate: None }
    }
}

/// Queries `[B, L, heads, D]` and gates `[B, L, heads * D]` of `[B, L, heads * 2 D]`.
fn part_gates(both: &Array, shape: AttentionShape) -> Result<(Array, Array)> {
    let AttentionShape { heads, head_dimension, .. } = shape;
    let (rows, tokens) = (both.dim(0), both.dim(1));
    let both = both.reshape(&[rows, tokens, heads, 2 * head_dimension])?;
    let queries = ops::slice_axis(&both, 3, 0, head_dimension)?;
    let gates = ops::slice_axis(&both, 3, head_dimension, 2 * head_dimension)?;
    Ok((queries, gates.reshape(&[rows, tokens, heads * head_dimension])?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn heads_that_do_not_divide_are_refused() {
        let of = |fields: &Value| {
            let config = ModelConfig::from_fields(fields.as_object().unwrap().clone());
            AttentionShape::of_config(&config)
        };
        let shape = of(&json!({ "hidden_size": 24, "num_attention_heads": 3 })).unwrap();
        assert_eq!((shape.kv_heads, shape.head_dimension), (3, 8));
        let cases = [
            (json!({ "hidden_size": 24, "num_attention_heads": 5 }), "5 heads"),
            (
                json!({ "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 2 }),
                "2 key heads",
            ),
            (json!({ "num_attention_heads": 3 }), "hidden_size"),
            (json!({ "hidden_size": 24 }), "num_attention_heads"),
            (json!({ "hidden_size": 24, "num_attention_heads": 0 }), "num_attention_heads"),
        ];
        for (fields, named) in cases {
            let error = of(&fields).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(named), "{error}");
        }
    }
}
