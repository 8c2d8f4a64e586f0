//! Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024), the linear attention of Qwen3.5: a short causal
//! convolution, then the [delta rule](DeltaRule), then a gated norm. Layer math as mlx-lm 0.32.2's
//! `qwen3_5.GatedDeltaNet`.
//!
//! What a row has seen is the last `K - 1` inputs of the convolution and the delta rule's memory, the same
//! bytes at every length. Rows prefill alone, so neither ever sees a padded column, and no mask is needed.

use super::delta_rule::Tokens;
use super::{DeltaRule, Linear, RmsNorm};
use crate::cache::RecurrentCache;
use crate::error::{Code, Error, Result};
use crate::mlx::{Array, DeltaShape, Weights, ops, recurrence};
use crate::model::ModelConfig;

/// Slots of the layer's cache.
const SLOTS: usize = 2;
/// The convolution's last inputs, `[B, K - 1, channels]` in the model's type.
const TAIL: usize = 0;
/// The delta rule's memory, `[B, Hv, Dv, Dk]` in f32.
const MEMORY: usize = 1;

/// What is added to a key's squared length before it is divided by its root.
const LENGTH_EPSILON: f64 = 1e-6;

/// Heads and sizes.
#[derive(Debug, Clone, Copy)]
pub struct GatedDeltaShape {
    /// Width of the residual stream.
    pub hidden: i32,
    /// Heads of queries and keys.
    pub key_heads: i32,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: i32,
    /// Width of one query or key.
    pub key_width: i32,
    /// Width of one value.
    pub value_width: i32,
    /// Tokens that the convolution sees, K.
    pub kernel_tokens: i32,
}

impl GatedDeltaShape {
    /// `hidden_size` and the `linear_*` fields.
    ///
    /// # Errors
    /// `BadModel` when a field is missing, the heads do not divide or the convolution sees no other token.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        let shape = Self {
            hidden: config.count("hidden_size")?,
            key_heads: config.count("linear_num_key_heads")?,
            value_heads: config.count("linear_num_value_heads")?,
            key_width: config.count("linear_key_head_dim")?,
            value_width: config.count("linear_value_head_dim")?,
            kernel_tokens: config.count("linear_conv_kernel_dim")?,
        };
        let Self { key_heads, value_heads, kernel_tokens, .. } = shape;
        if value_heads % key_heads != 0 {
            let message = format!(
                "{value_heads} linear value heads cannot share {key_heads} key heads evenly"
            );
            return Err(Error::new(Code::BadModel, message));
        }
        if kernel_tokens < 2 {
            return Err(config.wrong("linear_conv_kernel_dim", &kernel_tokens.into()));
        }
        Ok(shape)
    }

    /// The shape of the delta rule's memories.
    pub fn memories(self) -> DeltaShape {
        let Self { key_heads, value_heads, key_width, value_width, .. } = self;
        DeltaShape { key_heads, value_heads, key_width, value_width }
    }

    /// Width of all queries, which is that of all keys.
    fn keys(self) -> i32 {
        self.key_heads * self.key_width
    }

    /// Width of all values.
    fn values(self) -> i32 {
        self.value_heads * self.value_width
    }

    /// What the convolution runs over: queries, keys and values side by side.
    fn channels(self) -> i32 {
        2 * self.keys() + self.values()
    }

    /// Bytes of a row's state, when a number of the model takes `value_bytes`.
    pub fn row_bytes(self, value_bytes: u64) -> u64 {
        let tail = i64::from(self.kernel_tokens - 1) * i64::from(self.channels());
        let memory = i64::from(self.values()) * i64::from(self.key_width);
        tail.unsigned_abs() * value_bytes + memory.unsigned_abs() * size_of::<f32>() as u64
    }
}

/// `o(norm(delta_rule(silu(conv(qkv(x)))), z(x)))`.
#[derive(Debug)]
pub struct GatedDelta {
    channels: Linear,
    gate: Linear,
    strength: Linear,
    decay: Linear,
    /// `[channels, K, 1]`.
    filters: Array,
    decay_bias: Array,
    /// `-exp(A)`, `[Hv]` in f32.
    decay_rate: Array,
    norm: RmsNorm,
    output: Linear,
    rule: DeltaRule,
    shape: GatedDeltaShape,
}

