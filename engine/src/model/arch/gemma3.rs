//! The text part of Gemma 3 (Gemma Team 2025): Gemma 2's norms without its caps, norms of each head's
//! queries and keys, and most layers sliding over a window with a rotary base of their own. Layer math
//! as mlx-lm 0.32.2's `gemma3_text.py`.

use half::bf16;

use crate::cache::Window;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    Activation, Attention, AttentionOptions, AttentionShape, Block, Decoder, DecoderSizes,
    Embedding, HeadNorms, Linear, LogitScale, Mlp, NormSpan, Residual, RmsNorm, Rope,
};
use crate::model::{ModelConfig, layer_windows};

const PATTERN_DEFAULT: i32 = 6;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let sizes = DecoderSizes::of_config(config)?;
    let hidden = sizes.attention.hidden;
    let embedding = Embedding::load(weights, config, "model.embed_tokens", sizes.table())?;
    let windows = windows(config, sizes.layers)?;
    let blocks = windows.into_iter().enumerate().map(|(index, window)| {
        block(config, weights, &format!("model.layers.{index}"), (sizes, window))
    });
    Ok(Decoder {
        blocks: blocks.collect::<Result<_>>()?,
        // Rounded so in every type, as the model was trained.
        embedding: embedding.scaled(bf16::from_f32((hidden as f32).sqrt()).to_f32()),
        norm: RmsNorm::load_around_one(weights, "model.norm", hidden, sizes.epsilon)?,
        head: match weights.contains("lm_head.weight") {
            true => Some(Linear::load(weights, config, "lm_head", sizes.table())?),
            false => None,
        },
        logit_cap: None,
        logit_scale: LogitScale::Plain,
    })
}

/// `layer_types` where the config has them; else every `sliding_window_pattern`-th layer sees
/// everything.
fn windows(config: &ModelConfig, layers: i32) -> Result<Vec<Option<Window>>> {
    if config.get("layer_types").is_some() {
        return layer_windows(config);
    }
    let pattern = config.optional_count("sliding_window_pattern")?.unwrap_or(PATTERN_DEFAULT);
    let window = Window::new(config.count("sliding_window")?, 0)?;
    Ok((1..=layers).map(|layer| (layer % pattern != 0).then_some(window)).collect())
}

fn block(
    config: &ModelConfig,
    weights: &mut Weights,
    path: &str,
    (sizes, window): (DecoderSizes, Option<Window>),
) -> Result<Block> {
    let DecoderSizes { attention: shape, intermediate, epsilon, .. } = sizes;
    let hidden = shape.hidden;
    let at = |name: &str| format!("{path}.{name}");
    let mlp = Mlp::load(weights, config, &at("mlp"), (hidden, intermediate))?;
    let mut norm =
        |name: &str, width: i32| RmsNorm::load_around_one(weights, &at(name), width, epsilon);
    let head_norms = HeadNorms {
        query: norm("self_attn.q_norm", shape.head_dimension)?,
        key: norm("self_attn.k_norm", shape.head_dimension)?,
        span: NormSpan::EachHead,
    };
    let options = AttentionOptions {
        scale: attention_scale(config)?,
        head_norms: Some(head_norms),
        ..AttentionOptions::of_rope(rope(config, window, shape)?, shape.head_dimension)
    };
    Ok(Block {
        window,
        attention_norm: Some(norm("input_layernorm", hidden)?),
        attended_norm: Some(norm("post_attention_layernorm", hidden)?),
        mlp_norm: Some(norm("pre_feedforward_layernorm", hidden)?),
        mlp: mlp.with_activation(Activation::GeluTanh).into(),
        fed_norm: Some(norm("post_feedforward_layernorm", hidden)?),
        attention: Attention::load_with(weights, config, &at("self_attn"), shape, options)?.into(),
        residual: Residual::Finite,
    })
}

/// Layers that slide have their own base and are never stretched.
fn rope(config: &ModelConfig, window: Option<Window>, shape: AttentionShape) -> Result<Rope> {
    let base = |name: &str, default: f32| -> Result<f32> {
        Ok(config.optional_number(name)?.unwrap_or(default))
    };
    match window {
        Some(_) => Ok(Rope::plain(base("rope_local_base_freq", 10_000.0)?, shape.head_dimension)),
        None => Rope::with_base(config, base("rope_theta", 1_000_000.0)?, shape.head_dimension),
    }
}

fn attention_scale(config: &ModelConfig) -> Result<f32> {
    let scalar = config.optional_number("query_pre_attn_scalar")?.unwrap_or(256.0);
    Ok(scalar.powf(-0.5))
}
