//! Scaled dot-product attention over cached columns, plain or quantized.

use crate::cache::{AffineColumns, Columns, KeyValues};
use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops::{self, Mask};

/// Attention of queries `[B, Hq, L, D]` over `seen` columns: `[B, Hq, L, D]`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub(super) fn attend(queries: &Array, seen: &KeyValues, scale: f32, mask: &Mask) -> Result<Array> {
    match (&seen.keys, &seen.values) {
        (Columns::Plain(keys), Columns::Plain(values)) => {
            ops::attention(queries, keys, values, scale, mask)
        }
        (Columns::Affine(keys), Columns::Affine(values)) => {
            attend_affine(queries, keys, values, scale, mask)
        }
        (Columns::Plain(_) | Columns::Affine(_), _) => {
            Err(Error::new(Code::Internal, "keys and values are stored in different forms"))
        }
    }
}

/// Without unpacking, op for op as mlx-lm 0.32.2's `quantized_scaled_dot_product_attention`: query
/// heads that share a key head form an axis of their own.
fn attend_affine(
    queries: &Array,
    keys: &AffineColumns,
    values: &AffineColumns,
    scale: f32,
    mask: &Mask,
) -> Result<Array> {
    let groups = Groups::of(queries, keys);
    let queries = groups.split(&ops::scale(queries, scale)?)?;
    let (keys, values) = (groups.lift(keys)?, groups.lift(values)?);
    let scores = times(&queries, &keys, true)?;
    let scores = groups.hide(&scores, mask)?;
    let weights = ops::softmax_last(&scores)?;
    groups.merge(&times(&weights, &values, false)?)
}

fn times(x: &Array, columns: &AffineColumns, transpose: bool) -> Result<Array> {
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
    fn of(queries: &Array, keys: &AffineColumns) -> Self {
        let key_heads = keys.packed.dim(1);
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
    fn lift(self, columns: &AffineColumns) -> Result<AffineColumns> {
        if !self.shared() {
            return Ok(columns.clone());
        }
        Ok(AffineColumns {
            packed: columns.packed.expand_dims(-3)?,
            scales: columns.scales.expand_dims(-3)?,
            biases: columns.biases.expand_dims(-3)?,
            packing: columns.packing,
        })
    }

    /// Scores with the least finite number where the mask is false.
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
