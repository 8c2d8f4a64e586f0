//! Normalization.

use crate::error::Result;
use crate::mlx::{Array, Weights, ops};

/// Root-mean-square normalization (Zhang and Sennrich 2019) with a learned weight.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Array,
    epsilon: f32,
}

impl RmsNorm {
    /// With a weight `[dimensions]` that is at hand.
    pub fn of_weight(weight: Array, epsilon: f32) -> Self {
        Self { weight, epsilon }
    }

    /// Takes `path.weight` of shape `[dimensions]`.
    ///
    /// # Errors
    /// `BadModel` when it is missing or of another shape.
    pub fn load(weights: &mut Weights, path: &str, dimensions: i32, epsilon: f32) -> Result<Self> {
        let weight = weights.take_shaped(&format!("{path}.weight"), &[dimensions])?;
        Ok(Self { weight, epsilon })
    }

    /// The same where the checkpoint stores how far each weight is from 1, as Gemma's do. mlx-lm 0.32.2
    /// adds the 1 in every call (`gemma.RMSNorm`); the sum's bits are the same.
    ///
    /// # Errors
    /// `BadModel` when it is missing or of another shape.
    pub fn load_around_one(
        weights: &mut Weights,
        path: &str,
        dimensions: i32,
        epsilon: f32,
    ) -> Result<Self> {
        let Self { weight, epsilon } = Self::load(weights, path, dimensions, epsilon)?;
        Ok(Self { weight: ops::shift(&weight, 1.0)?, epsilon })
    }

    /// Normalizes the last axis of `x`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        ops::rms_norm(x, &self.weight, self.epsilon)
    }
}
