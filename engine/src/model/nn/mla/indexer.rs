//! The indexer of sparse attention (DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1): small heads score
//! every column, and each query attends to the best.

use super::{Chosen, LatentStep};
use crate::cache::Offset;
use crate::error::Result;
use crate::mlx::{Array, Weights, ops, sparse};
use crate::model::ModelConfig;
use crate::model::nn::{Linear, Rope};

/// What the norm of keys adds under the root, as the models were trained (transformers 5.24.0,
/// `GlmMoeDsaIndexer`). mlx-lm 0.32.2 leaves MLX's default of 1e-5 in place.
const KEY_EPSILON: f32 = 1e-6;

/// An indexer as an architecture describes it.
#[derive(Debug, Clone)]
pub struct IndexerSpec {
    /// Heads that score.
    pub heads: i32,
    /// Width of one.
    pub dimension: i32,
    /// Columns that a query attends to; while there are no more than that, it attends to all.
    pub chosen: i32,
    /// How the leading part of queries and keys turns.
    pub rope: Rope,
}

/// Scores `sum_h w_h relu(q_h k)`, and the columns with the greatest.
#[derive(Debug)]
pub(super) struct Indexer {
    queries: Linear,
    keys: Linear,
    key_norm: (Array, Array),
    head_weights: Linear,
    weight_scale: f32,
    spec: IndexerSpec,
}

impl Indexer {
    /// Takes `path.{wq_b,wk,k_norm,weights_proj}`: keys and weights are made from the residual stream,
    /// queries from what attention's are made from.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub(super) fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        spec: &IndexerSpec,
        (hidden, query_latent): (i32, i32),
    ) -> Result<Self> {
        let IndexerSpec { heads, dimension, .. } = *spec;
        let at = |name: &str| format!("{path}.{name}");
        let mut part = |name: &str, shape| Linear::load(weights, config, &at(name), shape);
        let queries = part("wq_b", (heads * dimension, query_latent))?;
        let keys = part("wk", (dimension, hidden))?;
        let head_weights = part("weights_proj", (heads, hidden))?;
        let mut norm = |name: &str| weights.take_shaped(&at(name), &[dimension]);
        // In f64, as Python computes it.
        let scale = f64::from(heads).powf(-0.5) * f64::from(dimension).powf(-0.5);
        Ok(Self {
            queries,
            keys,
            key_norm: (norm("k_norm.weight")?, norm("k_norm.bias")?),
            head_weights,
            weight_scale: scale as f32,
            spec: spec.clone(),
        })
    }

    /// Width of a key.
    pub(super) fn dimension(&self) -> i32 {
        self.spec.dimension
    }

    /// The keys of new tokens `[B, L, hidden]`: `[B, 1, L, D]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn keys(&self, x: &Array, offset: &Offset) -> Result<Array> {
        let (weight, bias) = &self.key_norm;
        let keys = sparse::layer_norm(&self.keys.forward(x)?, weight, bias, KEY_EPSILON)?;
        self.spec.rope.forward(&keys.expand_dims(1)?, offset)
    }

    /// What the queries of tokens `x` `[B, L, hidden]`, made from `compressed`, choose of the columns
    /// whose `keys` `[B, 1, S, D]` are given.
    ///
    /// In a batch S is the padded width. A row that is shorter than what is chosen gets all of its
    /// columns and, to make up the number, some that it may not see: it attends to what it would alone,
    /// only the order of the sum is another.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn choose(
        &self,
        x: &Array,
        compressed: &Array,
        keys: &Array,
        step: &LatentStep<'_>,
    ) -> Result<Chosen> {
        let width = keys.dim(2);
        if width <= self.spec.chosen {
            return Ok(Chosen::All);
        }
        let queries = self.queries(compressed, step.offset)?;
        let weights = ops::scale(&self.head_weights.forward(x)?, self.weight_scale)?;
        let weights = weights.swap_axes(-1, -2)?.expand_dims(-1)?;
        let mut scores = match x.dim(1) {
            1 => sparse::sum_heads(&scores(&queries, keys, &weights)?)?,
            _ => self.summed_scores(&queries, keys, &weights)?,
        };
        if let Some(visible) = &step.visible {
            scores = sparse::only_where(visible, &scores)?;
        }
        let indices = sparse::largest_last(&scores, self.spec.chosen)?;
        match (x.dim(1), &step.visible) {
            (1, visible) => {
                let visible = visible.as_ref().map(|all| sparse::take_last(all, &indices));
                Ok(Chosen::Columns { visible: visible.transpose()?, indices })
            }
            (_, None) => Ok(Chosen::Marked(sparse::mark_last(&indices, width)?)),
            (_, Some(visible)) => {
                let marked = sparse::mark_last(&indices, width)?;
                Ok(Chosen::Marked(ops::logical_and(&marked, visible)?))
            }
        }
    }

    /// `[B, heads, L, D]`.
    fn queries(&self, compressed: &Array, offset: &Offset) -> Result<Array> {
        let IndexerSpec { heads, dimension, .. } = self.spec;
        let queries = self.queries.forward(compressed)?;
        let (rows, tokens) = (queries.dim(0), queries.dim(1));
        let queries = queries.reshape(&[rows, tokens, heads, dimension])?.swap_axes(1, 2)?;
        self.spec.rope.forward(&queries, offset)
    }

    /// Scores of several queries, `[B, 1, L, S]`. One head after the other, in the order in which the
    /// oracle adds them up: all heads' scores at once would be most of a long prompt's memory.
    fn summed_scores(&self, queries: &Array, keys: &Array, weights: &Array) -> Result<Array> {
        let of_head = |head| {
            let queries = ops::slice_axis(queries, 1, head, head + 1)?;
            scores(&queries, keys, &ops::slice_axis(weights, 1, head, head + 1)?)
        };
        let mut heads = 1..self.spec.heads;
        heads.try_fold(of_head(0)?, |sum, head| Ok(sum.add(of_head(head)?)?))
    }
}

