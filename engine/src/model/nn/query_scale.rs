//! Attention that grows sharper with the position.

use crate::cache::Offset;
use crate::error::Result;
use crate::mlx::{Array, Dtype, ops};

/// `1 + beta log(1 + floor(position / tokens))` for each query, as Llama 4 scales them (mlx-lm 0.32.2,
/// `ministral3._get_llama_4_attn_scale`).
#[derive(Debug, Clone, Copy)]
pub struct QueryScale {
    /// How fast it grows; 0 is never.
    pub beta: f32,
    /// Tokens of training: the first so many are not scaled.
    pub trained_tokens: f32,
}

impl QueryScale {
    /// Factors of `tokens` queries from `offset` on, `[L, 1]` or `[B, 1, L, 1]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn at(self, offset: &Offset, tokens: i32, dtype: Dtype) -> Result<Array> {
        let positions = positions(offset, tokens);
        let periods = ops::divide(&positions, self.trained_tokens)?.floor()?;
        let growth = ops::shift(&periods, 1.0)?.log()?;
        Ok(ops::shift(&ops::scale(&growth, self.beta)?, 1.0)?.as_dtype(dtype)?)
    }
}

fn positions(offset: &Offset, tokens: i32) -> Array {
    let from = |offset: &i32| (*offset..*offset + tokens).map(|position| position as f32);
    match offset {
        Offset::Shared(offset) => Array::from_iter(from(offset), &[tokens, 1]),
        Offset::PerRow { numbers, .. } => {
            let rows = ops::axis_index(numbers.len());
            Array::from_iter(numbers.iter().flat_map(from), &[rows, 1, tokens, 1])
        }
    }
}
