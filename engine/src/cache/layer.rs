//! One layer's cache: the closed list of kinds, and what each does when rows come and go.

use std::ops::Range;

use super::columns::KeyValues;
use super::full::FullCache;
use super::geometry::{self, Geometry};
use super::owned::OwnedLayer;
use super::profile::LayerBytes;
use super::recurrent::RecurrentCache;
use super::ring::{Join, Ring};
use super::rotating::RotatingCache;
use super::scheme::Packing;
use super::set::Positions;
use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops::{self, Mask};

/// One layer's cache.
#[derive(Debug)]
pub enum LayerCache {
    /// Every token, every column.
    Full(FullCache),
    /// The columns of a sliding window.
    Rotating(RotatingCache),
    /// States without a time axis.
    Recurrent(RecurrentCache),
    /// Whatever its architecture makes of it.
    Owned(OwnedLayer),
}

/// The bookkeeping of an `extend`: what was true of both sets before it.
pub(super) struct Joining {
    pub(super) widths: (i32, i32),
    pub(super) rows: (i32, i32),
    /// One per ring.
    pub(super) rings: Vec<Join>,
}

/// The bookkeeping of a `merge`.
pub(super) struct Merging {
    pub(super) widths: Vec<i32>,
    /// Per ring and row, the columns that go in.
    pub(super) rings: Vec<Vec<Vec<Range<i32>>>>,
}

/// The bookkeeping of a `filter`.
pub(super) struct Keeping<'a> {
    pub(super) rows: &'a [usize],
    /// The columns of full layers that stay, spare ones included.
    pub(super) columns: Range<i32>,
}

/// The bookkeeping of an `extract`.
pub(super) struct Extraction {
    pub(super) row: usize,
    pub(super) columns: Range<i32>,
    /// Per ring, the columns that are the row's.
    pub(super) rings: Vec<Vec<Range<i32>>>,
}

impl LayerCache {
    pub(super) fn extend(&mut self, other: Self, rings: &[Ring], joining: &Joining) -> Result<()> {
        match (self, other) {
            (Self::Full(own), Self::Full(other)) => own.extend(other, joining.widths, joining.rows),
            (Self::Rotating(own), Self::Rotating(other)) => {
                let join = &joining.rings[ring_of(rings, own)?];
                own.extend(other, join, joining.rows)
            }
            (Self::Recurrent(own), Self::Recurrent(other)) => own.extend(other, joining.rows),
            (Self::Owned(own), Self::Owned(other)) => own.extend(other),
            (Self::Full(_) | Self::Rotating(_) | Self::Recurrent(_) | Self::Owned(_), _) => {
                Err(mixed_kinds())
            }
        }
    }

    /// One layer of several lone ones, all of the kind of `first`.
    pub(super) fn merge(
        first: Self,
        rest: Vec<Self>,
        rings: &[Ring],
        merging: &Merging,
    ) -> Result<Self> {
        match first {
            Self::Full(first) => {
                let all = of_one_kind(first, rest, |layer| match layer {
                    Self::Full(cache) => Some(cache),
                    Self::Rotating(_) | Self::Recurrent(_) | Self::Owned(_) => None,
                })?;
                FullCache::merge(&all, &merging.widths).map(Self::Full)
            }
            Self::Rotating(first) => {
                let parts = &merging.rings[ring_of(rings, &first)?];
                let all = of_one_kind(first, rest, |layer| match layer {
                    Self::Rotating(cache) => Some(cache),
                    Self::Full(_) | Self::Recurrent(_) | Self::Owned(_) => None,
                })?;
                RotatingCache::merge(&all, parts).map(Self::Rotating)
            }
            Self::Recurrent(first) => {
                let all = of_one_kind(first, rest, |layer| match layer {
                    Self::Recurrent(cache) => Some(cache),
                    Self::Full(_) | Self::Rotating(_) | Self::Owned(_) => None,
                })?;
                RecurrentCache::merge(all).map(Self::Recurrent)
            }
            Self::Owned(first) => {
                let all = of_one_kind(first, rest, |layer| match layer {
                    Self::Owned(cache) => Some(cache),
                    Self::Full(_) | Self::Rotating(_) | Self::Recurrent(_) => None,
                })?;
                OwnedLayer::merge(all).map(Self::Owned)
            }
        }
    }

    pub(super) fn filter(&mut self, keeping: &Keeping<'_>) -> Result<()> {
        match self {
            Self::Full(layer) => layer.filter(&geometry::indices(keeping.rows), &keeping.columns),
            Self::Rotating(layer) => layer.filter(&geometry::indices(keeping.rows)),
            Self::Recurrent(layer) => layer.filter(&geometry::indices(keeping.rows)),
            Self::Owned(layer) => layer.filter(keeping.rows),
        }
    }

    pub(super) fn extract(&self, rings: &[Ring], extraction: &Extraction) -> Result<Self> {
        let row = extraction.row;
        match self {
            Self::Full(layer) => layer.extract(row, &extraction.columns).map(Self::Full),
            Self::Rotating(layer) => {
                let ranges = &extraction.rings[ring_of(rings, layer)?];
                layer.extract(row, ranges).map(Self::Rotating)
            }
            Self::Recurrent(layer) => layer.extract(row).map(Self::Recurrent),
            Self::Owned(layer) => layer.extract(row).map(Self::Owned),
        }
    }

    /// What a token in the next column of a lone row would see, `width` columns being written.
    pub(super) fn before_next(&self, width: i32, rings: &[Ring]) -> Result<Option<KeyValues>> {
        match self {
            Self::Full(layer) => layer.columns(width),
            Self::Rotating(layer) => {
                layer.columns(&rings[ring_of(rings, layer)?].ranges_before_next())
            }
            Self::Recurrent(_) | Self::Owned(_) => Err(no_columns()),
        }
    }

