//! Per-layer inputs: every token has a small vector for every layer, looked up and mixed with what its
//! embedding is projected to (Google 2025, Gemma 3n; mlx-lm 0.32.2, `gemma4_text.py`).

use super::plan::{PerLayerSize, Plan};
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::ModelConfig;
use crate::model::nn::{Embedding, Linear, RmsNorm};

/// What all layers' inputs are made with.
#[derive(Debug)]
pub(super) struct PerLayerInputs {
    table: Embedding,
    projection: Linear,
    projection_factor: f32,
    norm: RmsNorm,
    layers: i32,
    width: i32,
}

impl PerLayerInputs {
    /// Takes `path.{embed_tokens_per_layer,per_layer_model_projection,per_layer_projection_norm}`.
    pub(super) fn load(
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        (plan, size): (&Plan, &PerLayerSize),
    ) -> Result<Self> {
        let at = |name: &str| format!("{path}.{name}");
        let PerLayerSize { vocabulary, width } = *size;
        let layers = ops::axis_index(plan.layers.len());
        let (all, hidden) = (layers * width, plan.hidden);
        let table =
            Embedding::load(weights, config, &at("embed_tokens_per_layer"), (vocabulary, all))?;
        let projection = at("per_layer_model_projection");
        let norm = at("per_layer_projection_norm");
        Ok(Self {
            table: table.scaled(f64::from(width).sqrt() as f32),
            projection: Linear::load(weights, config, &projection, (all, hidden))?,
            // In f64, as Python computes it.
            projection_factor: f64::from(hidden).powf(-0.5) as f32,
            norm: RmsNorm::load(weights, &norm, width, plan.epsilon)?,
            layers,
            width,
        })
    }

    /// One `[B, L, width]` per layer, for tokens `[B, L]` and their vectors `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn forward(&self, tokens: &Array, embedded: &Array) -> Result<Vec<Array>> {
        let (rows, count) = (tokens.dim(0), tokens.dim(1));
        let by_layer = |all: &Array| all.reshape(&[rows, count, self.layers, self.width]);
        let looked_up = by_layer(&self.table.forward(tokens)?)?;
        let projected = ops::scale(&self.projection.forward(embedded)?, self.projection_factor)?;
        let projected = self.norm.forward(&by_layer(&projected)?)?;
        let all = ops::scale(&projected.add(looked_up)?, std::f32::consts::FRAC_1_SQRT_2)?;
        let of_layer = |layer| -> Result<Array> {
            Ok(ops::slice_axis(&all, 2, layer, layer + 1)?.squeeze_axes(&[2])?)
        };
        (0..self.layers).map(of_layer).collect()
    }
}

/// Where a layer lets its input in.
#[derive(Debug)]
pub(super) struct PerLayerGate {
    gate: Linear,
    projection: Linear,
    norm: RmsNorm,
}

impl PerLayerGate {
    /// Takes `path.{per_layer_input_gate,per_layer_projection,post_per_layer_input_norm}`.
    pub(super) fn load(
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        (plan, width): (&Plan, i32),
    ) -> Result<Self> {
        let at = |name: &str| format!("{path}.{name}");
        let hidden = plan.hidden;
        let norm = at("post_per_layer_input_norm");
        Ok(Self {
            gate: Linear::load(weights, config, &at("per_layer_input_gate"), (width, hidden))?,
            projection: Linear::load(
                weights,
                config,
                &at("per_layer_projection"),
                (hidden, width),
            )?,
            norm: RmsNorm::load(weights, &norm, hidden, plan.epsilon)?,
        })
    }

    /// What is added to `x` `[B, L, hidden]` for the layer's `input` `[B, L, width]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn forward(&self, x: &Array, input: &Array) -> Result<Array> {
        let open = ops::gelu_tanh(&self.gate.forward(x)?)?;
        self.norm.forward(&self.projection.forward(&open.multiply(input)?)?)
    }
}
