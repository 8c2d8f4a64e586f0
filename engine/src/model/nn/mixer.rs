//! What lets the tokens of a row reach each other in a block.

use super::{Attention, ExpandedLatent, GatedDelta};
use crate::cache::{CacheSet, FullCache, LayerCache, Positions, RotatingCache, TokenShape, Window};
use crate::error::Result;
use crate::mlx::Array;

/// What lets the tokens of a row reach each other in a block.
#[derive(Debug)]
pub enum Mixer {
    /// Each token looks back at keys and values.
    Attention(Attention),
    /// A memory passes from token to token.
    GatedDelta(GatedDelta),
    /// The same, made from latents that are not kept.
    ExpandedLatent(ExpandedLatent),
}

impl From<Attention> for Mixer {
    fn from(attention: Attention) -> Self {
        Self::Attention(attention)
    }
}

impl From<ExpandedLatent> for Mixer {
    fn from(attention: ExpandedLatent) -> Self {
        Self::ExpandedLatent(attention)
    }
}

impl Mixer {
    /// An empty cache for one row; `window` is how far attention sees.
    pub fn new_cache(&self, window: Option<Window>) -> LayerCache {
        match (self, window) {
            (Self::GatedDelta(layer), _) => LayerCache::Recurrent(layer.new_cache()),
            (Self::Attention(_) | Self::ExpandedLatent(_), None) => {
                LayerCache::Full(FullCache::new())
            }
            (Self::Attention(_) | Self::ExpandedLatent(_), Some(window)) => {
                LayerCache::Rotating(RotatingCache::new(window))
            }
        }
    }

    /// What its cache keeps of one token, where that is keys and values.
    pub fn token_shape(&self) -> Option<TokenShape> {
        match self {
            Self::Attention(attention) => Some(attention.token_shape()),
            Self::GatedDelta(_) => None,
            Self::ExpandedLatent(attention) => Some(attention.token_shape()),
        }
    }

    /// Applies it to `[B, L, hidden]`, writing the cache of layer `index`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; `Internal` when the cache is of another kind.
    pub fn forward(
        &self,
        x: &Array,
        positions: &Positions,
        caches: &mut CacheSet,
        index: usize,
    ) -> Result<Array> {
        match self {
            Self::Attention(attention) => attention.forward(x, positions, caches.layer(index)),
            Self::GatedDelta(layer) => layer.forward(x, caches.recurrent(index)?),
            Self::ExpandedLatent(attention) => attention.forward(x, positions, caches.layer(index)),
        }
    }
}
