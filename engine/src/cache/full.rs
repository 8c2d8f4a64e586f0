//! Full attention: keys and values of every token, in buffers that grow by granules.

use std::ops::Range;

use super::columns::{Columns, KeyValues};
use super::scheme::Packing;
use crate::error::Result;
use crate::limits::KV_GRANULE_TOKENS;
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

    /// Writes new plain columns at `width`, in the form of those before them, and returns all up to
    /// them.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn update(&mut self, width: i32, new: &KeyValues) -> Result<KeyValues> {
        let stop = width + new.count();
        let new = new.in_form_of(self.buffers.as_ref())?;
        let buffers = with_room(self.buffers.take(), width, &new)?;
        let written = buffers.zip(&new, |columns, new| columns.write(new, width))?;
        // The old handles end here, so that MLX may write in place.
        drop(buffers);
        self.buffers.insert(written).map(|columns| columns.slice(0..stop))
    }

    /// Packs plain buffers as `packing` says. Says whether there were any.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn convert(&mut self, packing: Packing) -> Result<bool> {
        let Some(plain) = self.buffers.take_if(|buffers| buffers.packing().is_none()) else {
            return Ok(false);
        };
        self.buffers = Some(plain.pack(packing)?);
        Ok(true)
    }

    /// Adds the rows of `other`; `widths` are the two sets' widths.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extend(&mut self, other: Self, widths: (i32, i32)) -> Result<()> {
        let (Some(own), Some(other)) = (self.buffers.take(), other.buffers) else { return Ok(()) };
        let frame =
            Frame { width: widths.0.max(widths.1), capacity: own.count().max(other.count()) };
        let joined = own.zip(&other, |own, other| {
            frame.place(own, widths.0)?.above(&frame.place(other, widths.1)?)
        })?;
        self.buffers = Some(joined);
        Ok(())
    }

    /// Keeps `rows` and drops `shift` columns from the left.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn filter(&mut self, rows: &[i32], shift: i32) -> Result<()> {
        let Some(buffers) = self.buffers.take() else { return Ok(()) };
        let kept = buffers.map(|columns| {
            let kept = columns.pick_rows(rows)?;
            if shift == 0 { Ok(kept) } else { kept.slice(shift..kept.count()) }
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
        let copy =
            |buffers: &KeyValues| buffers.map(|columns| columns.copy_row(row, range.clone()));
        Ok(Self { buffers: self.buffers.as_ref().map(copy).transpose()? })
    }

    /// Its buffers, if it was ever written.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffers.iter().flat_map(KeyValues::arrays)
    }
}

/// The buffers with room for `new` columns at `width`, as mlx-lm 0.32.2's `KVCache` grows them: by
/// whole granules, cutting what the last one left over.
fn with_room(old: Option<KeyValues>, width: i32, new: &KeyValues) -> Result<KeyValues> {
    let granule = ops::axis_index(KV_GRANULE_TOKENS);
    let fresh_columns = (new.count() + granule - 1) / granule * granule;
    let fresh = || new.map(|columns| columns.zeros(fresh_columns));
    match old {
        Some(old) if width + new.count() <= old.count() => Ok(old),
        Some(old) => old.zip(&fresh()?, |old, fresh| old.slice(0..width)?.then(fresh)),
        None => fresh(),
    }
}

/// The columns that two sides of an `extend` are placed into.
#[derive(Clone, Copy)]
struct Frame {
    width: i32,
    capacity: i32,
}

impl Frame {
    /// Right-aligns the `width` written columns on the frame's width and gives the buffer the
    /// frame's capacity.
    fn place(self, columns: &Columns, width: i32) -> Result<Columns> {
        let left = self.width - width;
        let right = self.capacity - left - columns.count();
        if right < 0 {
            return columns.slice(0..columns.count() + right)?.pad(left, 0);
        }
        columns.pad(left, right)
    }
}
