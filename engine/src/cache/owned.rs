//! Caches that an architecture brings along, with their own padding and their own algebra.
//!
//! An architecture implements [`OwnedCache`] for a type of its own; [`OwnedLayer`] holds it among the
//! other layers. The one cast back to that type is here.

use std::any::Any;
use std::fmt;

use super::profile::LayerBytes;
use crate::error::{Code, Error, Result};
use crate::mlx::Array;

/// A cache whose layout only its architecture knows. It holds one row or a batch of rows.
pub trait OwnedCache: fmt::Debug + Sized + 'static {
    /// Adds `joiner`'s rows below these.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    fn extend(&mut self, joiner: Self) -> Result<()>;

    /// One cache of several lone rows; there is at least one.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    fn merge(solos: Vec<Self>) -> Result<Self>;

    /// Keeps the rows at `keep`, in that order.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    fn filter(&mut self, keep: &[usize]) -> Result<()>;

    /// Copies row `row` out as a fresh solo cache.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    fn extract(&self, row: usize) -> Result<Self>;

    /// The same cache under new handles: whoever writes first copies.
    fn share(&self) -> Self;

    /// A lone row's arrays without spare columns, for [`OwnedCache::restore`].
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    fn tensors(&self) -> Result<Vec<Array>>;

    /// A lone row of `tokens` tokens from what [`OwnedCache::tensors`] gave; `self` is empty.
    ///
    /// # Errors
    /// `BadModel` when there are more or fewer arrays.
    fn restore(self, tokens: i32, tensors: Vec<Array>) -> Result<Self>;

    /// Whether tokens can be taken back.
    fn can_trim(&self) -> bool;

    /// Takes the last `tokens` tokens back from every row; called only when that is possible.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    fn trim(&mut self, tokens: i32) -> Result<()>;

    /// Every array, to evaluate and to weigh them.
    fn arrays(&self) -> Vec<&Array>;

    /// What a row costs.
    fn row_bytes(&self) -> LayerBytes;

    /// Why its rows cannot share a batch, when they cannot.
    fn serial_because(&self) -> Option<String>;
}

/// An [`OwnedCache`] of some type as one layer of a set.
pub struct OwnedLayer(Box<dyn Erased>);

impl OwnedLayer {
    /// A layer that holds `cache`.
    pub fn new(cache: impl OwnedCache) -> Self {
        Self(Box::new(cache))
    }

    /// The cache, to read and to write.
    ///
    /// # Errors
    /// `Internal` when it is of another type.
    pub fn get_mut<T: OwnedCache>(&mut self) -> Result<&mut T> {
        let any: &mut dyn Any = self.0.as_mut();
        any.downcast_mut().ok_or_else(other_type)
    }

    pub(super) fn extend(&mut self, joiner: Self) -> Result<()> {
        self.0.extend(joiner)
    }

    /// One layer of several; there is at least one.
    pub(super) fn merge(solos: Vec<Self>) -> Result<Self> {
        let mut solos = solos.into_iter();
        let first = solos.next().ok_or_else(|| Error::new(Code::Internal, "no rows to merge"))?;
        first.0.merge_with(solos)
    }

    pub(super) fn filter(&mut self, keep: &[usize]) -> Result<()> {
        self.0.filter(keep)
    }

    pub(super) fn extract(&self, row: usize) -> Result<Self> {
        self.0.extract(row)
    }

    pub(super) fn share(&self) -> Self {
        self.0.share()
    }

    pub(super) fn tensors(&self) -> Result<Vec<Array>> {
        self.0.tensors()
    }

    pub(super) fn restore(self, tokens: i32, tensors: Vec<Array>) -> Result<Self> {
        self.0.restore(tokens, tensors)
    }

    pub(super) fn can_trim(&self) -> bool {
        self.0.can_trim()
    }

    pub(super) fn trim(&mut self, tokens: i32) -> Result<()> {
        self.0.trim(tokens)
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        self.0.arrays()
    }

    pub(super) fn row_bytes(&self) -> LayerBytes {
        self.0.row_bytes()
    }

    pub(super) fn serial_because(&self) -> Option<String> {
        self.0.serial_because()
    }

    fn into_cache<T: OwnedCache>(self) -> Result<T> {
        let any: Box<dyn Any> = self.0;
        any.downcast().map(|cache| *cache).map_err(|_| other_type())
    }
}

impl fmt::Debug for OwnedLayer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// [`OwnedCache`] without its type.
trait Erased: fmt::Debug + Any {
    fn extend(&mut self, joiner: OwnedLayer) -> Result<()>;
    fn merge_with(self: Box<Self>, others: std::vec::IntoIter<OwnedLayer>) -> Result<OwnedLayer>;
    fn filter(&mut self, keep: &[usize]) -> Result<()>;
    fn extract(&self, row: usize) -> Result<OwnedLayer>;
    fn share(&self) -> OwnedLayer;
    fn tensors(&self) -> Result<Vec<Array>>;
    fn restore(self: Box<Self>, tokens: i32, tensors: Vec<Array>) -> Result<OwnedLayer>;
    fn can_trim(&self) -> bool;
    fn trim(&mut self, tokens: i32) -> Result<()>;
    fn arrays(&self) -> Vec<&Array>;
    fn row_bytes(&self) -> LayerBytes;
    fn serial_because(&self) -> Option<String>;
}

impl<T: OwnedCache> Erased for T {
    fn extend(&mut self, joiner: OwnedLayer) -> Result<()> {
        OwnedCache::extend(self, joiner.into_cache()?)
    }

    fn merge_with(self: Box<Self>, others: std::vec::IntoIter<OwnedLayer>) -> Result<OwnedLayer> {
        let mut solos = vec![*self];
        for other in others {
            solos.push(other.into_cache()?);
        }
        T::merge(solos).map(OwnedLayer::new)
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        OwnedCache::filter(self, keep)
    }

    fn extract(&self, row: usize) -> Result<OwnedLayer> {
        OwnedCache::extract(self, row).map(OwnedLayer::new)
    }

    fn share(&self) -> OwnedLayer {
        OwnedLayer::new(OwnedCache::share(self))
    }

    fn tensors(&self) -> Result<Vec<Array>> {
        OwnedCache::tensors(self)
    }

    fn restore(self: Box<Self>, tokens: i32, tensors: Vec<Array>) -> Result<OwnedLayer> {
        OwnedCache::restore(*self, tokens, tensors).map(OwnedLayer::new)
    }

    fn can_trim(&self) -> bool {
        OwnedCache::can_trim(self)
    }

    fn trim(&mut self, tokens: i32) -> Result<()> {
        OwnedCache::trim(self, tokens)
    }

    fn arrays(&self) -> Vec<&Array> {
        OwnedCache::arrays(self)
    }

    fn row_bytes(&self) -> LayerBytes {
        OwnedCache::row_bytes(self)
    }

    fn serial_because(&self) -> Option<String> {
        OwnedCache::serial_because(self)
    }
}

fn other_type() -> Error {
    Error::new(Code::Internal, "an owned cache is of another architecture's type")
}
