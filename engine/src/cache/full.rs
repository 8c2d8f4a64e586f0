//! Full attention: keys and values of every token.

use std::ops::Range;

use super::buffers::Buffers;
use super::columns::{self, KeyValues};
use super::scheme::Packing;
use crate::error::Result;
use crate::mlx::Array;

/// Keys and values of one layer; there are at least as many columns as the set is wide.
#[derive(Debug, Default)]
pub struct FullCache {
    buffers: Buffers<KeyValues>,
}

impl FullCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes new columns at `width`, in the form of those before them, and returns all up to them.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn update(&mut self, width: i32, new: &KeyValues) -> Result<KeyValues> {
        let new = new.in_form_of(self.buffers.0.as_ref())?;
        self.buffers.write(width, &new)
    }

    /// The first `width` columns, if it was ever written.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn columns(&self, width: i32) -> Result<Option<KeyValues>> {
        self.buffers.columns(width)
    }

    /// The same columns under new handles: whoever writes first copies.
    pub(super) fn share(&self) -> Self {
        Self { buffers: self.buffers.share() }
    }

    /// Lets go of columns that `width` tokens have no granule for.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn cut_to(&mut self, width: i32) -> Result<()> {
        self.buffers.cut_to(width)
    }

    /// A cache of these columns.
    pub(super) fn of(columns: Option<KeyValues>) -> Self {
        Self { buffers: Buffers(columns) }
    }

    /// Packs plain buffers as `packing` says. Says whether there were any.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn convert(&mut self, packing: Packing) -> Result<bool> {
        columns::convert(&mut self.buffers.0, packing)
    }

    /// Adds the rows of `other`; `widths` and `rows` are the two sets'.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extend(&mut self, other: Self, widths: (i32, i32), rows: (i32, i32)) -> Result<()> {
        self.buffers.extend(other.buffers, widths, rows)
    }

    /// One cache of several lone rows with `widths` columns.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn merge(solos: &[Self], widths: &[i32]) -> Result<Self> {
        let buffers = solos.iter().map(|solo| &solo.buffers);
        Ok(Self { buffers: Buffers::merge(buffers, widths)? })
    }

    /// Keeps `rows` and of their columns those of `range` that there are, in buffers of just that size.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn filter(&mut self, rows: &[i32], range: &Range<i32>) -> Result<()> {
        self.buffers.filter(rows, range)
    }

    /// Copies `range` of `row` into buffers of their own.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extract(&self, row: usize, range: &Range<i32>) -> Result<Self> {
        Ok(Self { buffers: self.buffers.extract(row, range)? })
    }

    /// Its buffers, if it was ever written.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffers.0.iter().flat_map(KeyValues::arrays)
    }
}
