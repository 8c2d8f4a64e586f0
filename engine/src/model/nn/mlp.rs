//! The gated feed-forward block.

use super::Linear;
use crate::error::Result;
use crate::mlx::{Array, Weights, experts, fused, ops};
use crate::model::ModelConfig;

/// What the gate goes through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)`, the normal distribution's Phi (Hendrycks and Gimpel 2016).
    Gelu,
    /// The same with tanh for Phi.
    GeluTanh,
    /// SiLU within bounds, with one added to what it gates: see [`experts::clipped_swiglu`].
    ClippedSilu {
        /// What the sigmoid's input is multiplied by.
        alpha: f32,
        /// Where gate and value are cut.
        limit: f32,
    },
}

impl Activation {
    /// `activation(gate) * up`.
    pub(super) fn gate(self, gate: &Array, up: &Array) -> Result<Array> {
        match self {
            Self::Silu => fused::gated_silu(gate, up),
            Self::Gelu => Ok(ops::gelu(gate)?.multiply(up)?),
            Self::GeluTanh => fused::gated_gelu_tanh(gate, up),
            Self::ClippedSilu { alpha, limit } => experts::clipped_swiglu(gate, up, (alpha, limit)),
        }
    }
}

/// How the input becomes the gate and what it gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// `gate_proj` and `up_proj`.
    Separate,
    /// Both, the gate first, in `gate_up_proj`.
    Fused,
}

#[derive(Debug)]
enum Input {
    Separate { gate: Linear, up: Linear },
    Fused(Linear),
}

/// `down(activation(gate(x)) * up(x))`: SwiGLU and its like (Shazeer 2020).
#[derive(Debug)]
pub struct Mlp {
    input: Input,
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
        sizes: (i32, i32),
    ) -> Result<Self> {
        Self::load_with(weights, config, path, sizes, Gating::Separate)
    }

    /// Takes `path.down_proj` and what `gating` names.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load_with(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (hidden, intermediate): (i32, i32),
        gating: Gating,
    ) -> Result<Self> {
        let mut part =
            |name: &str, shape| Linear::load(weights, config, &format!("{path}.{name}"), shape);
        let input = match gating {
            Gating::Separate => Input::Separate {
                gate: part("gate_proj", (intermediate, hidden))?,
                up: part("up_proj", (intermediate, hidden))?,
            },
            Gating::Fused => Input::Fused(part("gate_up_proj", (2 * intermediate, hidden))?),
        };
        let down = part("down_proj", (hidden, intermediate))?;
        Ok(Self { input, down, activation: Activation::Silu })
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
        let (gate, up) = self.input.forward(x)?;
        self.down.forward(&self.activation.gate(&gate, &up)?)
    }
}

impl Input {
    fn forward(&self, x: &Array) -> Result<(Array, Array)> {
        match self {
            Self::Separate { gate, up } => Ok((gate.forward(x)?, up.forward(x)?)),
            Self::Fused(both) => {
                let both = both.forward(x)?;
                let (half, whole) = (both.dim(2) / 2, both.dim(2));
                let part = |start, stop| ops::slice_axis(&both, 2, start, stop);
                Ok((part(0, half)?, part(half, whole)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx::Device;

    #[test]
    fn clipped_silu_cuts_the_gate_above_and_its_value_on_both_sides() {
        Device::cpu();
        let gates = [-30.0_f32, -9.0, -0.5, 0.0, 0.5, 6.9, 7.1, 30.0];
        let values = [0.3_f32, -9.0, 9.0, 1.0, -0.2, 6.9, -6.9, 7.5];
        let (alpha, limit) = (1.702_f32, 7.0_f32);
        let array = |numbers: &[f32]| Array::from_slice(numbers, &[8]);
        let result = Activation::ClippedSilu { alpha, limit }.gate(&array(&gates), &array(&values));
        let result = ops::read_f32(&result.unwrap()).unwrap();
        for ((gate, value), result) in gates.iter().zip(values).zip(result) {
            let (gate, value) = (gate.min(limit), value.clamp(-limit, limit));
            let wanted = (value + 1.0) * gate / (1.0 + (-alpha * gate).exp());
            assert!((result - wanted).abs() < 1e-5, "{gate} and {value}: {result}, not {wanted}");
        }
    }
}
