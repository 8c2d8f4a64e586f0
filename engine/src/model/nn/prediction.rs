//! A multi-token-prediction layer: one more block, fed with what the model made of a token and with the
//! token after it (DeepSeek-AI 2024, "DeepSeek-V3", section 2.2).

use super::latent_decoder::{LatentBlock, forward_all};
use super::{Embedding, Linear, RmsNorm};
use crate::cache::CacheSet;
use crate::error::Result;
use crate::mlx::{Array, Weights, ops};
use crate::model::{ModelConfig, PredictionHead};

/// `norm(block(merge([norm(embedding of the next token), norm(state)])))`; the model's own embedding
/// and head serve it.
#[derive(Debug)]
pub struct PredictionLayer {
    embedding: Embedding,
    embedding_norm: RmsNorm,
    state_norm: RmsNorm,
    merge: Linear,
    block: [LatentBlock; 1],
    norm: RmsNorm,
    value_bytes: u64,
}

impl PredictionLayer {
    /// Takes `path.{enorm,hnorm,eh_proj,shared_head.norm}` beside its block, whose tensors are taken
    /// already. The numbers in its caches take `value_bytes` each.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (hidden, epsilon): (i32, f32),
        (embedding, block, value_bytes): (Embedding, LatentBlock, u64),
    ) -> Result<Self> {
        let at = |name: &str| format!("{path}.{name}");
        let mut norm = |name: &str| RmsNorm::load(weights, &at(name), hidden, epsilon);
        Ok(Self {
            embedding_norm: norm("enorm")?,
            state_norm: norm("hnorm")?,
            norm: norm("shared_head.norm")?,
            merge: Linear::load(weights, config, &at("eh_proj"), (hidden, 2 * hidden))?,
            block: [block],
            embedding,
            value_bytes,
        })
    }
}

impl PredictionHead for PredictionLayer {
    fn new_caches(&self) -> CacheSet {
        CacheSet::solo(vec![self.block[0].new_cache(self.value_bytes)])
    }

    fn hidden(&self, states: &Array, next: &Array, caches: &mut CacheSet) -> Result<Array> {
        let next = self.embedding_norm.forward(&self.embedding.forward(next)?)?;
        let both = ops::concatenate_axis(&[next, self.state_norm.forward(states)?], 2)?;
        let x = forward_all(&self.block, self.merge.forward(&both)?, caches)?;
        self.norm.forward(&x)
    }
}
