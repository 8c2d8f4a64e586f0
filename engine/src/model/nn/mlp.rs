//! The gated feed-forward block.

use super::Linear;
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::ModelConfig;

/// What the gate goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)`, the normal distribution's Phi (Hendrycks and Gimpel 2016).
    Gelu,
    /// The same with tanh for Phi.
    GeluTanh,
}

impl Activation {
    fn forward(self, x: &Array) -> Result<Array> {
        match self {
            Self::Silu => Ok(x.multiply(ops::sigmoid(x)?)?),
            Self::Gelu => ops::gelu(x),
            Self::GeluTanh => ops::gelu_tanh(x),
        }
    }
}

/// `down(activation(gate(x)) * up(x))`: SwiGLU and its like (Shazeer 2020).
#[derive(Debug)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    /// Takes `path.{gate_proj,up_proj,down_proj}`.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (hidden, intermediate): (i32, i32),
    ) -> Result<Self> {
        let mut part =
            |name: &str, shape| Linear::load(weights, config, &format!("{path}.{name}"), shape);
        Ok(Self {
            gate: part("gate_proj", (intermediate, hidden))?,
            up: part("up_proj", (intermediate, hidden))?,
            down: part("down_proj", (hidden, intermediate))?,
            activation: Activation::Silu,
        })
    }

    /// The same with another activation than SiLU.
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Applies the block to `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let gate = self.activation.forward(&self.gate.forward(x)?)?;
        self.down.forward(&gate.multiply(self.up.forward(x)?)?)
    }
}
