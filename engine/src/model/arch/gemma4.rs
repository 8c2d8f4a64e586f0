//! Gemma 4 (Google DeepMind 2026), the text part, in its shapes: dense (12B), small with **per-layer
//! inputs** and **shared columns** (e2b, e4b), and with experts (26B-A4B). Layer math as mlx-lm 0.32.2's
//! `gemma4_text.py`.
//!
//! Most layers slide over a window. The full ones have heads of another width, of which a part turns, and
//! may take their values from what the key projection makes. Scores are not scaled: queries and keys are
//! normalized. In the small shapes the last layers have no keys of their own, and so no cache: each
//! attends to the columns of the last layer of its kind that has one.
//!
//! The files: `plan` reads the config, `layer` is a layer, `per_layer` are the inputs of the small shapes,
//! `experts` are those of the large one, `checkpoint` names the tensors.

mod checkpoint;
mod experts;
pub(super) mod layer;
mod per_layer;
pub(super) mod plan;

use self::layer::Layer;
use self::per_layer::PerLayerInputs;
use self::plan::Plan;
use crate::cache::{CacheSet, KeyValues, Positions, TokenShape};
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::nn::{Embedding, Linear, RmsNorm};
use crate::model::{Model, ModelConfig};

pub use self::checkpoint::{arrange, arrange_text, bare_names, wrapped_names};

/// The language model of Gemma 4.
#[derive(Debug)]
pub struct Gemma4 {
    embedding: Embedding,
    per_layer: Option<PerLayerInputs>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// `None` when the embedding is the head too.
    head: Option<Linear>,
    logit_cap: Option<f32>,
}

/// Builds the model from the tensors of a checkpoint that may have towers, after [`arrange`].
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Gemma4> {
    Gemma4::load(config, weights, checkpoint::WRAPPED)
}

/// Builds the model from the tensors of a checkpoint that is text alone, after [`arrange_text`].
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load_text(config: &ModelConfig, weights: &mut Weights) -> Result<Gemma4> {
    Gemma4::load(config, weights, checkpoint::BARE)
}

impl Gemma4 {
    /// Takes the tensors under `root`.
    fn load(config: &ModelConfig, weights: &mut Weights, root: &str) -> Result<Self> {
        let plan = Plan::of_config(config)?;
        let model = |name: &str| format!("{root}model.{name}");
        let table = (plan.vocabulary, plan.hidden);
        let layers = plan.layers.iter().enumerate().map(|(index, layer)| {
            Layer::load(config, weights, &model(&format!("layers.{index}")), (&plan, layer))
        });
        let layers = layers.collect::<Result<_>>()?;
        let embedding = Embedding::load(weights, config, &model("embed_tokens"), table)?;
        let per_layer = plan.per_layer.as_ref();
        let per_layer = per_layer.map(|inputs| {
            PerLayerInputs::load(config, weights, &format!("{root}model"), (&plan, inputs))
        });
        let head = format!("{root}lm_head");
        Ok(Self {
            embedding: embedding.scaled(f64::from(plan.hidden).sqrt() as f32),
            per_layer: per_layer.transpose()?,
            layers,
            norm: RmsNorm::load(weights, &model("norm"), plan.hidden, plan.epsilon)?,
            head: match plan.tied {
                true => None,
                false => Some(Linear::load(weights, config, &head, table)?),
            },
            logit_cap: plan.logit_cap,
        })
    }

    /// What layer `index` attends to. `shown` are the columns of the layers before it that have a cache.
    fn attend(
        &self,
        index: usize,
        x: &Array,
        positions: &Positions,
        caches: &mut CacheSet,
        shown: &mut Vec<KeyValues>,
    ) -> Result<Array> {
        let layer = &self.layers[index];
        match layer.source {
            None => {
                let (attended, seen) = layer.attend(x, positions, caches.layer(index))?;
                shown.push(seen);
                Ok(attended)
            }
            Some(source) => {
                let mask = caches.layer(source).mask(positions)?;
                layer.attend_over(x, positions, &shown[source], mask)
            }
        }
    }
}

impl Model for Gemma4 {
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
        let inputs =
            self.per_layer.as_ref().map(|inputs| inputs.forward(tokens, &x)).transpose()?;
        let mut shown = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let attended = self.attend(index, &x, &positions, caches, &mut shown)?;
            let input = inputs.as_ref().map(|inputs| &inputs[index]);
            x = layer.feed(&x, &attended, input)?;
        }
        caches.advance(count);
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        let logits = match &self.head {
            Some(head) => head.forward(hidden)?,
            None => self.embedding.as_head(hidden)?,
        };
        match self.logit_cap {
            Some(cap) => ops::soft_cap(&logits, cap),
            None => Ok(logits),
        }
    }
}
