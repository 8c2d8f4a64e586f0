//! Gemma (Gemma Team 2024): Llama's shape with GELU in the gate, norm weights stored around 1, an
//! embedding that is the head too, and its vectors times the root of their width. Layer math as mlx-lm
//! 0.32.2's `gemma.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    Activation, Attention, Block, Decoder, DecoderSizes, Embedding, LogitScale, Mlp, Residual,
    RmsNorm,
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
        logit_cap: None,
        logit_scale: LogitScale::Plain,
    })
}

fn block(
    config: &ModelConfig,
    weights: &mut Weights,
    path: &str,
    sizes: DecoderSizes,
) -> Result<Block> {
    let DecoderSizes { attention, intermediate, epsilon, .. } = sizes;
    let hidden = attention.hidden;
    let at = |name: &str| format!("{path}.{name}");
    let mlp = Mlp::load(weights, config, &at("mlp"), (hidden, intermediate))?;
    let mut norm = |name: &str| RmsNorm::load_around_one(weights, &at(name), hidden, epsilon);
    Ok(Block {
        window: None,
        attention_norm: Some(norm("input_layernorm")?),
        attended_norm: None,
        mlp_norm: Some(norm("post_attention_layernorm")?),
        mlp: mlp.with_activation(Activation::Gelu).into(),
        fed_norm: None,
        attention: Attention::load(weights, config, &at("self_attn"), attention)?.into(),
        residual: Residual::Plain,
    })
}
