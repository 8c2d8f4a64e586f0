//! MiniCPM3 (Hu et al. 2024): MiniCPM with keys and values made from latents. mlx-lm 0.32.2,
//! `minicpm3.py`.

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    Block, Decoder, DecoderSizes, Embedding, ExpandedLatent, ExpandedLatentShape, Linear,
    LogitScale, Mlp, Residual, RmsNorm, Rope, RopeOptions, rope_kind,
};

const BASE: f64 = 1_000_000.0;

/// Tokens that a model saw at once before it was stretched, where the config does not say.
const TRAINED_TOKENS: f64 = 4096.0;

/// What the norms of latents add under the root, whatever the config says of the others.
const LATENT_EPSILON: f32 = 1e-5;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let sizes = DecoderSizes::of_config(config)?;
    let hidden = sizes.attention.hidden;
    let shape = shape(config, sizes)?;
    let rope = rope(config, shape.turned)?;
    let depth = f64::from(sizes.layers).powf(0.5);
    let residual = Residual::Scaled((config.precise_number("scale_depth")? / depth) as f32);
    let blocks = (0..sizes.layers).map(|index| {
        let path = format!("model.layers.{index}");
        block(config, weights, &path, (sizes, shape, rope.clone(), residual))
    });
    let blocks = blocks.collect::<Result<_>>()?;
    let embedding = Embedding::load(weights, config, "model.embed_tokens", sizes.table())?;
    let narrowing = f64::from(hidden) / f64::from(config.count("dim_model_base")?);
    let tied = config.flag("tie_word_embeddings", false)?;
    let head = (!tied).then(|| Linear::load(weights, config, "lm_head", sizes.table()));
    Ok(Decoder {
        blocks,
        embedding: embedding.scaled(config.number("scale_emb")?),
        norm: RmsNorm::load(weights, "model.norm", hidden, sizes.epsilon)?,
        head: head.transpose()?,
        logit_cap: None,
        logit_scale: match tied {
            true => LogitScale::Plain,
            false => LogitScale::OfDividedInput(narrowing as f32),
        },
    })
}

fn shape(config: &ModelConfig, sizes: DecoderSizes) -> Result<ExpandedLatentShape> {
    let (hidden, heads) = (sizes.attention.hidden, sizes.attention.heads);
    Ok(ExpandedLatentShape {
        hidden,
        heads,
        query_latent: config.count("q_lora_rank")?,
        latent: config.count("kv_lora_rank")?,
        plain: config.count("qk_nope_head_dim")?,
        turned: config.count("qk_rope_head_dim")?,
        value: hidden / heads,
    })
}

/// LongRoPE always.
fn rope(config: &ModelConfig, dimensions: i32) -> Result<Rope> {
    let options = RopeOptions::of_config(config, dimensions, Some(BASE))?;
    let scaling = options.scaling.as_ref().ok_or_else(|| config.missing("rope_scaling"))?;
    let kind = rope_kind(scaling)?;
    if !["longrope", "su"].contains(&kind) {
        let hint = "this family is proven with longrope only";
        return Err(config.wrong("rope_scaling", &kind.into()).with_hint(hint));
    }
    let trained = scaling.optional_precise_number("original_max_position_embeddings")?;
    Rope::long(&options, scaling, trained.unwrap_or(TRAINED_TOKENS))
}

fn block(
    config: &ModelConfig,
    weights: &mut Weights,
    path: &str,
    (sizes, shape, rope, residual): (DecoderSizes, ExpandedLatentShape, Rope, Residual),
) -> Result<Block> {
    let at = |name: &str| format!("{path}.{name}");
    let attention = (shape, rope, LATENT_EPSILON);
    let attention = ExpandedLatent::load(weights, config, &at("self_attn"), attention)?;
    let mlp = Mlp::load(weights, config, &at("mlp"), (shape.hidden, sizes.intermediate))?;
    let mut norm = |name: &str| RmsNorm::load(weights, &at(name), shape.hidden, sizes.epsilon);
    Ok(Block {
        window: None,
        attention_norm: Some(norm("input_layernorm")?),
        attention: attention.into(),
        attended_norm: None,
        mlp_norm: Some(norm("post_attention_layernorm")?),
        mlp: mlp.into(),
        fed_norm: None,
        residual,
    })
}
