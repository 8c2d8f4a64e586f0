//! The text part of Qwen3.5, dense and with experts: three layers of [Gated DeltaNet](GatedDelta), then
//! one of gated attention, of which a quarter of each head turns; norms as in Llama. mlx-lm 0.32.2,
//! `qwen3_5.py` and `qwen3_5_moe.py`.
//!
//! Checkpoints come in two layouts: that of Hugging Face, where norm weights are stored around 0 and the
//! convolution's axes are in another order, and MLX's. They may hold a vision tower and a head that
//! predicts several tokens; neither is run.

use serde_json::Value;

use crate::error::Result;
use crate::mlx::{Array, Dtype, Weights, ops};
use crate::model::ModelConfig;
use crate::model::nn::{
    Activation, Attention, AttentionOptions, AttentionShape, Block, Decoder, DeltaRule, Embedding,
    FeedForward, GatedDelta, GatedDeltaShape, HeadNorms, Linear, LogitScale, Mixer, MixtureSpec,
    Mlp, NormSpan, Projections, Residual, RmsNorm, Rope, RopeOptions, Routing, SharedSpec,
};

const MODEL: &str = "language_model.model";
const HEAD: &str = "language_model.lm_head";
const INTERVAL_DEFAULT: i32 = 4;
const TURNING_PART_DEFAULT: f64 = 0.25;

/// Ends of the names of norms that Hugging Face's layout stores around 0.
pub const NORMS_AROUND_ZERO: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

/// Gives the tensors their names in MLX's layout and brings them into it; drops what is not run.
///
/// # Errors
/// `BadModel` when two tensors have one name; `EngineFailed` with MLX's text.
pub fn arrange(config: &ModelConfig, weights: &mut Weights) -> Result<()> {
    let tied = config.flag("tie_word_embeddings", false)?;
    weights.rename(|name| name_in_mlx(name).filter(|name| !(tied && name.starts_with(HEAD))))?;
    let from_hub = weights.iter().any(|(name, array)| is_filter_of_the_hub(name, array));
    weights.map(|name, array| {
        if is_filter_of_the_hub(name, array) {
            return Ok(array.transpose_axes(&[0, 2, 1])?);
        }
        match from_hub && NORMS_AROUND_ZERO.iter().any(|end| name.ends_with(end)) {
            true => ops::shift(array, 1.0),
            false => Ok(ops::share(array)),
        }
    })
}

/// Whether it is a convolution's weight with the tokens last, `[channels, 1, K]`.
fn is_filter_of_the_hub(name: &str, array: &Array) -> bool {
    name.ends_with("conv1d.weight") && array.ndim() == 3 && array.dim(2) != 1
}

/// The name of a tensor in MLX's layout; `None` for what is not run.
pub fn name_in_mlx(name: &str) -> Option<String> {
    const DROPPED: [&str; 2] = ["vision_tower", "model.visual"];
    if DROPPED.iter().any(|part| name.starts_with(part)) || name.contains("mtp.") {
        return None;
    }
    Some(match name.strip_prefix("model.language_model") {
        Some(rest) => format!("{MODEL}{rest}"),
        None if name.starts_with("language_model.") => name.to_owned(),
        None => format!("language_model.{name}"),
    })
}

/// Builds the model from its tensors, which [`arrange`] has seen.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let parts = Parts::of_config(config, weights.dtype().unwrap_or(Dtype::Float32))?;
    let table = (config.count("vocab_size")?, parts.attention.hidden);
    let blocks = parts.layers.iter().enumerate().map(|(index, layer)| {
        parts.block(config, weights, &format!("{MODEL}.layers.{index}"), *layer)
    });
    let blocks = blocks.collect::<Result<_>>()?;
    let tied = config.flag("tie_word_embeddings", false)?;
    Ok(Decoder {
        blocks,
        embedding: Embedding::load(weights, config, &format!("{MODEL}.embed_tokens"), table)?,
        norm: RmsNorm::load(weights, &format!("{MODEL}.norm"), table.1, parts.epsilon)?,
        head: (!tied).then(|| Linear::load(weights, config, HEAD, table)).transpose()?,
        logit_cap: None,
        logit_scale: LogitScale::Plain,
    })
}

/// How tokens reach each other in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Linear,
    Full,
}

/// What the config says.
#[derive(Debug)]
struct Parts {
    layers: Vec<Layer>,
    attention: AttentionShape,
    linear: GatedDeltaShape,
    rule: DeltaRule,
    rope: Rope,
    feed_forward: Feed,
    epsilon: f32,
}

/// What follows attention.
#[derive(Debug)]
enum Feed {
    /// A block of this inner width.
    Dense(i32),
    Mixture(MixtureSpec),
}

impl Parts {
    fn of_config(config: &ModelConfig, dtype: Dtype) -> Result<Self> {
        check_proven(config)?;
        let attention = AttentionShape::of_config(config)?;
        let linear = GatedDeltaShape::of_config(config)?;
        Ok(Self {
            layers: layers(config)?,
            attention,
            rule: DeltaRule::of_device(linear.memories(), dtype)?,
            linear,
            rope: rope(config, attention.head_dimension)?,
            feed_forward: Feed::of_config(config)?,
            epsilon: config.number("rms_norm_eps")?,
        })
    }

