//! The columns that rows of different lengths are placed into when they come together.

use super::columns::{Columns, KeyValues};
use crate::error::Result;

/// Buffers of `capacity` columns, of which the first `width` are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) width: i32,
    pub(super) capacity: i32,
}

impl Frame {
    /// The frame that holds both of two buffers, of which as many columns as `widths` are written.
    fn around(own: Option<&KeyValues>, other: Option<&KeyValues>, widths: (i32, i32)) -> Self {
        let capacity = |buffers: Option<&KeyValues>| buffers.map_or(0, KeyValues::count);
        Self { width: widths.0.max(widths.1), capacity: capacity(own).max(capacity(other)) }
    }

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

/// One side of a join.
pub(super) struct Side {
    /// Its buffers, if it was ever written.
    pub(super) buffers: Option<KeyValues>,
    /// Columns written.
    pub(super) width: i32,
    /// How many rows it has.
    pub(super) rows: i32,
}

/// The rows of `own` above those of `other`, right-aligned on the wider. A side that was never
/// written becomes zeros, as in mlx-lm 0.32.2's `BatchKVCache.extend`.
pub(super) fn stack(own: Side, other: Side) -> Result<Option<KeyValues>> {
    let frame =
        Frame::around(own.buffers.as_ref(), other.buffers.as_ref(), (own.width, other.width));
    let place = |side: &KeyValues, width| side.map(|columns| frame.place(columns, width));
    let blank = |like: &KeyValues, rows| like.map(|columns| columns.blank(rows, frame.capacity));
    let (above, below) = match (own.buffers, other.buffers) {
        (None, None) => return Ok(None),
        (Some(above), Some(below)) => (place(&above, own.width)?, place(&below, other.width)?),
        (Some(above), None) => (place(&above, own.width)?, blank(&above, other.rows)?),
        (None, Some(below)) => (blank(&below, own.rows)?, place(&below, other.width)?),
    };
    above.zip(&below, Columns::above).map(Some)
}

/// Lone rows' columns, each row in buffers of exactly its own, below one another and right-aligned
/// on the longest, without spare capacity. A row that was never written becomes zeros (mlx-lm 0.32.2,
/// `BatchKVCache.merge`).
pub(super) fn pile(rows: &[Option<KeyValues>]) -> Result<Option<KeyValues>> {
    let width = rows.iter().flatten().map(KeyValues::count).max().unwrap_or(0);
    let Some(like) = rows.iter().flatten().next() else {
        return Ok(None);
    };
    let frame = Frame { width, capacity: width };
    let placed = rows.iter().map(|row| match row {
        Some(row) => row.map(|columns| frame.place(columns, columns.count())),
        None => like.map(|columns| columns.blank(1, width)),
    });
    KeyValues::stack(&placed.collect::<Result<Vec<_>>>()?).map(Some)
}