impl GatedDelta {
    /// Takes `path.{in_proj_qkv,in_proj_z,in_proj_b,in_proj_a,out_proj,conv1d,norm}`, `path.A_log` and
    /// `path.dt_bias`.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (shape, rule, epsilon): (GatedDeltaShape, &DeltaRule, f32),
    ) -> Result<Self> {
        let GatedDeltaShape { hidden, value_heads, value_width, kernel_tokens, .. } = shape;
        let (channels, values) = (shape.channels(), shape.values());
        let at = |name: &str| format!("{path}.{name}");
        let mut part = |name: &str, sizes| Linear::load(weights, config, &at(name), sizes);
        Ok(Self {
            channels: part("in_proj_qkv", (channels, hidden))?,
            gate: part("in_proj_z", (values, hidden))?,
            strength: part("in_proj_b", (value_heads, hidden))?,
            decay: part("in_proj_a", (value_heads, hidden))?,
            output: part("out_proj", (hidden, values))?,
            filters: weights.take_shaped(&at("conv1d.weight"), &[channels, kernel_tokens, 1])?,
            decay_bias: weights.take_shaped(&at("dt_bias"), &[value_heads])?,
            decay_rate: recurrence::minus_exp_f32(
                &weights.take_shaped(&at("A_log"), &[value_heads])?,
            )?,
            norm: RmsNorm::load(weights, &at("norm"), value_width, epsilon)?,
            rule: rule.clone(),
            shape,
        })
    }

    /// An empty cache for one row.
    pub fn new_cache(&self) -> RecurrentCache {
        RecurrentCache::new(SLOTS, self.shape.row_bytes(self.filters.item_size() as u64))
    }

    /// Applies the block to `[B, L, hidden]`, writing the layer's states.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array, cache: &mut RecurrentCache) -> Result<Array> {
        let GatedDeltaShape { value_heads, value_width, .. } = self.shape;
        let (rows, tokens) = (x.dim(0), x.dim(1));
        let gate = self.gate.forward(x)?.reshape(&[rows, tokens, value_heads, value_width])?;
        let brought = self.tokens(x, cache)?;
        let (read, memory) = self.rule.run(&brought, cache.state(MEMORY))?;
        cache.set_state(MEMORY, memory);
        let gated = recurrence::gate_precisely(&gate, &self.norm.forward(&read)?)?;
        self.output.forward(&gated.reshape(&[rows, tokens, self.shape.values()])?)
    }

    /// What the tokens bring to the memory.
    fn tokens(&self, x: &Array, cache: &mut RecurrentCache) -> Result<Tokens> {
        let channels = self.convolve(&self.channels.forward(x)?, cache)?;
        let GatedDeltaShape { key_heads, value_heads, key_width, value_width, .. } = self.shape;
        let part = |start, stop, heads: i32, width: i32| -> Result<Array> {
            let part = ops::slice_axis(&channels, 2, start, stop)?;
            Ok(part.reshape(&[x.dim(0), x.dim(1), heads, width])?)
        };
        let (keys, all) = (self.shape.keys(), self.shape.channels());
        let (queries, keys, values) = (
            part(0, keys, key_heads, key_width)?,
            part(keys, 2 * keys, key_heads, key_width)?,
            part(2 * keys, all, value_heads, value_width)?,
        );
        let (queries, keys) = self.of_length_one(&queries, &keys)?;
        let strengths = ops::sigmoid(self.strength.forward(x)?)?;
        Ok(Tokens { queries, keys, values, decays: self.decays(x)?, strengths })
    }

    /// `silu(conv(x))` `[B, L, channels]` over the inputs of before and these.
    fn convolve(&self, x: &Array, cache: &mut RecurrentCache) -> Result<Array> {
        let kept = self.shape.kernel_tokens - 1;
        let tail = match cache.state(TAIL) {
            Some(tail) => ops::share(tail),
            None => ops::zeros(&[x.dim(0), kept, x.dim(2)], x.dtype())?,
        };
        let inputs = ops::concatenate_axis(&[tail, ops::share(x)], 1)?;
        let count = inputs.dim(1);
        let tail = ops::slice_axis(&inputs, 1, count - kept, count)?.contiguous()?;
        cache.set_state(TAIL, tail);
        recurrence::silu(&recurrence::convolve_channels(&inputs, &self.filters)?)
    }

    /// Queries and keys over their lengths, and queries once more by the root of the width, as attention
    /// scales its scores (mlx-lm 0.32.2, `normalize_qk`).
    fn of_length_one(&self, queries: &Array, keys: &Array) -> Result<(Array, Array)> {
        // In f64, as Python computes it.
        let scale = f64::from(self.shape.key_width).powf(-0.5);
        let epsilon = (LENGTH_EPSILON * scale.powi(2)) as f32;
        let unit = |x: &Array, factor: f64| {
            ops::scale(&recurrence::rms_normalize(x, epsilon)?, factor as f32)
        };
        Ok((unit(queries, scale.powi(2))?, unit(keys, scale)?))
    }

    /// `exp(-exp(A) softplus(a(x) + bias))`, in f32: what is left of each head's memory.
    fn decays(&self, x: &Array) -> Result<Array> {
        let steps = recurrence::softplus(&self.decay.forward(x)?.add(&self.decay_bias)?)?;
        ops::exp_f32(&self.decay_rate.multiply(steps)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fields() -> Value {
        json!({
            "hidden_size": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 3,
            "linear_value_head_dim": 5,
            "linear_conv_kernel_dim": 4,
        })
    }

    fn of(fields: &Value) -> Result<GatedDeltaShape> {
        let config = ModelConfig::from_fields(fields.as_object().unwrap().clone());
        GatedDeltaShape::of_config(&config)
    }

    #[test]
    fn a_row_costs_the_last_inputs_of_the_convolution_and_a_memory_in_f32() {
        let shape = of(&fields()).unwrap();
        let (channels, memory) = (2 * 6 + 20, 4 * 5 * 3);
        assert_eq!(shape.row_bytes(2), 3 * channels * 2 + memory * 4);
        assert_eq!(shape.row_bytes(4), 3 * channels * 4 + memory * 4);
    }

    #[test]
    fn shapes_that_cannot_be_run_are_refused_by_name() {
        let mut cases: Vec<_> = fields()
            .as_object()
            .unwrap()
            .keys()
            .map(|name| (name.clone(), Value::Null, name.clone()))
            .collect();
        cases.extend([
            ("linear_num_value_heads".into(), json!(3), "3 linear value heads".into()),
            ("linear_conv_kernel_dim".into(), json!(1), "linear_conv_kernel_dim".into()),
            ("linear_key_head_dim".into(), json!(-3), "linear_key_head_dim".into()),
        ]);
        for (field, value, named) in cases {
            let mut fields = fields();
            fields[&field] = value;
            let error = of(&fields).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(&named), "{fields}: {error}");
        }
    }
}
