//! Scaled dot-product attention over cached columns, plain or quantized.

use crate::cache::{AffineColumns, Columns, KeyValues};
use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops::{self, Mask};

/// How products of queries and keys become weights.
#[derive(Clone, Copy)]
pub(super) struct Scoring<'mask> {
    /// What they are multiplied by.
    pub(super) scale: f32,
    /// They stay within plus and minus this, softly.
    pub(super) cap: Option<f32>,
    /// Which of them count, after the cap.
    pub(super) mask: &'mask Mask,
    /// `[Hq]`: one more score for each query head, which takes weight from the others and has no value.
    pub(super) sinks: Option<&'mask Array>,
}

/// Attention of queries `[B, Hq, L, D]` over `seen` columns: `[B, Hq, L, D]`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub(super) fn attend(queries: &Array, seen: &KeyValues, scoring: Scoring<'_>) -> Result<Array> {
    match (&seen.keys, &seen.values) {
        (Columns::Plain(keys), Columns::Plain(values)) if scoring.cap.is_none() => {
            let Scoring { scale, mask, sinks, .. } = scoring;
            ops::attention_with_sinks(queries, (keys, values), scale, mask, sinks)
        }
        (Columns::Plain(_), Columns::Plain(_)) | (Columns::Affine(_), Columns::Affine(_)) => {
            attend_in_steps(queries, seen, scoring)
        }
        (Columns::Plain(_) | Columns::Affine(_), _) => {
            Err(Error::new(Code::Internal, "keys and values are stored in different forms"))
        }
    }
}

/// What MLX has no single operation for: packed columns, which are not unpacked, and capped scores.
/// Op for op as mlx-lm 0.32.2's `quantized_scaled_dot_product_attention` and `gemma2.Attention`: query
/// heads that share a key head form an axis of their own.
fn attend_in_steps(queries: &Array, seen: &KeyValues, scoring: Scoring<'_>) -> Result<Array> {
    let Scoring { scale, cap, mask, sinks } = scoring;
    let groups = Groups::of(queries, &seen.keys);
    let queries = groups.split(&ops::scale(queries, scale)?)?;
    let (keys, values) = (groups.lift(&seen.keys)?, groups.lift(&seen.values)?);
    let mut scores = times_transposed(&queries, &keys)?;
    if let Some(cap) = cap {
        scores = ops::soft_cap(&scores, cap)?;
    }
    let scores = groups.hide(&scores, mask)?;
    let weights = match sinks {
        Some(sinks) => groups.weights_beside(&scores, sinks)?,
        None => ops::softmax_last(&scores)?,
    };
    groups.merge(&times(&weights, &values)?)
}

/// `x columns^T`.
fn times_transposed(x: &Array, columns: &Columns) -> Result<Array> {
    match columns {
        Columns::Plain(columns) => Ok(x.matmul(columns.swap_axes(-1, -2)?)?),
        Columns::Affine(columns) => times_packed(x, columns, true),
    }
}

/// `x columns`.
fn times(x: &Array, columns: &Columns) -> Result<Array> {
    match columns {
        Columns::Plain(columns) => Ok(x.matmul(columns)?),
        Columns::Affine(columns) => times_packed(x, columns, false),
    }
}

fn times_packed(x: &Array, columns: &AffineColumns, transpose: bool) -> Result<Array> {
    let AffineColumns { packed, scales, biases, packing } = columns;
    let packing = (packing.group_size, packing.bits);
    ops::quantized_product(x, (packed, scales, biases), packing, transpose)
}

/// How query heads share key heads.
#[derive(Clone, Copy)]
struct Groups {
    key_heads: i32,
    queries_per_key: i32,
}

impl Groups {
    fn of(queries: &Array, keys: &Columns) -> Self {
        let key_heads = match keys {
            Columns::Plain(keys) => keys.dim(1),
            Columns::Affine(keys) => keys.packed.dim(1),
        };
        Self { key_heads, queries_per_key: queries.dim(1) / key_heads }
    }

    fn shared(self) -> bool {
        self.queries_per_key > 1
    }

    /// `[B, Hq, L, D]` to `[B, Hkv, Hq / Hkv, L, D]`.
    fn split(self, queries: &Array) -> Result<Array> {
        if !self.shared() {
            return Ok(ops::share(queries));
        }
        let (rows, tokens, dimension) = (queries.dim(0), queries.dim(2), queries.dim(3));
        let shape = [rows, self.key_heads, self.queries_per_key, tokens, dimension];
        Ok(queries.reshape(&shape)?)
    }

    /// `[B, Hkv, S, D]` to `[B, Hkv, 1, S, D]`.
    fn lift(self, columns: &Columns) -> Result<Columns> {
        if !self.shared() {
            return Ok(columns.clone());
        }
        match columns {
            Columns::Plain(columns) => Ok(Columns::Plain(columns.expand_dims(-3)?)),
            Columns::Affine(columns) => Ok(Columns::Affine(AffineColumns {
                packed: columns.packed.expand_dims(-3)?,
                scales: columns.scales.expand_dims(-3)?,
                biases: columns.biases.expand_dims(-3)?,
                packing: columns.packing,
            })),
        }
    }

    /// Scores with the least finite number where the mask is false. A batch's mask `[B, 1, L, S]` gets
    /// the scores' extra axis, without which its rows would meet their key heads (`gemma2` of mlx-lm
    /// 0.32.2 leaves it out).
    fn hide(self, scores: &Array, mask: &Mask) -> Result<Array> {
        let visible = match mask {
            Mask::None => return Ok(ops::share(scores)),
            Mask::Causal => ops::causal_mask(scores.dim(-2), scores.dim(-1))?,
            Mask::Array(mask) if self.shared() && mask.ndim() > 3 => mask.expand_dims(-3)?,
            Mask::Array(mask) => ops::share(mask),
        };
        ops::keep_where(&visible, scores)
    }

