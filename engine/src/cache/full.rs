//! Full attention: keys and values of every token, in buffers that grow by granules.

use std::ops::Range;

use super::columns::{self, Columns, KeyValues};
use super::frame::{self, Side};
use super::geometry::granules;
use super::scheme::Packing;
use crate::error::Result;
use crate::mlx::Array;
use crate::mlx::ops;

/// Keys and values of one layer; there are at least as many columns as the set is wide.
#[derive(Debug, Default)]
pub struct FullCache {
    buffers: Option<KeyValues>,
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
        let stop = width + new.count();
        let new = new.in_form_of(self.buffers.as_ref())?;
        let buffers = with_room(self.buffers.take(), stop, &new)?;
        let written = buffers.zip(&new, |columns, new| columns.write(new, width))?;
        // The old handles end here, so that MLX may write in place.
        drop(buffers);
        self.buffers.insert(written).map(|columns| columns.slice(0..stop))
    }

    /// The first `width` columns, if it was ever written.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn columns(&self, width: i32) -> Result<Option<KeyValues>> {
        let cut = |buffers: &KeyValues| buffers.map(|columns| columns.slice(0..width));
        self.buffers.as_ref().map(cut).transpose()
    }

    /// Packs plain buffers as `packing` says. Says whether there were any.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn convert(&mut self, packing: Packing) -> Result<bool> {
        columns::convert(&mut self.buffers, packing)
    }

    /// Adds the rows of `other`; `widths` and `rows` are the two sets'.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extend(&mut self, other: Self, widths: (i32, i32), rows: (i32, i32)) -> Result<()> {
        let own = Side { buffers: self.buffers.take(), width: widths.0, rows: rows.0 };
        let other = Side { buffers: other.buffers, width: widths.1, rows: rows.1 };
        self.buffers = frame::stack(own, other)?;
        Ok(())
    }

    /// One cache of several lone rows with `widths` columns.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn merge(solos: &[Self], widths: &[i32]) -> Result<Self> {
        let written = |(solo, width): (&Self, &i32)| {
            let cut = |buffers: &KeyValues| buffers.map(|columns| columns.slice(0..*width));
            solo.buffers.as_ref().map(cut).transpose()
        };
        let rows = solos.iter().zip(widths).map(written).collect::<Result<Vec<_>>>()?;
        Ok(Self { buffers: frame::pile(&rows)? })
    }

    /// Keeps `rows` and of their columns those of `range` that there are, in buffers of just that size.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn filter(&mut self, rows: &[i32], range: &Range<i32>) -> Result<()> {
        let Some(buffers) = self.buffers.take() else { return Ok(()) };
        let range = range.start..range.end.min(buffers.count());
        let kept = buffers.map(|columns| match range == (0..columns.count()) {
            true => columns.pick_rows(rows),
            false => columns.slice(range.clone())?.pick_rows(rows),
        })?;
        self.buffers = Some(kept);
        Ok(())
    }

    /// Copies `range` of `row` into buffers of their own.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extract(&self, row: usize, range: &Range<i32>) -> Result<Self> {
        let row = ops::axis_index(row);
        let copy = |buffers: &KeyValues| {
            buffers.map(|columns| columns.copy_row(row, std::slice::from_ref(range)))
        };
        Ok(Self { buffers: self.buffers.as_ref().map(copy).transpose()? })
    }

    /// Its buffers, if it was ever written.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffers.iter().flat_map(KeyValues::arrays)
    }
}

/// The buffers with room for `stop` columns in whole granules; `new` shows the form of the first.
fn with_room(old: Option<KeyValues>, stop: i32, new: &KeyValues) -> Result<KeyValues> {
    let fresh = |held: i32| new.map(|columns| columns.zeros(granules(stop) - held));
    match old {
        Some(old) if stop <= old.count() => Ok(old),
        Some(old) => old.zip(&fresh(old.count())?, Columns::then),
        None => fresh(0),
    }
}
