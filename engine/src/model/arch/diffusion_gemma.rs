//! DiffusionGemma (Google DeepMind 2026), the text part: the layers of Gemma 4 with experts, used in two
//! ways with the same weights. Math as in mlx-vlm 0.7.10's `diffusion_gemma/language.py`.
//!
//! The **encoder** reads from left to right and fills the caches. The **decoder** looks at a canvas of
//! tokens at once: each of them sees the whole canvas and what the caches hold, in sliding layers the
//! last columns of the window for all of them alike; it writes nothing. What a forward of the decoder
//! guessed comes into the next one by **self-conditioning** (Chen et al. 2022): the mean embedding of its
//! distribution at each place, through a gated block, is added to the token's own. Only the scalar that a
//! layer's result is multiplied by differs between the two.

use serde_json::json;

use super::gemma4::layer::Layer;
use super::gemma4::plan::Plan;
use crate::cache::{CacheSet, TokenShape};
use crate::error::Result;
use crate::mlx::{Array, Dtype, Weights, ops};
use crate::model::nn::{Activation, Embedding, Mlp, RmsNorm};
use crate::model::{BlockDiffusion, Decoding, Denoising, Model, ModelConfig};

/// Where the shared weights are.
const DECODER: &str = "model.decoder";

/// Where the encoder's scalars are.
const ENCODER: &str = "model.encoder.language_model";

/// Parts of the names of tensors that are not run: the vision tower, tables, and the head, which is the
/// embedding.
const IDLE: [&str; 4] =
    ["model.encoder.vision_tower.", "model.encoder.embed_vision.", "rotary_emb", "lm_head."];

/// The language model of DiffusionGemma.
#[derive(Debug)]
pub struct DiffusionGemma {
    embedding: Embedding,
    conditioning: SelfConditioning,
    layers: Vec<Layer>,
    /// What each layer's result is multiplied by in the encoder, `[1]`.
    encoder_scalars: Vec<Array>,
    norm: RmsNorm,
    logit_cap: Option<f32>,
    vocabulary: u32,
    denoising: Denoising,
}

/// `norm(x + mlp(norm(guess)))`.
#[derive(Debug)]
struct SelfConditioning {
    guess_norm: RmsNorm,
    mlp: Mlp,
    result_norm: RmsNorm,
}

/// Drops what is not run: the vision tower, and copies that the encoder has of the decoder's tensors.
///
/// # Errors
/// `BadModel` when tensors share a name.
pub fn arrange(_: &ModelConfig, weights: &mut Weights) -> Result<()> {
    weights.rename(|name| is_used(name).then(|| name.to_owned()))
}

/// Builds the model, after [`arrange`].
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<DiffusionGemma> {
    let plan = Plan::of_config(&as_gemma4(config)?)?;
    let layer = |(index, layer)| {
        Layer::load(config, weights, &format!("{DECODER}.layers.{index}"), (&plan, layer))
    };
    let layers: Vec<_> = plan.layers.iter().enumerate().map(layer).collect::<Result<_>>()?;
    let scalar =
        |index| weights.take_shaped(&format!("{ENCODER}.layers.{index}.layer_scalar"), &[1]);
    let encoder_scalars = (0..layers.len()).map(scalar).collect::<Result<_>>()?;
    let table = (plan.vocabulary, plan.hidden);
    let embedding = Embedding::load(weights, config, &format!("{DECODER}.embed_tokens"), table)?;
    Ok(DiffusionGemma {
        embedding: embedding.scaled(f64::from(plan.hidden).sqrt() as f32),
        conditioning: SelfConditioning::load(config, weights, &plan)?,
        layers,
        encoder_scalars,
        norm: RmsNorm::load(weights, &format!("{DECODER}.norm"), plan.hidden, plan.epsilon)?,
        logit_cap: plan.logit_cap,
        vocabulary: plan.vocabulary.unsigned_abs(),
        denoising: Denoising::of_config(config)?,
    })
}

/// The config of a Gemma 4 that has these layers: what goes without saying here is said there.
fn as_gemma4(config: &ModelConfig) -> Result<ModelConfig> {
    if config.get("layer_types").is_none() {
        return Err(config.missing("layer_types"));
    }
    for (name, expected) in [("attention_bias", false), ("tie_word_embeddings", true)] {
        if config.flag(name, expected)? != expected {
            return Err(config.wrong(name, &(!expected).into()));
        }
    }
    Ok(config.with_fields([
        ("num_kv_shared_layers", json!(0)),
        ("hidden_size_per_layer_input", json!(0)),
        ("attention_k_eq_v", json!(true)),
        ("enable_moe_block", json!(true)),
    ]))
}

fn is_used(name: &str) -> bool {
    let of_encoder = name.starts_with(ENCODER);
    let idle = IDLE.iter().any(|part| name.contains(part));
    !idle && (!of_encoder || name.ends_with(".layer_scalar"))
}