    fn block(
        &self,
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        layer: Layer,
    ) -> Result<Block> {
        let at = |name: &str| format!("{path}.{name}");
        let hidden = self.attention.hidden;
        let attention = match layer {
            Layer::Full => self.attention(config, weights, &at("self_attn"))?.into(),
            Layer::Linear => {
                let parts = (self.linear, &self.rule, self.epsilon);
                let layer = GatedDelta::load(weights, config, &at("linear_attn"), parts)?;
                Mixer::GatedDelta(layer)
            }
        };
        let mut norm = |name: &str| RmsNorm::load(weights, &at(name), hidden, self.epsilon);
        Ok(Block {
            window: None,
            attention_norm: Some(norm("input_layernorm")?),
            attention,
            attended_norm: None,
            mlp_norm: Some(norm("post_attention_layernorm")?),
            mlp: self.feed_forward.load(weights, config, &at("mlp"), hidden)?,
            fed_norm: None,
            residual: Residual::Plain,
        })
    }

    fn attention(
        &self,
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
    ) -> Result<Attention> {
        let dimension = self.attention.head_dimension;
        let mut norm =
            |name: &str| RmsNorm::load(weights, &format!("{path}.{name}"), dimension, self.epsilon);
        let (query, key) = (norm("q_norm")?, norm("k_norm")?);
        let options = AttentionOptions {
            head_norms: Some(HeadNorms {
                query,
                key: Some(key),
                value: None,
                span: NormSpan::EachHead,
            }),
            projections: Projections::Gated,
            ..AttentionOptions::of_rope(self.rope.clone(), dimension)
        };
        Attention::load_with(weights, config, path, self.attention, options)
    }
}

impl Feed {
    /// Experts where there are any.
    fn of_config(config: &ModelConfig) -> Result<Self> {
        if config.get("num_experts").is_none_or(|experts| *experts == 0) {
            return Ok(Self::Dense(config.count("intermediate_size")?));
        }
        let normalized = config.flag("norm_topk_prob", true)?;
        Ok(Self::Mixture(MixtureSpec {
            experts: config.count("num_experts")?,
            chosen: config.count("num_experts_per_tok")?,
            intermediate: config.count("moe_intermediate_size")?,
            activation: Activation::Silu,
            routing: Routing::TopOfSoftmax { normalized },
            router_name: "gate",
            experts_name: "switch_mlp",
            shared: Some(SharedSpec {
                name: "shared_expert",
                intermediate: config.count("shared_expert_intermediate_size")?,
                gate_name: Some("shared_expert_gate"),
            }),
        }))
    }

    fn load(
        &self,
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        hidden: i32,
    ) -> Result<FeedForward> {
        Ok(match self {
            Self::Dense(width) => Mlp::load(weights, config, path, (hidden, *width))?.into(),
            Self::Mixture(mixture) => mixture.load(weights, config, path, hidden)?.into(),
        })
    }
}

/// Every `full_attention_interval`-th layer is of attention. `layer_types`, which mlx-lm does not read,
/// must agree.
fn layers(config: &ModelConfig) -> Result<Vec<Layer>> {
    let interval = config.optional_count("full_attention_interval")?.unwrap_or(INTERVAL_DEFAULT);
    let layer = |index| if index % interval == 0 { Layer::Full } else { Layer::Linear };
    let layers: Vec<_> = (1..=config.count("num_hidden_layers")?).map(layer).collect();
    let name = |layer: &Layer| match layer {
        Layer::Full => "full_attention",
        Layer::Linear => "linear_attention",
    };
    let names: Vec<_> = layers.iter().map(name).collect();
    match config.get("layer_types").filter(|types| **types != Value::from(names.clone())) {
        Some(types) => Err(config.wrong("layer_types", types).with_hint(format!(
            "every {interval}th layer must be `full_attention`, and the others not"
        ))),
        None => Ok(layers),
    }
}

/// The leading part of each head turns. Where a position has three sections, for text they are one.
fn rope(config: &ModelConfig, head_dimension: i32) -> Result<Rope> {
    let parameters = config.section("rope_parameters")?;
    let parameters = parameters.ok_or_else(|| config.missing("rope_parameters"))?;
    let part = parameters.optional_precise_number("partial_rotary_factor")?;
    let part = part.unwrap_or(TURNING_PART_DEFAULT);
    Rope::new(&RopeOptions {
        dimensions: (f64::from(head_dimension) * part) as i32,
        base: parameters.precise_number("rope_theta")?,
        traditional: false,
        context_tokens: config.count("max_position_embeddings")?,
        scaling: Some(parameters),
    })
}

/// Refuses what the oracle does not run and would not see either.
fn check_proven(config: &ModelConfig) -> Result<()> {
    if !config.flag("attn_output_gate", true)? {
        return Err(config.wrong("attn_output_gate", &false.into()));
    }
    match config.get("hidden_act").filter(|activation| **activation != "silu") {
        Some(activation) => Err(config.wrong("hidden_act", activation)),
        None => Ok(()),
    }
}
