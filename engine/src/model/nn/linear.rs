//! Linear layers, dense and packed.

use super::quantization::load_packed;
use crate::error::Result;
use crate::mlx::{Array, Packed, Weights, ops};
use crate::model::ModelConfig;

/// `y = x W^T + b`.
#[derive(Debug)]
pub struct Linear {
    weight: Matrix,
    bias: Option<Array>,
}

/// A weight `[out, in]`. A clone shares its memory.
#[derive(Debug, Clone)]
pub(super) enum Matrix {
    /// The transposed view is kept beside the weight, so that a step builds one node less.
    Dense {
        weight: Array,
        transposed: Array,
    },
    Packed(Packed),
}

impl Linear {
    /// Takes `path.weight` of shape `[outputs, inputs]` (packed where the config says so or `path.scales` exists) and
    /// `path.bias` if there is one.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (outputs, inputs): (i32, i32),
    ) -> Result<Self> {
        let weight = Matrix::load(weights, config, path, (outputs, inputs))?;
        let bias_name = format!("{path}.bias");
        let bias = weights.contains(&bias_name);
        let bias = bias.then(|| weights.take_shaped(&bias_name, &[outputs])).transpose()?;
        Ok(Self { weight, bias })
    }

    /// Applies the layer to the last axis of `x`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        match (&self.weight, &self.bias) {
            (Matrix::Dense { transposed, .. }, Some(bias)) => ops::add_matmul(bias, x, transposed),
            (weight, None) => weight.multiply(x),
            (weight, Some(bias)) => Ok(weight.multiply(x)?.add(bias)?),
        }
    }
}

impl Matrix {
    pub(super) fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (outputs, inputs): (i32, i32),
    ) -> Result<Self> {
        let shape = [outputs, inputs];
        if let Some(packed) = load_packed(weights, config, path, &shape)? {
            return Ok(Self::Packed(packed));
        }
        let weight = weights.take_shaped(&format!("{path}.weight"), &shape)?;
        let transposed = weight.transpose_axes(&[1, 0])?;
        Ok(Self::Dense { weight, transposed })
    }

    /// `x W^T`.
    pub(super) fn multiply(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense { transposed, .. } => Ok(x.matmul(transposed)?),
            Self::Packed(matrix) => matrix.multiply(x),
        }
    }
}
