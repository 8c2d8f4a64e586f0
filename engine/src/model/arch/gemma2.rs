//! Gemma 2 (Gemma Team 2024): Gemma with norms after each block too, and soft caps on attention's
//! scores and on the logits. Layer math as mlx-lm 0.32.2's `gemma2.py`, where every layer sees every
//! token.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    Activation, Attention, AttentionOptions, Block, Decoder, DecoderSizes, Embedding, LogitScale,
    Mlp, Residual, RmsNorm,
};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let sizes = DecoderSizes::of_config(config)?;
    let hidden = sizes.attention.hidden;
    let embedding = Embedding::load(weights, config, "model.embed_tokens", sizes.table())?;
    let blocks = (0..sizes.layers)
        .map(|index| block(config, weights, &format!("model.layers.{index}"), sizes));
    Ok(Decoder {
        blocks: blocks.collect::<Result<_>>()?,
        embedding: embedding.scaled((hidden as f32).sqrt()),
        norm: RmsNorm::load_around_one(weights, "model.norm", hidden, sizes.epsilon)?,
        head: None,
        logit_cap: Some(config.optional_number("final_logit_softcapping")?.unwrap_or(30.0)),
        logit_scale: LogitScale::Plain,
    })
}

fn block(
    config: &ModelConfig,
    weights: &mut Weights,
    path: &str,
    sizes: DecoderSizes,
) -> Result<Block> {
    let DecoderSizes { attention: shape, intermediate, epsilon, .. } = sizes;
    let hidden = shape.hidden;
    let at = |name: &str| format!("{path}.{name}");
    let options = attention_options(config, shape.head_dimension)?;
    let attention = Attention::load_with(weights, config, &at("self_attn"), shape, options)?;
    let mlp = Mlp::load(weights, config, &at("mlp"), (hidden, intermediate))?;
    let mut norm = |name: &str| RmsNorm::load_around_one(weights, &at(name), hidden, epsilon);
    Ok(Block {
        window: None,
        attention_norm: Some(norm("input_layernorm")?),
        attention: attention.into(),
        attended_norm: Some(norm("post_attention_layernorm")?),
        mlp_norm: Some(norm("pre_feedforward_layernorm")?),
        mlp: mlp.with_activation(Activation::GeluTanh).into(),
        fed_norm: Some(norm("post_feedforward_layernorm")?),
        residual: Residual::Plain,
    })
}

fn attention_options(config: &ModelConfig, head_dimension: i32) -> Result<AttentionOptions> {
    let scalar = config.optional_number("query_pre_attn_scalar")?.unwrap_or(144.0);
    let cap = config.optional_number("attn_logit_softcapping")?.unwrap_or(50.0);
    Ok(AttentionOptions {
        scale: scalar.powf(-0.5),
        score_cap: Some(cap),
        ..AttentionOptions::of_config(config, head_dimension)?
    })
}