    /// Softmax over the scores and the sink of their head, without the sink's weight. The sink comes
    /// first, as where MLX has no kernel for it.
    fn weights_beside(self, scores: &Array, sinks: &Array) -> Result<Array> {
        let sinks = match self.shared() {
            true => sinks.reshape(&[self.key_heads, self.queries_per_key, 1, 1])?,
            false => sinks.reshape(&[self.key_heads, 1, 1])?,
        };
        let (axis, columns) = (scores.ndim() - 1, scores.dim(-1));
        let mut shape = scores.shape().to_vec();
        shape[axis] = 1;
        let sinks = ops::broadcast(&sinks, &shape)?;
        let all = ops::concatenate_axis(&[sinks, ops::share(scores)], axis)?;
        ops::slice_axis(&ops::softmax_last(&all)?, axis, 1, columns + 1)
    }

    /// `[B, Hkv, Hq / Hkv, L, D]` to `[B, Hq, L, D]`.
    fn merge(self, attended: &Array) -> Result<Array> {
        if !self.shared() {
            return Ok(ops::share(attended));
        }
        let (rows, tokens, dimension) = (attended.dim(0), attended.dim(-2), attended.dim(-1));
        let heads = self.key_heads * self.queries_per_key;
        Ok(attended.reshape(&[rows, heads, tokens, dimension])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Packing;
    use crate::mlx::Device;

    const DIMENSION: i32 = 64;
    const SCALE: f32 = 0.1;

    /// `[2, heads, tokens, DIMENSION]` of smooth numbers.
    fn heads_of(heads: i32, tokens: i32, seed: f32) -> Array {
        let shape = [2, heads, tokens, DIMENSION];
        let count: i32 = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|i| (seed + i as f32 * 0.37).sin()).collect();
        Array::from_slice(&data, &shape)
    }

    /// Each head `times` times in a row.
    fn repeated(array: &Array, times: i32) -> Array {
        let heads: Vec<i32> = (0..array.dim(1) * times).map(|head| head / times).collect();
        ops::take_axis(array, &ops::int_vector(&heads), 1).unwrap()
    }

    /// Queries of `tokens` tokens over 9 columns, and masks that may hide some of them.
    fn masks(tokens: i32) -> Vec<Mask> {
        let visible: Vec<bool> = (0..2 * 9).map(|index| index != 0 && index != 9).collect();
        let padding = Array::from_slice(&visible, &[2, 1, 1, 9]);
        let causal = ops::causal_mask(tokens, 9).unwrap();
        let both = ops::logical_and(&padding, &causal).unwrap();
        vec![Mask::None, Mask::Causal, Mask::Array(causal), Mask::Array(padding), Mask::Array(both)]
    }

    #[test]
    fn query_heads_that_share_a_packed_key_head_attend_as_if_each_had_its_own() {
        Device::cpu();
        let packing = Packing { group_size: 32, bits: 4 };
        let (keys, values) = (heads_of(2, 9, 0.3), heads_of(2, 9, 7.1));
        for tokens in [1, 5] {
            let queries = heads_of(6, tokens, 2.9);
            let seen = KeyValues::plain(keys.clone(), values.clone()).pack(packing).unwrap();
            let own = KeyValues::plain(repeated(&keys, 3), repeated(&values, 3));
            let own = own.pack(packing).unwrap();
            for mask in masks(tokens) {
                let scoring = Scoring { scale: SCALE, cap: None, mask: &mask, sinks: None };
                let run = |seen: &KeyValues| attend(&queries, seen, scoring).unwrap();
                let (shared, own) = (run(&seen), run(&own));
                assert_eq!(shared.shape(), queries.shape());
                let (shared, own) = (ops::read_f32(&shared), ops::read_f32(&own));
                assert_eq!(shared.unwrap(), own.unwrap(), "{tokens} tokens, {mask:?}");
            }
        }
    }

    #[test]
    fn attention_over_packed_columns_is_attention_over_what_they_unpack_to() {
        Device::cpu();
        let packing = Packing { group_size: 64, bits: 8 };
        let plain = KeyValues::plain(heads_of(2, 9, 0.3), heads_of(2, 9, 7.1));
        let packed = plain.pack(packing).unwrap();
        let unpacked = packed.map(|columns| match columns {
            Columns::Affine(AffineColumns { packed, scales, biases, packing }) => {
                let how = (packing.group_size, packing.bits);
                Ok(Columns::Plain(ops::dequantize(packed, scales, biases, how)?))
            }
            Columns::Plain(_) => panic!("not packed"),
        });
        let unpacked = unpacked.unwrap();
        for (heads, tokens) in [(2, 1), (2, 5), (4, 1), (4, 5)] {
            let queries = heads_of(heads, tokens, 2.9);
            let sinks: Vec<f32> = (0..heads).map(|head| head as f32 * 0.4 - 0.5).collect();
            let sinks = Array::from_slice(&sinks, &[heads]);
            for (mask, sinks) in
                masks(tokens).iter().flat_map(|mask| [(mask, None), (mask, Some(&sinks))])
            {
                let scoring = Scoring { scale: SCALE, cap: None, mask, sinks };
                let run = |seen: &KeyValues| {
                    ops::read_f32(&attend(&queries, seen, scoring).unwrap()).unwrap()
                };
                for (packed, unpacked) in run(&packed).iter().zip(run(&unpacked)) {
                    // Sums of 64 f32 products below 1.
                    assert!((packed - unpacked).abs() < 1e-5, "{packed} and {unpacked}, {mask:?}");
                }
            }
        }
    }
}
