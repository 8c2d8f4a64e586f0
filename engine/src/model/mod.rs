//! Models: blocks in the terms of the papers, one file per architecture, and the loader.
//!
//! A model holds weights and nothing else; what a row has seen lives in its [`CacheSet`]. A forward
//! reads the set's positions once, lets each layer write its own cache, and advances the set.

pub mod arch;
mod blocks;
mod config;
mod embed;
mod fingerprint;
mod loader;
pub mod nn;
mod registry;
mod windows;

pub use blocks::{
    Acceptance, BlockDiffusion, CanvasLength, Decoding, Denoising, EarlyEnd, TemperatureSlope,
};
pub use config::{GENERATION, ModelConfig};
pub use embed::{EmbedOptions, embed, text_vector};
pub use fingerprint::fingerprint;
pub use loader::{LoadOptions, Loaded, Loading, estimate_weights_bytes, load, load_with_progress};
pub use registry::{Family, Tower};
pub use windows::{full_layers, layer_windows, layer_windows_or};

use std::fmt;

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