impl SelfConditioning {
    fn load(config: &ModelConfig, weights: &mut Weights, plan: &Plan) -> Result<Self> {
        let path = format!("{DECODER}.self_conditioning");
        let intermediate = config.count("intermediate_size")?;
        let mlp = Mlp::load(weights, config, &path, (plan.hidden, intermediate))?;
        let guess_norm = format!("{path}.pre_norm");
        Ok(Self {
            guess_norm: RmsNorm::load(weights, &guess_norm, plan.hidden, plan.epsilon)?,
            mlp: mlp.with_activation(Activation::GeluTanh),
            result_norm: RmsNorm::unweighted(plan.epsilon),
        })
    }

    /// `x` `[B, C, hidden]` with a guess of the same shape; without one, which is as with zeros, it is
    /// normalized only.
    fn forward(&self, x: &Array, guess: Option<&Array>) -> Result<Array> {
        match guess {
            None => self.result_norm.forward(x),
            Some(guess) => {
                let signal = self.mlp.forward(&self.guess_norm.forward(guess)?)?;
                self.result_norm.forward(&x.add(signal)?)
            }
        }
    }
}

impl Model for DiffusionGemma {
    fn new_caches(&self) -> CacheSet {
        CacheSet::solo(self.layers.iter().filter_map(Layer::new_cache).collect())
    }

    fn token_shapes(&self) -> Vec<Option<TokenShape>> {
        self.layers.iter().map(Layer::token_shape).collect()
    }

    fn hidden(&self, tokens: &Array, caches: &mut CacheSet) -> Result<Array> {
        let count = tokens.dim(1).unsigned_abs() as usize;
        let positions = caches.positions(count)?;
        let mut x = self.embedding.forward(tokens)?;
        for (index, (layer, scalar)) in self.layers.iter().zip(&self.encoder_scalars).enumerate() {
            let (attended, _) = layer.attend(&x, &positions, caches.layer(index))?;
            x = layer.feed_times(scalar, &x, &attended, None)?;
        }
        caches.advance(count);
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        let logits = self.embedding.as_head(hidden)?.as_dtype(Dtype::Float32)?;
        match self.logit_cap {
            Some(cap) => ops::soft_cap(&logits, cap),
            None => Ok(logits),
        }
    }

    fn decoding(&self) -> Decoding<'_> {
        Decoding::BlockDiffusion(self)
    }
}

impl BlockDiffusion for DiffusionGemma {
    fn denoising(&self) -> &Denoising {
        &self.denoising
    }

    fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    fn canvas_logits(
        &self,
        canvas: &Array,
        guess: Option<&Array>,
        caches: &CacheSet,
    ) -> Result<Array> {
        let positions = caches.positions(canvas.dim(1).unsigned_abs() as usize)?;
        let guess = guess.map(|logits| self.embedding.mean(logits)).transpose()?;
        let x = self.embedding.forward(canvas)?;
        let mut x = self.conditioning.forward(&x, guess.as_ref())?;
        for (index, layer) in self.layers.iter().enumerate() {
            let before = caches.before_next(index)?;
            let attended = layer.attend_beside(&x, &positions, before.as_ref())?;
            x = layer.feed(&x, &attended, None)?;
        }
        self.logits(&self.norm.forward(&x)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn of_the_encoder_only_scalars_are_used_and_of_the_tower_nothing() {
        for (name, used) in [
            ("model.decoder.layers.3.experts.gate_up_proj", true),
            ("model.decoder.layers.3.layer_scalar", true),
            ("model.decoder.self_conditioning.pre_norm.weight", true),
            ("model.encoder.language_model.layers.3.layer_scalar", true),
            ("model.encoder.language_model.layers.3.mlp.up_proj.weight", false),
            ("model.encoder.language_model.embed_tokens.weight", false),
            ("model.encoder.vision_tower.std_bias", false),
            ("model.encoder.embed_vision.embedding_projection.weight", false),
            ("lm_head.weight", false),
        ] {
            assert_eq!(is_used(name), used, "{name}");
        }
    }

    #[test]
    fn configs_that_do_not_fit_are_refused_by_name() {
        let kinds = json!(["full_attention"]);
        for (fields, named) in [
            (json!({}), "layer_types"),
            (json!({ "layer_types": kinds, "attention_bias": true }), "attention_bias"),
            (json!({ "layer_types": kinds, "tie_word_embeddings": false }), "tie_word_embeddings"),
        ] {
            let of = |fields: &Value| ModelConfig::from_fields(fields.as_object().unwrap().clone());
            let error = as_gemma4(&of(&fields)).unwrap_err();
            assert!(error.message().contains(named), "{fields}: {error}");
        }
    }
}
