//! Attention that grows sharper with the position.

use crate::cache::Offset;
use crate::error::Result;
use crate::mlx::{Array, ops};

/// `1 + beta log(1 + floor(position / tokens))` for each query, as Llama 4 scales them (mlx-lm 0.32.2,
/// `ministral3._get_llama_4_attn_scale`).
#[derive(Debug, Clone, Copy)]
pub struct QueryScale {
    /// How fast it grows; 0 is never.
    pub beta: f32,
    /// Tokens of training: the first so many are not scaled.
    pub trained_tokens: i32,
}

impl QueryScale {
    /// Scales queries `[B, H, L, D]`, whose first stands at `offset`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(self, queries: Array, offset: &Offset) -> Result<Array> {
        let tokens = queries.dim(2);
        if last(offset) + tokens <= self.trained_tokens {
            return Ok(queries);
        }
        let factors = self.factors(&positions(offset, tokens))?;
        Ok(queries.multiply(factors.as_dtype(queries.dtype())?)?)
    }

    fn factors(self, positions: &Array) -> Result<Array> {
        let periods = ops::divide(positions, self.trained_tokens as f32)?.floor()?;
        let growth = ops::shift(&periods, 1.0)?.log()?;
        ops::shift(&ops::scale(&growth, self.beta)?, 1.0)
    }
}

fn last(offset: &Offset) -> i32 {
    match offset {
        Offset::Shared(offset) => *offset,
        Offset::PerRow { numbers, .. } => numbers.iter().copied().max().unwrap_or(0),
    }
}

/// `[L, 1]` or `[B, 1, L, 1]`.
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
