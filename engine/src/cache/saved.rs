//! A lone row's caches as plain data and arrays, and back: what a set says of itself so that it can be
//! written down and restored.
//!
//! The arrays come layer by layer, full ones without spare columns; [`SavedSet`] says what they are. A
//! set is restored into fresh layers of the same model: what a layer's kind, window and row bytes are,
//! is the model's word, never the file's.

use serde::{Deserialize, Serialize};

use super::columns::{AffineColumns, Columns, KeyValues};
use super::full::FullCache;
use super::geometry::Geometry;
use super::layer::LayerCache;
use super::recurrent::RecurrentCache;
use super::ring::{Ring, SavedRing};
use super::rotating::RotatingCache;
use super::scheme::Packing;
use super::set::CacheSet;
use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops;

/// A lone row's caches but for their arrays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSet {
    tokens: i32,
    rings: Vec<SavedRing>,
    layers: Vec<SavedLayer>,
}

/// What the arrays of one layer are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedLayer {
    /// None: it was never written.
    Empty,
    /// Plain keys and values.
    Plain,
    /// Keys and values, each as packed values, scales and biases.
    Affine { bits: i32, group_size: i32 },
    /// The states of these slots.
    Slots(Vec<bool>),
    /// So many, which the architecture knows.
    Owned(usize),
}

impl CacheSet {
    /// This lone row as data and arrays.
    ///
    /// # Errors
    /// `Internal` when it is not lone; `EngineFailed` with MLX's text.
    pub fn save(&self) -> Result<(SavedSet, Vec<Array>)> {
        if self.rows() != 1 || !self.geometry().is_unpadded() {
            return Err(Error::new(Code::Internal, "a batch was saved as a lone row"));
        }
        let tokens = self.geometry().width();
        let mut arrays = Vec::new();
        let layers = self.layers().iter().map(|layer| {
            let (saved, own) = save_layer(layer, tokens)?;
            arrays.extend(own);
            Ok(saved)
        });
        let layers = layers.collect::<Result<_>>()?;
        let rings = self.rings().iter().map(Ring::save).collect();
        Ok((SavedSet { tokens, rings, layers }, arrays))
    }

    /// The row that [`CacheSet::save`] told of; `fresh` is an empty one of the same model.
    ///
    /// # Errors
    /// `BadModel` when the arrays or layers are not those of such a model.
    pub fn restore(fresh: Self, saved: &SavedSet, arrays: Vec<Array>) -> Result<Self> {
        let (layers, rings, bound) = fresh.into_parts();
        if layers.len() != saved.layers.len() || rings.len() != saved.rings.len() {
            return Err(misfit());
        }
        let mut arrays = arrays.into_iter();
        let layers = layers.into_iter().zip(&saved.layers).map(|(layer, saved_layer)| {
            let own: Vec<_> = arrays.by_ref().take(saved_layer.arrays()).collect();
            restore_layer(layer, saved_layer, own, saved.tokens)
        });
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let rings = rings.iter().zip(&saved.rings).map(|(ring, saved)| ring.restore(saved));
        let rings = rings.collect::<Option<Vec<_>>>().ok_or_else(misfit)?;
        if arrays.next().is_some() {
            return Err(misfit());
        }
        Ok(Self::of_parts(layers, Geometry::solo_of_width(saved.tokens), rings, bound))
    }
}

impl SavedLayer {
    /// How many arrays it has.
    fn arrays(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Plain => 2,
            Self::Affine { .. } => 6,
            Self::Slots(slots) => slots.iter().filter(|written| **written).count(),
            Self::Owned(count) => *count,
        }
    }

    fn of_columns(columns: Option<&KeyValues>) -> Self {
        match columns.map(KeyValues::packing) {
            None => Self::Empty,
            Some(None) => Self::Plain,
            Some(Some(Packing { bits, group_size })) => Self::Affine { bits, group_size },
        }
    }

    /// The columns that `arrays` are.
    fn columns(&self, arrays: Vec<Array>) -> Result<Option<KeyValues>> {
        let mut arrays = arrays.into_iter();
        let mut next = || arrays.next().ok_or_else(misfit);
        match *self {
            Self::Empty => Ok(None),
            Self::Plain => Ok(Some(KeyValues::plain(next()?, next()?))),
            Self::Affine { bits, group_size } => {
                let packing = Packing { bits, group_size };
                let mut affine = || -> Result<Columns> {
                    let (packed, scales, biases) = (next()?, next()?, next()?);
                    Ok(Columns::Affine(AffineColumns { packed, scales, biases, packing }))
                };
                Ok(Some(KeyValues { keys: affine()?, values: affine()? }))
            }
            Self::Slots(_) | Self::Owned(_) => Err(misfit()),
        }
    }
}

fn save_layer(layer: &LayerCache, tokens: i32) -> Result<(SavedLayer, Vec<Array>)> {
    let of_columns = |columns: Option<&KeyValues>| {
        let arrays = columns.into_iter().flat_map(KeyValues::arrays).map(ops::share).collect();
        (SavedLayer::of_columns(columns), arrays)
    };
    match layer {
        LayerCache::Full(layer) => Ok(of_columns(layer.columns(tokens)?.as_ref())),
        LayerCache::Rotating(layer) => Ok(of_columns(layer.buffers())),
        LayerCache::Recurrent(layer) => {
            let written = layer.slots().iter().map(Option::is_some).collect();
            Ok((SavedLayer::Slots(written), layer.arrays().map(ops::share).collect()))
        }
        LayerCache::Owned(layer) => {
            let arrays = layer.tensors()?;
            Ok((SavedLayer::Owned(arrays.len()), arrays))
        }
    }
}

fn restore_layer(
    fresh: LayerCache,
    saved: &SavedLayer,
    arrays: Vec<Array>,
    tokens: i32,
) -> Result<LayerCache> {
    if arrays.len() != saved.arrays() {
        return Err(misfit());
    }
    match (fresh, saved) {
        (LayerCache::Full(_), _) => {
            let columns = saved.columns(arrays)?;
            match columns.as_ref().is_none_or(|columns| columns.count() == tokens) {
                true => Ok(LayerCache::Full(FullCache::of(columns))),
                false => Err(misfit()),
            }
        }
        (LayerCache::Rotating(fresh), _) => {
            Ok(LayerCache::Rotating(RotatingCache::of(fresh.window(), saved.columns(arrays)?)))
        }
        (LayerCache::Recurrent(fresh), SavedLayer::Slots(written))
            if written.len() == fresh.slots().len() =>
        {
            let mut arrays = arrays.into_iter().peekable();
            let slots = written.iter().map(|written| arrays.next_if(|_| *written));
            Ok(LayerCache::Recurrent(RecurrentCache::of(slots.collect(), fresh.row_bytes())))
        }
        (LayerCache::Owned(fresh), SavedLayer::Owned(_)) => {
            fresh.restore(tokens, arrays).map(LayerCache::Owned)
        }
        (LayerCache::Recurrent(_) | LayerCache::Owned(_), _) => Err(misfit()),
    }
}

fn misfit() -> Error {
    Error::new(Code::BadModel, "a stored cache has other layers than the model")
}
