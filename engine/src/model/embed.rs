//! Texts to vectors: what a language model makes of a text's last token, which has seen all of it.

use super::Model;
use crate::error::{Error, Result};
use crate::mlx::{Array, ops};

/// How a text becomes a vector.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmbedOptions {
    /// Tokens that are run at once; `None` is all of them. It is part of the numerics.
    pub chunk_tokens: Option<usize>,
    /// Leading numbers of the vector to keep, for models trained so that those say the most (Kusupati et
    /// al. 2022); `None` is all of them.
    pub dimensions: Option<usize>,
}

/// The vector of `tokens`, of length 1: the last token's normalized hidden state, cut and then divided by
/// its length. Whatever tokens the model's tokenizer ends a text with are to be among them. As
/// Qwen3-Embedding is used (Zhang et al. 2025).
///
/// # Errors
/// `InvalidRequest` when there is no token, or `dimensions` is 0 or more than the model has;
/// `EngineFailed` with MLX's text.
pub fn embed(model: &dyn Model, tokens: &[u32], options: EmbedOptions) -> Result<Vec<f32>> {
    let chunk_tokens = options.chunk_tokens.unwrap_or(tokens.len()).max(1);
    let mut chunks = tokens.chunks(chunk_tokens);
    let Some(last) = chunks.next_back() else {
        return Err(Error::invalid("input", "an empty text has no vector"));
    };
    let mut caches = model.new_caches();
    for chunk in chunks {
        model.hidden(&ops::token_matrix(chunk, 1), &mut caches)?;
        ops::evaluate(caches.arrays())?;
    }
    text_vector(&model.hidden(&ops::token_matrix(last, 1), &mut caches)?, options.dimensions)
}

/// The vector of a text whose last tokens have the normalized hidden states `hidden` `[1, L, hidden]`: the
/// last of them, its first `dimensions` numbers if it is to be cut, over its length.
///
/// # Errors
/// `InvalidRequest` when `dimensions` is 0 or more than there are; `EngineFailed` with MLX's text.
pub fn text_vector(hidden: &Array, dimensions: Option<usize>) -> Result<Vec<f32>> {
    let length = hidden.dim(1);
    let mut state = ops::read_f32(&ops::slice_axis(hidden, 1, length - 1, length)?)?;
    if let Some(dimensions) = dimensions {
        if dimensions == 0 || dimensions > state.len() {
            let message = format!("{dimensions} dimensions of a vector that has {}", state.len());
            return Err(Error::invalid("dimensions", message));
        }
        state.truncate(dimensions);
    }
    Ok(of_length_one(&state))
}

/// `vector` over its length, which is taken in f64; zeros stay zeros.
fn of_length_one(vector: &[f32]) -> Vec<f32> {
    const LENGTH_MIN: f64 = 1e-12;
    let squares = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>();
    let length = squares.sqrt().max(LENGTH_MIN);
    vector.iter().map(|number| (f64::from(*number) / length) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_keeps_its_direction_and_has_length_one() {
        assert_eq!(of_length_one(&[3.0, -4.0]), [0.6, -0.8]);
        let far = 2_f32.powi(100);
        assert_eq!(of_length_one(&[3.0 * far, -4.0 * far]), [0.6, -0.8], "squares beyond f32");
        assert_eq!(of_length_one(&[0.0, 0.0]), [0.0, 0.0]);
    }
}
