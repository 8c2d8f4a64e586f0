//! The columns that rows of different lengths are placed into when they come together.

use super::buffers::Tensors;
use super::columns::Columns;
use crate::error::Result;

/// Buffers of `capacity` columns, of which the first `width` are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) width: i32,
    pub(super) capacity: i32,
}

impl Frame {
    /// The frame that holds both of two buffers, of which as many columns as `widths` are written.
    fn around<T: Tensors>(own: Option<&T>, other: Option<&T>, widths: (i32, i32)) -> Self {
        let capacity = |buffers: Option<&T>| buffers.map_or(0, T::count);
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
pub(super) struct Side<T> {
    /// Its buffers, if it was ever written.
    pub(super) buffers: Option<T>,
    /// Columns written.
    pub(super) width: i32,
    /// How many rows it has.
    pub(super) rows: i32,
}

/// The rows of `own` above those of `other`, right-aligned on the wider. A side that was never
/// written becomes zeros, as in mlx-lm 0.32.2's `BatchKVCache.extend`.
pub(super) fn stack<T: Tensors>(own: Side<T>, other: Side<T>) -> Result<Option<T>> {
    let frame =
        Frame::around(own.buffers.as_ref(), other.buffers.as_ref(), (own.width, other.width));
    let place = |side: &T, width| side.map(|columns| frame.place(columns, width));
    let blank = |like: &T, rows| like.map(|columns| columns.blank(rows, frame.capacity));
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
pub(super) fn pile<T: Tensors>(rows: &[Option<T>]) -> Result<Option<T>> {
    let width = rows.iter().flatten().map(T::count).max().unwrap_or(0);
    let Some(like) = rows.iter().flatten().next() else {
        return Ok(None);
    };
    let frame = Frame { width, capacity: width };
    let placed = rows.iter().map(|row| match row {
        Some(row) => row.map(|columns| frame.place(columns, columns.count())),
        None => like.map(|columns| columns.blank(1, width)),
    });
    T::stack(&placed.collect::<Result<Vec<_>>>()?).map(Some)
}
