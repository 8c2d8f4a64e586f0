//! Llama (Touvron et al. 2023) and what shares its shape: grouped-query attention, rotary positions,
//! SwiGLU, RMS norms before each block, head tied or not. Layer math as mlx-lm 0.32.2's `llama.py`.

use serde_json::Value;

use crate::cache::{
    CacheSet, FullCache, LayerCache, LayerSlot, Positions, RotatingCache, TokenShape, Window,
};
use crate::error::Result;
use crate::mlx::{Array, Weights};
use crate::model::nn::{Attention, AttentionShape, Embedding, Linear, Mlp, RmsNorm};
use crate::model::{Model, ModelConfig};

/// The model.
#[derive(Debug)]
pub struct Llama {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Option<Linear>,
}

#[derive(Debug)]
struct Block {
    /// How far it sees; `None` is everything.
    window: Option<Window>,
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

/// The sizes that a block needs.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    attention: AttentionShape,
    intermediate: i32,
    epsilon: f32,
}

impl Llama {
    /// Builds the model from its tensors.
    ///
    /// # Errors
    /// `BadModel` when a field or tensor is missing or does not fit.
    pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Self> {
        let sizes = Sizes::of_config(config)?;
        let hidden = sizes.attention.hidden;
        let vocabulary = config.count("vocab_size")?;
        let tied = config.flag("tie_word_embeddings", true)?;
        let blocks = windows(config)?.into_iter().enumerate().map(|(index, window)| {
            Block::load(config, weights, &format!("model.layers.{index}"), (sizes, window))
        });
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            embedding: Embedding::load(
                weights,
                config,
                "model.embed_tokens",
                (vocabulary, hidden),
            )?,
            norm: RmsNorm::load(weights, "model.norm", hidden, sizes.epsilon)?,
            head: match tied {
                true => None,
                false => Some(Linear::load(weights, config, "lm_head", (vocabulary, hidden))?),
            },
        })
    }
}

impl Model for Llama {
    fn new_caches(&self) -> CacheSet {
        let layer = |block: &Block| match block.window {
            None => LayerCache::Full(FullCache::new()),
            Some(window) => LayerCache::Rotating(RotatingCache::new(window)),
        };
        CacheSet::solo(self.blocks.iter().map(layer).collect())
    }

    fn token_shapes(&self) -> Vec<Option<TokenShape>> {
        self.blocks.iter().map(|block| Some(block.attention.token_shape())).collect()
    }

    fn hidden(&self, tokens: &Array, caches: &mut CacheSet) -> Result<Array> {
        let count = tokens.dim(1).unsigned_abs() as usize;
        let positions = caches.positions(count)?;
        let mut x = self.embedding.forward(tokens)?;
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &positions, caches.layer(index))?;
        }
        caches.advance(count);
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        match &self.head {
            Some(head) => head.forward(hidden),
            None => self.embedding.as_head(hidden),
        }
    }
}

impl Block {
    fn load(
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        (sizes, window): (Sizes, Option<Window>),
    ) -> Result<Self> {
        let Sizes { attention, intermediate, epsilon } = sizes;
        let hidden = attention.hidden;
        let at = |name: &str| format!("{path}.{name}");
        Ok(Self {
            window,
            attention_norm: RmsNorm::load(weights, &at("input_layernorm"), hidden, epsilon)?,
            attention: Attention::load(weights, config, &at("self_attn"), attention)?,
            mlp_norm: RmsNorm::load(weights, &at("post_attention_layernorm"), hidden, epsilon)?,
            mlp: Mlp::load(weights, config, &at("mlp"), (hidden, intermediate))?,
        })
    }

    fn forward(&self, x: &Array, positions: &Positions, cache: LayerSlot<'_>) -> Result<Array> {
        let attended =
            self.attention.forward(&self.attention_norm.forward(x)?, positions, cache)?;
        let x = x.add(attended)?;
        let fed = self.mlp.forward(&self.mlp_norm.forward(&x)?)?;
        Ok(x.add(fed)?)
    }
}

impl Sizes {
    fn of_config(config: &ModelConfig) -> Result<Self> {
        let hidden = config.count("hidden_size")?;
        let heads = config.count("num_attention_heads")?;
        let head_dimension = config.optional_count("head_dim")?.unwrap_or(hidden / heads);
        Ok(Self {
            attention: AttentionShape {
                hidden,
                heads,
                kv_heads: config.optional_count("num_key_value_heads")?.unwrap_or(heads),
                head_dimension,
            },
            intermediate: config.count("intermediate_size")?,
            epsilon: config.number("rms_norm_eps")?,
        })
    }
}

/// The window of each layer: `sliding_window` tokens where `layer_types` says so. A kind that is not
/// known is refused: running it as another would give other text.
fn windows(config: &ModelConfig) -> Result<Vec<Option<Window>>> {
    let layers = config.count("num_hidden_layers")?.unsigned_abs() as usize;
    let Some(types) = config.get("layer_types") else {
        return Ok(vec![None; layers]);
    };
    let wrong = || {
        config.wrong("layer_types", types).with_hint(format!(
            "{layers} layers need as many entries, each `full_attention` or `sliding_attention`"
        ))
    };
    let kinds = types.as_array().filter(|kinds| kinds.len() == layers).ok_or_else(wrong)?;
    let window = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Window::new(config.count("sliding_window")?, 0).map(Some),
        _ => Err(wrong()),
    };
    kinds.iter().map(window).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Code;

    fn of(fields: &Value) -> Result<Vec<Option<Window>>> {
        windows(&ModelConfig::from_fields(fields.as_object().unwrap().clone()))
    }

    #[test]
    fn layers_slide_where_the_config_says_so() {
        let window = Window::new(8, 0).unwrap();
        let types = ["sliding_attention", "full_attention"];
        let config = json!({ "num_hidden_layers": 2, "layer_types": types, "sliding_window": 8 });
        assert_eq!(of(&config).unwrap(), [Some(window), None]);
        let config = json!({ "num_hidden_layers": 2, "sliding_window": 8 });
        assert_eq!(of(&config).unwrap(), [None, None], "a window alone makes no layer slide");
    }

    #[test]
    fn layer_types_that_do_not_fit_are_refused_by_name() {
        let sliding = "sliding_attention";
        let cases = [
            (json!({ "layer_types": [sliding], "sliding_window": 8 }), "layer_types"),
            (json!({ "layer_types": [sliding, "chunked"], "sliding_window": 8 }), "layer_types"),
            (json!({ "layer_types": "full_attention" }), "layer_types"),
            (json!({ "layer_types": [sliding, sliding] }), "sliding_window"),
            (json!({ "layer_types": [sliding, sliding], "sliding_window": -1 }), "sliding_window"),
        ];
        for (mut config, field) in cases {
            config["num_hidden_layers"] = json!(2);
            let error = of(&config).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(field), "{error}");
        }
    }
}
