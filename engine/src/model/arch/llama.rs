//! Llama (Touvron et al. 2023) and what shares its shape: grouped-query attention, rotary positions,
//! SwiGLU, RMS norms before each block, head tied or not. Layer math as mlx-lm 0.32.2's `llama.py`.

use crate::cache::Window;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    Attention, Block, Decoder, DecoderSizes, Embedding, Linear, Mlp, Residual, RmsNorm,
};
use crate::model::{ModelConfig, layer_windows};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let sizes = DecoderSizes::of_config(config)?;
    let tied = config.flag("tie_word_embeddings", true)?;
    let windows = layer_windows(config)?;
    let blocks = windows.into_iter().enumerate().map(|(index, window)| {
        block(config, weights, &format!("model.layers.{index}"), (sizes, window))
    });
    Ok(Decoder {
        blocks: blocks.collect::<Result<_>>()?,
        embedding: Embedding::load(weights, config, "model.embed_tokens", sizes.table())?,
        norm: RmsNorm::load(weights, "model.norm", sizes.attention.hidden, sizes.epsilon)?,
        head: match tied {
            true => None,
            false => Some(Linear::load(weights, config, "lm_head", sizes.table())?),
        },
        logit_cap: None,
    })
}

fn block(
    config: &ModelConfig,
    weights: &mut Weights,
    path: &str,
    (sizes, window): (DecoderSizes, Option<Window>),
) -> Result<Block> {
    let DecoderSizes { attention, intermediate, epsilon, .. } = sizes;
    let hidden = attention.hidden;
    let at = |name: &str| format!("{path}.{name}");
    Ok(Block {
        window,
        attention_norm: RmsNorm::load(weights, &at("input_layernorm"), hidden, epsilon)?,
        attention: Attention::load(weights, config, &at("self_attn"), attention)?,
        attended_norm: None,
        mlp_norm: RmsNorm::load(weights, &at("post_attention_layernorm"), hidden, epsilon)?,
        mlp: Mlp::load(weights, config, &at("mlp"), (hidden, intermediate))?,
        fed_norm: None,
        residual: Residual::Plain,
    })
}