/// `w relu(q k^T)`, `[B, heads, L, S]`.
fn scores(queries: &Array, keys: &Array, weights: &Array) -> Result<Array> {
    let products = queries.matmul(keys.swap_axes(-1, -2)?)?;
    Ok(sparse::positive_part(&products)?.multiply(weights)?)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::mlx::Device;

    /// Keys so small that what is added under the root decides: -1e-3 and 1e-3 have a variance of 1e-6.
    #[test]
    fn small_keys_are_normalized_as_the_models_were_trained() {
        Device::cpu();
        let numbers = |values: &[f32], shape: &[i32]| Array::from_slice(values, shape);
        let weights = [
            ("wq_b.weight", numbers(&[1.0; 4], &[2, 2])),
            ("wk.weight", numbers(&[1.0, 0.0, 0.0, 1.0], &[2, 2])),
            ("k_norm.weight", numbers(&[1.0, 1.0], &[2])),
            ("k_norm.bias", numbers(&[0.0, 0.5], &[2])),
            ("weights_proj.weight", numbers(&[1.0, 1.0], &[1, 2])),
        ];
        let weights = weights.map(|(name, array)| (format!("i.{name}"), array));
        let spec = IndexerSpec { heads: 1, dimension: 2, chosen: 4, rope: Rope::none() };
        let config = ModelConfig::from_fields(Map::new());
        let mut weights = Weights::of(weights);
        let indexer = Indexer::load(&mut weights, &config, "i", &spec, (2, 2)).unwrap();
        let x = numbers(&[-1e-3, 1e-3], &[1, 1, 2]);
        let keys = ops::read_f32(&indexer.keys(&x, &Offset::Shared(0)).unwrap()).unwrap();
        let normalized = 1.0 / 2.0_f32.sqrt();
        for (got, wanted) in keys.iter().zip([-normalized, normalized + 0.5]) {
            assert!((got - wanted).abs() < 1e-3, "{keys:?}");
        }
    }
}
