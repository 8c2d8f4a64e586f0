//! What a model is to the rest of the engine.

use std::fmt;

use super::Decoding;
use crate::cache::{CacheSet, TokenShape};
use crate::error::Result;
use crate::mlx::Array;

/// A language model that reads from left to right, and writes so too unless [`Model::decoding`] says
/// otherwise.
pub trait Model: fmt::Debug {
    /// Empty caches for one row. What it says about them, such as why rows cannot share a batch, holds
    /// for every set of this model.
    fn new_caches(&self) -> CacheSet;

    /// What the cache of each layer keeps of one token, in their order; `None` where that is not keys
    /// and values. Layers that have no cache come last, and are `None` too.
    fn token_shapes(&self) -> Vec<Option<TokenShape>>;

    /// Runs tokens `[B, L]` through every layer, writing `caches`, and returns the normalized last
    /// hidden states `[B, L, hidden]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; `caches` are then unusable.
    fn hidden(&self, tokens: &Array, caches: &mut CacheSet) -> Result<Array>;

    /// The head: hidden states `[B, L, hidden]` to logits `[B, L, V]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    fn logits(&self, hidden: &Array) -> Result<Array>;

    /// How rows go on once their prompt is read.
    fn decoding(&self) -> Decoding<'_> {
        Decoding::NextToken
    }

    /// The layer that drafts, where the checkpoint brought one along and the family knows it.
    fn prediction_head(&self) -> Option<&dyn PredictionHead> {
        None
    }
}

/// A multi-token-prediction head (DeepSeek-AI 2024, "DeepSeek-V3", section 2.2): from what the model
/// made of token `t` and from token `t + 1` it predicts token `t + 2`, with caches of its own.
pub trait PredictionHead: fmt::Debug {
    /// Its empty caches for one row.
    fn new_caches(&self) -> CacheSet;

    /// Runs the model's normalized hidden states of some tokens `[B, L, hidden]`, each with the token
    /// after it `[B, L]`, writing `caches`. What it returns, `[B, L, hidden]`, goes through
    /// [`Model::logits`], and stands for the model's hidden states when the next token is drafted.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; `caches` are then unusable.
    fn hidden(&self, states: &Array, next: &Array, caches: &mut CacheSet) -> Result<Array>;
}
