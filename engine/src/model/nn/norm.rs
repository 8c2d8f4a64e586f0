//! Normalization.

use crate::error::Result;
use crate::mlx::{Array, Weights, ops};

/// Root-mean-square normalization (Zhang and Sennrich 2019).
#[derive(Debug)]
pub struct RmsNorm {
    /// What the result is multiplied by, if by anything.
    weight: Option<Array>,
    epsilon: f32,
}

/// How a checkpoint stores the weights of norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormWeights {
    /// As they are.
    Plain,
    /// How far each is from 1, as Gemma's do. mlx-lm 0.32.2 adds the 1 in every call
    /// (`gemma.RMSNorm`); the sum's bits are the same.
    AroundOne,
}

impl RmsNorm {
    /// With a weight `[dimensions]` that is at hand.
    pub fn of_weight(weight: Array, epsilon: f32) -> Self {
        Self { weight: Some(weight), epsilon }
    }

    /// Takes `path.weight` of shape `[dimensions]`.
    ///
    /// # Errors
    /// `BadModel` when it is missing or of another shape.
    pub fn load(weights: &mut Weights, path: &str, dimensions: i32, epsilon: f32) -> Result<Self> {
        Self::load_as(NormWeights::Plain, weights, path, (dimensions, epsilon))
    }

    /// The same for weights that the checkpoint stores as `form` says.
    ///
    /// # Errors
    /// `BadModel` when it is missing or of another shape.
    pub fn load_as(
        form: NormWeights,
        weights: &mut Weights,
        path: &str,
        (dimensions, epsilon): (i32, f32),
    ) -> Result<Self> {
        let weight = weights.take_shaped(&format!("{path}.weight"), &[dimensions])?;
        let weight = match form {
            NormWeights::Plain => weight,
            NormWeights::AroundOne => ops::shift(&weight, 1.0)?,
        };
        Ok(Self { weight: Some(weight), epsilon })
    }

    /// Normalization alone, without weights.
    pub fn unweighted(epsilon: f32) -> Self {
        Self { weight: None, epsilon }
    }

    /// Normalizes the last axis of `x`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        ops::rms_norm(x, self.weight.as_ref(), self.epsilon)
    }
}
