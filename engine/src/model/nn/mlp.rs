//! The gated feed-forward block.

use super::Linear;
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::ModelConfig;

/// `down(silu(gate(x)) * up(x))` (SwiGLU, Shazeer 2020).
#[derive(Debug)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
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
        })
    }

    /// Applies the block to `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let gate = self.gate.forward(x)?;
        let silu = gate.multiply(ops::sigmoid(&gate)?)?;
        self.down.forward(&silu.multiply(self.up.forward(x)?)?)
    }
}
