//! Buffers of full attention: tensors that share their columns, one per token, and grow by granules.

use std::ops::Range;

use super::columns::{Columns, KeyValues};
use super::frame::{self, Side};
use super::geometry::granules;
use crate::error::Result;
use crate::mlx::ops;

/// Tensors of one layer that share their columns and move together.
pub(super) trait Tensors: Clone {
    /// One of them, to count by.
    fn first(&self) -> &Columns;

    /// Applies `change` to each.
    fn map(&self, change: impl Fn(&Columns) -> Result<Columns>) -> Result<Self>;

    /// Applies `change` to each and its counterpart in `other`.
    fn zip(
        &self,
        other: &Self,
        change: impl Fn(&Columns, &Columns) -> Result<Columns>,
    ) -> Result<Self>;

    /// The rows of all `parts`, one part below the other.
    fn stack(parts: &[Self]) -> Result<Self>;

    /// How many columns there are, written or not.
    fn count(&self) -> i32 {
        self.first().count()
    }
}

impl Tensors for KeyValues {
    fn first(&self) -> &Columns {
        &self.keys
    }

    fn map(&self, change: impl Fn(&Columns) -> Result<Columns>) -> Result<Self> {
        Self::map(self, change)
    }

    fn zip(
        &self,
        other: &Self,
        change: impl Fn(&Columns, &Columns) -> Result<Columns>,
    ) -> Result<Self> {
        Self::zip(self, other, change)
    }

    fn stack(parts: &[Self]) -> Result<Self> {
        Self::stack(parts)
    }
}

/// The tensors of one layer, once they were written; there are at least as many columns as the rows
/// are wide.
#[derive(Debug)]
pub(super) struct Buffers<T>(pub(super) Option<T>);

impl<T> Default for Buffers<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Tensors> Buffers<T> {
    /// New handles to the same tensors: whoever writes first copies.
    pub(super) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// The first `width` columns, if it was ever written.
    pub(super) fn columns(&self, width: i32) -> Result<Option<T>> {
        let cut = |held: &T| held.map(|columns| columns.slice(0..width));
        self.0.as_ref().map(cut).transpose()
    }

    /// Lets go of columns that `width` tokens have no granule for.
    pub(super) fn cut_to(&mut self, width: i32) -> Result<()> {
        if self.0.as_ref().is_some_and(|held| held.count() > granules(width)) {
            self.0 = self.columns(granules(width))?;
        }
        Ok(())
    }

    /// Writes new columns at `width` and returns all up to them.
    pub(super) fn write(&mut self, width: i32, new: &T) -> Result<T> {
        let stop = width + new.count();
        let buffers = with_room(self.0.take(), stop, new)?;
        let written = buffers.zip(new, |columns, new| columns.write(new, width))?;
        // The old handles end here, so that MLX may write in place.
        drop(buffers);
        self.0.insert(written).map(|columns| columns.slice(0..stop))
    }

    /// Adds the rows of `other`; `widths` and `rows` are the two sides'.
    pub(super) fn extend(
        &mut self,
        other: Self,
        widths: (i32, i32),
        rows: (i32, i32),
    ) -> Result<()> {
        let own = Side { buffers: self.0.take(), width: widths.0, rows: rows.0 };
        let other = Side { buffers: other.0, width: widths.1, rows: rows.1 };
        self.0 = frame::stack(own, other)?;
        Ok(())
    }

    /// The buffers of several lone rows with `widths` columns, as one.
    pub(super) fn merge<'a>(solos: impl Iterator<Item = &'a Self>, widths: &[i32]) -> Result<Self>
    where
        T: 'a,
    {
        let written = |(solo, width): (&Self, &i32)| {
            solo.0.as_ref().map(|held| held.map(|columns| columns.slice(0..*width))).transpose()
        };
        let rows = solos.zip(widths).map(written).collect::<Result<Vec<_>>>()?;
        Ok(Self(frame::pile(&rows)?))
    }

    /// Keeps `rows` and of their columns those of `range` that there are, in buffers of just that size.
    pub(super) fn filter(&mut self, rows: &[i32], range: &Range<i32>) -> Result<()> {
        let Some(held) = self.0.take() else { return Ok(()) };
        let range = range.start..range.end.min(held.count());
        self.0 = Some(held.map(|columns| match range == (0..columns.count()) {
            true => columns.pick_rows(rows),
            false => columns.slice(range.clone())?.pick_rows(rows),
        })?);
        Ok(())
    }

    /// Copies `range` of `row` into buffers of their own.
    pub(super) fn extract(&self, row: usize, range: &Range<i32>) -> Result<Self> {
        let row = ops::axis_index(row);
        let copy = |columns: &Columns| columns.copy_row(row, std::slice::from_ref(range));
        Ok(Self(self.0.as_ref().map(|held| held.map(copy)).transpose()?))
    }
}

/// The buffers with room for `stop` columns in whole granules; `new` shows the form of the first.
fn with_room<T: Tensors>(old: Option<T>, stop: i32, new: &T) -> Result<T> {
    let fresh = |held: i32| new.map(|columns| columns.zeros(granules(stop) - held));
    match old {
        Some(old) if stop <= old.count() => Ok(old),
        Some(old) => old.zip(&fresh(old.count())?, Columns::then),
        None => fresh(0),
    }
}