    pub(super) fn can_trim(&self, rings: &[Ring]) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Rotating(layer) => {
                rings.iter().any(|ring| ring.window() == layer.window() && ring.can_trim())
            }
            Self::Recurrent(_) => false,
            Self::Owned(layer) => layer.can_trim(),
        }
    }

    /// The same layer under new handles: whoever writes first copies.
    pub(super) fn share(&self) -> Self {
        match self {
            Self::Full(layer) => Self::Full(layer.share()),
            Self::Rotating(layer) => Self::Rotating(layer.share()),
            Self::Recurrent(layer) => Self::Recurrent(layer.share()),
            Self::Owned(layer) => Self::Owned(layer.share()),
        }
    }

    /// Takes the last `tokens` columns back, which leaves `width`; the rings count for rotating layers.
    pub(super) fn trim(&mut self, tokens: i32, width: i32) -> Result<()> {
        match self {
            Self::Full(layer) => layer.cut_to(width),
            Self::Rotating(_) => Ok(()),
            Self::Recurrent(_) => Err(Error::new(Code::Internal, "a recurrent state was trimmed")),
            Self::Owned(layer) => layer.trim(tokens),
        }
    }

    pub(super) fn serial_because(&self) -> Option<String> {
        match self {
            Self::Full(_) | Self::Recurrent(_) => None,
            Self::Rotating(layer) => match layer.window().keep() {
                0 => None,
                keep => Some(format!(
                    "its windows of {} tokens keep the first {keep}, which a batch would lose",
                    layer.window().tokens()
                )),
            },
            Self::Owned(layer) => layer.serial_because(),
        }
    }

    /// What a row of it costs, when a token's keys and values take `token_bytes`.
    pub(super) fn row_bytes(&self, token_bytes: u64) -> LayerBytes {
        match self {
            Self::Full(_) => LayerBytes::Full { token_bytes },
            Self::Rotating(layer) => LayerBytes::Rotating {
                token_bytes,
                window_tokens: u64::from(layer.window().tokens().unsigned_abs()),
            },
            Self::Recurrent(layer) => LayerBytes::Fixed { bytes: layer.row_bytes() },
            Self::Owned(layer) => layer.row_bytes(),
        }
    }

    /// Packs what it holds as plain columns, as `packing` says; states and what an architecture brought
    /// along stay as they are. Says whether there was anything to pack.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; the cache is then unusable.
    pub fn convert(&mut self, packing: Packing) -> Result<bool> {
        match self {
            Self::Full(layer) => layer.convert(packing),
            Self::Rotating(layer) => layer.convert(packing),
            Self::Recurrent(_) | Self::Owned(_) => Ok(false),
        }
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Full(layer) => layer.arrays().collect(),
            Self::Rotating(layer) => layer.arrays().collect(),
            Self::Recurrent(layer) => layer.arrays().collect(),
            Self::Owned(layer) => layer.arrays(),
        }
    }
}

/// The cache of an attention layer, about to be written.
#[derive(Debug)]
pub struct LayerSlot<'set> {
    pub(super) cache: &'set mut LayerCache,
    pub(super) geometry: &'set Geometry,
    pub(super) rings: &'set [Ring],
}

impl LayerSlot<'_> {
    /// Which of the forward's masks is this layer's.
    ///
    /// # Errors
    /// `Internal` when the layer keeps no columns that a mask of ours is about.
    pub fn mask<'positions>(&self, positions: &'positions Positions) -> Result<&'positions Mask> {
        match &*self.cache {
            LayerCache::Full(_) => Ok(&positions.full_mask),
            LayerCache::Rotating(cache) => Ok(&positions.ring_masks[ring_of(self.rings, cache)?]),
            LayerCache::Recurrent(_) | LayerCache::Owned(_) => Err(no_columns()),
        }
    }

    /// Writes keys and values `[B, H, L, D]` and returns all columns to attend to.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; `Internal` when the layer keeps no columns of this kind.
    pub fn update(self, keys: Array, values: Array) -> Result<KeyValues> {
        self.write(&KeyValues::plain(keys, values))
    }

    /// The same for columns that are plain, or in the form in which the layer stores them.
    ///
    /// # Errors
    /// As [`LayerSlot::update`].
    pub fn write(self, new: &KeyValues) -> Result<KeyValues> {
        match self.cache {
            LayerCache::Full(cache) => cache.update(self.geometry.width(), new),
            LayerCache::Rotating(cache) => {
                cache.update(&self.rings[ring_of(self.rings, cache)?], new)
            }
            LayerCache::Recurrent(_) | LayerCache::Owned(_) => Err(no_columns()),
        }
    }
}

/// The set's ring for the window of `cache`.
fn ring_of(rings: &[Ring], cache: &RotatingCache) -> Result<usize> {
    let ring = rings.iter().position(|ring| ring.window() == cache.window());
    ring.ok_or_else(|| Error::new(Code::Internal, "a window has no ring"))
}

fn of_one_kind<T>(
    first: T,
    rest: Vec<LayerCache>,
    pick: impl Fn(LayerCache) -> Option<T>,
) -> Result<Vec<T>> {
    let mut all = vec![first];
    for layer in rest {
        all.push(pick(layer).ok_or_else(mixed_kinds)?);
    }
    Ok(all)
}

/// Row counts as MLX counts them.
pub(super) fn row_count(rows: usize) -> i32 {
    ops::axis_index(rows)
}

fn mixed_kinds() -> Error {
    Error::new(Code::Internal, "caches of different kinds meet in one layer")
}

fn no_columns() -> Error {
    Error::new(Code::Internal, "a layer without columns was used as attention")
}
