//! What a forward over a canvas is judged by. Shapes: C places, V vocabulary.

use mlx_rs::{Array, Dtype};

use super::ops;
use crate::error::Result;

/// The entropy in nats of each place's distribution, from logits `[1, C, V]`: `[C]` of f32.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn entropies(logits: &Array) -> Result<Array> {
    let logs = ops::log_probabilities(&of_places(logits)?)?;
    Ok(logs.exp()?.multiply(&logs)?.sum_axis(-1, false)?.negative()?)
}

/// The probability of the token `tokens` `[C]` at each place, from logits `[1, C, V]`: `[C]` of f32.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn probabilities_of(logits: &Array, tokens: &Array) -> Result<Array> {
    let logits = of_places(logits)?;
    let own = logits.take_along_axis(tokens.expand_dims(-1)?, -1)?.squeeze_axes(&[-1])?;
    Ok(own.subtract(logits.logsumexp_axis(-1, false)?)?.exp()?)
}

fn of_places(logits: &Array) -> Result<Array> {
    let (places, vocabulary) = (logits.dim(-2), logits.dim(-1));
    Ok(logits.as_dtype(Dtype::Float32)?.reshape(&[places, vocabulary])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx::Device;

    #[test]
    fn even_logits_have_the_logarithm_of_their_number_as_entropy_and_sure_ones_none() {
        Device::cpu();
        let logits = Array::from_slice(&[3.0_f32, 3.0, 3.0, 3.0, 90.0, 0.0, 0.0, 0.0], &[1, 2, 4]);
        let found = ops::read_f32(&entropies(&logits).unwrap()).unwrap();
        assert!((found[0] - 4_f32.ln()).abs() < 1e-6 && found[1].abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn a_tokens_probability_is_its_share() {
        Device::cpu();
        let logits: Vec<f32> = [1.0_f32, 2.0, 5.0, 4.0, 3.0, 1.0].map(f32::ln).to_vec();
        let logits = Array::from_slice(&logits, &[1, 2, 3]);
        let tokens = Array::from_slice(&[2_u32, 0], &[2]);
        let found = ops::read_f32(&probabilities_of(&logits, &tokens).unwrap()).unwrap();
        assert!((found[0] - 0.625).abs() < 1e-6 && (found[1] - 0.5).abs() < 1e-6, "{found:?}");
    }
}
