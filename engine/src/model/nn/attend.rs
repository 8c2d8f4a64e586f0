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
}

/// Attention of queries `[B, Hq, L, D]` over `seen` columns: `[B, Hq, L, D]`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub(super) fn attend(queries: &Array, seen: &KeyValues, scoring: Scoring<'_>) -> Result<Array> {
    match (&seen.keys, &seen.values) {
        (Columns::Plain(keys), Columns::Plain(values)) if scoring.cap.is_none() => {
            ops::attention(queries, keys, values, scoring.scale, scoring.mask)
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
    let Scoring { scale, cap, mask } = scoring;
    let groups = Groups::of(queries, &seen.keys);
    let queries = groups.split(&ops::scale(queries, scale)?)?;
    let (keys, values) = (groups.lift(&seen.keys)?, groups.lift(&seen.values)?);
    let mut scores = times_transposed(&queries, &keys)?;
    if let Some(cap) = cap {
        scores = ops::soft_cap(&scores, cap)?;
    }
    let scores = groups.hide(&scores, mask)?;
    let weights = ops::softmax_last(&scores)?;
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
