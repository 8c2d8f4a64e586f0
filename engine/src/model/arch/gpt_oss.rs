//! gpt-oss (OpenAI 2025): biases everywhere, a sink beside the scores of each query head, layers that
//! slide over a window in turn with full ones, and a mixture of experts whose SwiGLU is clipped. mlx-lm
//! 0.32.2, `gpt_oss.py`.

use crate::error::{Code, Error, Result};
use crate::mlx::{Array, Weights, experts, ops};
use crate::model::nn::{
    Activation, AttentionShape, Decoder, DecoderSpec, HeadSource, LayerSpec, MixtureSpec, Rope,
    RopeOptions, Routing,
};
use crate::model::{ModelConfig, layer_windows_or};

const BASE: f64 = 150_000.0;

/// Bytes of a block: 32 numbers of four bits.
const BLOCK_BYTES: i32 = 16;

/// The experts' clipped SwiGLU.
const ACTIVATION: Activation = Activation::ClippedSilu { alpha: 1.702, limit: 7.0 };

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    for name in ["num_key_value_heads", "head_dim"] {
        config.count(name)?;
    }
    let shape = AttentionShape::of_config(config)?;
    let options = RopeOptions::of_config(config, shape.head_dimension, Some(BASE))?;
    let rope = Rope::new(&RopeOptions { traditional: false, ..options })?;
    let mixture = mixture(config)?;
    // Sliding layers come first where the config does not say.
    let windows = layer_windows_or(config, |index| index.is_multiple_of(2))?;
    let layer = |window| LayerSpec {
        window,
        sinks: true,
        mixture: Some(mixture),
        ..LayerSpec::full(rope.clone())
    };
    for index in 0..windows.len() {
        prepare(weights, &format!("model.layers.{index}"))?;
    }
    let layers = windows.into_iter().map(layer).collect();
    let spec = DecoderSpec::of_config(config, layers, false)?;
    DecoderSpec { head: HeadSource::Own, ..spec }.load(config, weights)
}

fn mixture(config: &ModelConfig) -> Result<MixtureSpec> {
    Ok(MixtureSpec {
        experts: config.count("num_local_experts")?,
        chosen: config.count("num_experts_per_tok")?,
        intermediate: config.count("intermediate_size")?,
        activation: ACTIVATION,
        routing: Routing::SoftmaxOfTop,
        router_name: "router",
        experts_name: "experts",
        shared: None,
    })
}

/// Brings the layer's experts into stacks, and holds that all biases are there.
fn prepare(weights: &mut Weights, layer: &str) -> Result<()> {
    let experts = format!("{layer}.mlp.experts");
    unfold(weights, &experts)?;
    let attention = ["q_proj", "k_proj", "v_proj", "o_proj"];
    let attention = attention.map(|name| format!("{layer}.self_attn.{name}.bias"));
    let router = format!("{layer}.mlp.router.bias");
    let experts =
        ["gate_proj", "up_proj", "down_proj"].map(|name| format!("{experts}.{name}.bias"));
    weights.require(attention.into_iter().chain([router]).chain(experts))
}

/// As OpenAI publishes them: mxfp4 values in bytes, `*_blocks` `[E, out, in / 32, 16]` with `*_scales`
/// `[E, out, in / 32]` and `*_bias` `[E, out]`, and the rows of gate and up by turns in `gate_up_proj`.
fn unfold(weights: &mut Weights, path: &str) -> Result<()> {
    for name in ["gate_up_proj", "down_proj"] {
        let dense = format!("{path}.{name}");
        if weights.contains(&dense) {
            let message = format!("tensor `{dense}` is not supported: experts stored dense");
            return Err(Error::new(Code::BadModel, message).with_hint("use an mxfp4 checkpoint"));
        }
    }
    let parts = [("blocks", "weight"), ("scales", "scales"), ("bias", "bias")];
    for (stored, part) in parts {
        let name = format!("{path}.down_proj_{stored}");
        if weights.contains(&name) {
            let down = weights.detach(&name)?;
            weights.put(format!("{path}.down_proj.{part}"), values(down, stored, &name)?);
        }
        let name = format!("{path}.gate_up_proj_{stored}");
        if !weights.contains(&name) {
            continue;
        }
        let both = values(weights.detach(&name)?, stored, &name)?;
        for (first, target) in [(0, "gate_proj"), (1, "up_proj")] {
            let rows = every_other_row(&both, first, &name)?;
            ops::evaluate([&rows])?;
            weights.put(format!("{path}.{target}.{part}"), rows);
        }
    }
    Ok(())
}

/// Blocks of bytes as words in a row; others as they are.
fn values(array: Array, stored: &str, name: &str) -> Result<Array> {
    match (stored, array.shape()) {
        ("blocks", [_, _, _, BLOCK_BYTES]) => experts::bytes_as_words(&array),
        ("blocks", shape) => {
            let message = format!(
                "tensor `{name}` has shape {shape:?}, but blocks are [experts, rows, blocks, {BLOCK_BYTES}]"
            );
            Err(Error::new(Code::BadModel, message))
        }
        _ => Ok(array),
    }
}

/// Rows `first`, `first + 2`, ... of each expert of `[E, rows, ..]`.
fn every_other_row(array: &Array, first: i32, name: &str) -> Result<Array> {
    let [stack, rows, rest @ ..] = array.shape() else { return Err(odd(name, array)) };
    if rows % 2 != 0 {
        return Err(odd(name, array));
    }
    let pairs = [&[*stack, rows / 2, 2], rest].concat();
    let one = [&[*stack, rows / 2], rest].concat();
    let row = ops::slice_axis(&array.reshape(&pairs)?, 2, first, first + 1)?;
    Ok(row.reshape(&one)?.contiguous()?)
}

fn odd(name: &str, array: &Array) -> Error {
    let shape = array.shape();
    let message = format!("tensor `{name}` has shape {shape:?}, but gate and up share its rows");
    Error::new(Code::BadModel, message)
}
