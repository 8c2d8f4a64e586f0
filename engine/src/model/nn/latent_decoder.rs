//! The stack of families with latent attention: an embedding, blocks of attention and feed-forward
//! around a residual stream, a norm, a head. Columns that one block chooses serve those after it that
//! do not choose.

use super::{
    Chosen, Embedding, FeedForward, IndexerSpec, LatentAttention, LatentAttentionSpec, LatentStep,
    Linear, MixtureSpec, Mlp, PredictionLayer, RmsNorm,
};
use crate::cache::{CacheSet, LatentCache, LayerCache, OwnedLayer, TokenShape};
use crate::error::Result;
use crate::mlx::{Array, Weights};
use crate::model::{Model, ModelConfig, PredictionHead};

/// A decoder as an architecture describes it.
#[derive(Debug)]
pub struct LatentDecoderSpec {
    /// Of every block.
    pub attention: LatentAttentionSpec,
    /// From the embedding on.
    pub layers: Vec<LatentLayerSpec>,
    /// The block of the prediction layer, taken where the checkpoint has that layer.
    pub prediction: Option<LatentLayerSpec>,
    /// Width inside feed-forward blocks that are no mixtures.
    pub intermediate: i32,
    /// Tokens that the embedding knows.
    pub vocabulary: i32,
    /// What the norms of the residual stream add under the root.
    pub epsilon: f32,
}

/// One block.
#[derive(Debug, Clone)]
pub struct LatentLayerSpec {
    /// How it chooses columns, where it does so itself.
    pub indexer: Option<IndexerSpec>,
    /// The experts that stand in for the one feed-forward block.
    pub mixture: Option<MixtureSpec>,
}

/// A decoder-only transformer with latent attention.
#[derive(Debug)]
pub struct LatentDecoder {
    embedding: Embedding,
    blocks: Vec<LatentBlock>,
    norm: RmsNorm,
    head: Linear,
    prediction: Option<PredictionLayer>,
    value_bytes: u64,
}

/// Attention, then feed-forward, each added to what came in.
#[derive(Debug)]
pub struct LatentBlock {
    attention_norm: RmsNorm,
    attention: LatentAttention,
    mlp_norm: RmsNorm,
    mlp: FeedForward,
}

impl LatentDecoderSpec {
    /// Takes the decoder's tensors.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(&self, config: &ModelConfig, weights: &mut Weights) -> Result<LatentDecoder> {
        let hidden = self.attention.shape.hidden;
        let table = (self.vocabulary, hidden);
        let value_bytes = weights.float_bytes();
        let blocks = self.layers.iter().enumerate();
        let blocks = blocks.map(|(index, layer)| {
            self.block(config, weights, &format!("model.layers.{index}"), layer)
        });
        let blocks = blocks.collect::<Result<_>>()?;
        let embedding = Embedding::load(weights, config, "model.embed_tokens", table)?;
        Ok(LatentDecoder {
            blocks,
            prediction: self.prediction(config, weights, &embedding, value_bytes)?,
            norm: RmsNorm::load(weights, "model.norm", hidden, self.epsilon)?,
            head: Linear::load(weights, config, "lm_head", table)?,
            embedding,
            value_bytes,
        })
    }

    /// The layer behind the last one, if the checkpoint has it: mlx-lm leaves it out when it converts.
    fn prediction(
        &self,
        config: &ModelConfig,
        weights: &mut Weights,
        embedding: &Embedding,
        value_bytes: u64,
    ) -> Result<Option<PredictionLayer>> {
        let path = format!("model.layers.{}", self.layers.len());
        match &self.prediction {
            Some(layer) if weights.contains(&format!("{path}.eh_proj.weight")) => {
                let block = self.block(config, weights, &path, layer)?;
                let sizes = (self.attention.shape.hidden, self.epsilon);
                let parts = (embedding.clone(), block, value_bytes);
                PredictionLayer::load(weights, config, &path, sizes, parts).map(Some)
            }
            Some(_) | None => Ok(None),
        }
    }

    fn block(
        &self,
        config: &ModelConfig,
        weights: &mut Weights,
        path: &str,
        layer: &LatentLayerSpec,
    ) -> Result<LatentBlock> {
        let at = |name: &str| format!("{path}.{name}");
        let (hidden, indexer) = (self.attention.shape.hidden, layer.indexer.as_ref());
        let (attention, mlp) = (at("self_attn"), at("mlp"));
        let mut norm = |name: &str| RmsNorm::load(weights, &at(name), hidden, self.epsilon);
        Ok(LatentBlock {
            attention_norm: norm("input_layernorm")?,
            mlp_norm: norm("post_attention_layernorm")?,
            attention: LatentAttention::load(
                weights,
                config,
                &attention,
                &self.attention,
                indexer,
            )?,
            mlp: match &layer.mixture {
                None => Mlp::load(weights, config, &mlp, (hidden, self.intermediate))?.into(),
                Some(mixture) => mixture.load(weights, config, &mlp, hidden)?.into(),
            },
        })
    }
}

impl Model for LatentDecoder {
    fn new_caches(&self) -> CacheSet {
        let layer = |block: &LatentBlock| block.new_cache(self.value_bytes);
        CacheSet::solo(self.blocks.iter().map(layer).collect())
    }

    /// Latents are neither keys nor values.
    fn token_shapes(&self) -> Vec<Option<TokenShape>> {
        vec![None; self.blocks.len()]
    }

    fn hidden(&self, tokens: &Array, caches: &mut CacheSet) -> Result<Array> {
        let x = self.embedding.forward(tokens)?;
        self.norm.forward(&forward_all(&self.blocks, x, caches)?)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.head.forward(hidden)
    }

    fn prediction_head(&self) -> Option<&dyn PredictionHead> {
        self.prediction.as_ref().map(|layer| layer as &dyn PredictionHead)
    }
}

/// Runs `x` `[B, L, hidden]` through `blocks`, each writing its cache of `caches`.
pub(super) fn forward_all(
    blocks: &[LatentBlock],
    mut x: Array,
    caches: &mut CacheSet,
) -> Result<Array> {
    let (tokens, width) = (x.dim(1), caches.geometry().width());
    let positions = caches.positions(tokens.unsigned_abs() as usize)?;
    let step = LatentStep::new(&positions, width, tokens)?;
    let mut chosen = Chosen::All;
    for (index, block) in blocks.iter().enumerate() {
        x = block.forward(&x, &step, caches.owned(index)?, &mut chosen)?;
    }
    caches.advance(tokens.unsigned_abs() as usize);
    Ok(x)
}

impl LatentBlock {
    /// An empty cache for its attention, when its numbers take `value_bytes` each.
    pub(super) fn new_cache(&self, value_bytes: u64) -> LayerCache {
        LayerCache::Owned(OwnedLayer::new(self.attention.new_cache(value_bytes)))
    }

    fn forward(
        &self,
        x: &Array,
        step: &LatentStep<'_>,
        cache: &mut LatentCache,
        chosen: &mut Chosen,
    ) -> Result<Array> {
        let input = self.attention_norm.forward(x)?;
        let x = x.add(self.attention.forward(&input, step, cache, chosen)?)?;
        Ok(x.add(self.mlp.forward(&self.mlp_norm.forward(&x)?)?)?)
    }
}
