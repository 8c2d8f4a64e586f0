//! The caches of all layers of one row or of a batch, moved together.

use super::columns::KeyValues;
use super::full::FullCache;
use super::geometry::{self, Geometry, Offset};
use super::scheme::{KvScheme, Packing};
use crate::error::Result;
use crate::mlx::ops::{self, Mask};
use crate::mlx::{Array, ThreadBound};

/// One layer's cache.
#[derive(Debug)]
pub enum LayerCache {
    /// Every token, every column.
    Full(FullCache),
}

impl LayerCache {
    /// Packs what it holds in plain form, as `packing` says. Says whether there was anything to pack.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; the cache is then unusable.
    pub fn convert(&mut self, packing: Packing) -> Result<bool> {
        match self {
            Self::Full(cache) => cache.convert(packing),
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        match self {
            Self::Full(cache) => cache.arrays(),
        }
    }
}

/// The caches of all layers of one row or of a batch of rows. It stays on the engine thread:
///
/// ```compile_fail
/// fn leaves_its_thread<T: Send>() {}
/// leaves_its_thread::<slipstream_engine::cache::CacheSet>();
/// ```
#[derive(Debug)]
pub struct CacheSet {
    layers: Vec<LayerCache>,
    geometry: Geometry,
    bound: ThreadBound,
}

/// What all layers of one forward share: made once, before the first layer writes.
#[derive(Debug)]
pub struct Positions {
    /// Where the new tokens stand, for rotary embeddings.
    pub offset: Offset,
    /// What full-attention layers may attend to.
    pub full_mask: Mask,
}

impl CacheSet {
    /// An empty row with these layers.
    pub fn solo(layers: Vec<LayerCache>) -> Self {
        Self { layers, geometry: Geometry::solo(), bound: ThreadBound::default() }
    }

    /// How many rows it holds.
    pub fn rows(&self) -> usize {
        self.geometry.rows()
    }

    /// The rows' widths and paddings.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Offsets and masks for `tokens` new columns. Nothing is written.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn positions(&self, tokens: usize) -> Result<Positions> {
        Ok(Positions {
            offset: self.geometry.offset(),
            full_mask: self.geometry.full_mask(tokens)?,
        })
    }

    /// The cache of layer `index` and the width it is written at.
    pub fn layer(&mut self, index: usize) -> LayerSlot<'_> {
        LayerSlot { cache: &mut self.layers[index], width: self.geometry.width() }
    }

    /// Counts `tokens` columns that every layer has written.
    pub fn advance(&mut self, tokens: usize) {
        self.geometry.advance(tokens);
    }

    /// Adds `joiner`'s rows below these, right-aligned on the wider set, as mlx-lm 0.32.2's
    /// `BatchKVCache.extend` does: padding grows, nothing is renormalized.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; the set is then unusable.
    pub fn extend(&mut self, joiner: Self) -> Result<()> {
        let widths = (self.geometry.width(), joiner.geometry.width());
        for (layer, other) in self.layers.iter_mut().zip(joiner.layers) {
            match (layer, other) {
                (LayerCache::Full(layer), LayerCache::Full(other)) => {
                    layer.extend(other, widths)?;
                }
            }
        }
        self.geometry.extend(&joiner.geometry);
        Ok(())
    }

    /// Keeps the rows at `keep`, in that order, and drops the padding that they share.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; the set is then unusable.
    pub fn filter(&mut self, keep: &[usize]) -> Result<()> {
        let shift = self.geometry.filter(keep);
        let rows = geometry::indices(keep);
        for layer in &mut self.layers {
            match layer {
                LayerCache::Full(layer) => layer.filter(&rows, shift)?,
            }
        }
        Ok(())
    }

    /// Copies row `row` out as fresh solo caches.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extract(&self, row: usize) -> Result<Self> {
        let columns = self.geometry.columns_of(row);
        let layers = self.layers.iter().map(|layer| match layer {
            LayerCache::Full(layer) => Ok(LayerCache::Full(layer.extract(row, &columns)?)),
        });
        let geometry = Geometry::solo_of_width(columns.end - columns.start);
        Ok(Self { layers: layers.collect::<Result<_>>()?, geometry, bound: self.bound })
    }

    /// Brings the layers into the form that `scheme` has for them after a forward, one after the other:
    /// each is evaluated before the next, so that its plain buffers are free by then.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; the set is then unusable.
    pub fn convert(&mut self, scheme: &KvScheme) -> Result<()> {
        let tokens = self.geometry.width().unsigned_abs() as usize;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if let Some(packing) = scheme.packing_at(index, tokens)
                && layer.convert(packing)?
            {
                ops::evaluate(layer.arrays())?;
            }
        }
        Ok(())
    }

    /// Every array, to evaluate them at once.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerCache::arrays)
    }

    /// Bytes of all buffers, granules and padding included.
    pub fn bytes(&self) -> u64 {
        self.arrays().map(|array| array.nbytes() as u64).sum()
    }
}

/// One layer's cache, about to be written at `width`.
#[derive(Debug)]
pub struct LayerSlot<'set> {
    cache: &'set mut LayerCache,
    width: i32,
}

impl LayerSlot<'_> {
    /// Writes keys and values `[B, H, L, D]` and returns all columns to attend to.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn update(self, keys: Array, values: Array) -> Result<KeyValues> {
        match self.cache {
            LayerCache::Full(cache) => cache.update(self.width, &KeyValues::plain(keys, values)),
        }
    }
}
