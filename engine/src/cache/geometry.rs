//! Where each row's tokens stand in the shared columns. Pure bookkeeping, and the masks and offsets
//! that follow from it.

use std::ops::Range;

use crate::error::Result;
use crate::limits::KV_GRANULE_TOKENS;
use crate::mlx::Array;
use crate::mlx::ops::{self, Mask};

/// The position of the next token.
#[derive(Debug, Clone)]
pub enum Offset {
    /// The same for every row: rotary embeddings take the scalar path.
    Shared(i32),
    /// One per row, as numbers and as an array `[B]`.
    PerRow {
        /// The numbers, for what is decided before anything is computed.
        numbers: Vec<i32>,
        /// The same on the device.
        array: Array,
    },
}

/// The width and the rows' left paddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    width: i32,
    left_padding: Vec<i32>,
}

impl Geometry {
    /// One row, nothing written.
    pub fn solo() -> Self {
        Self::solo_of_width(0)
    }

    /// One row of `width` columns, all its own.
    pub fn solo_of_width(width: i32) -> Self {
        Self { width, left_padding: vec![0] }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.left_padding.len()
    }

    /// Columns written so far.
    pub fn width(&self) -> i32 {
        self.width
    }

    /// Columns from the left that are not the row's, per row.
    pub fn left_padding(&self) -> &[i32] {
        &self.left_padding
    }

    /// The columns that are the row's.
    pub fn columns_of(&self, row: usize) -> Range<i32> {
        self.left_padding[row]..self.width
    }

    /// Whether every row fills every column.
    pub fn is_unpadded(&self) -> bool {
        self.left_padding.iter().all(|padding| *padding == 0)
    }

    /// The position of the next token. Made once per forward, so that queries and keys cannot
    /// disagree about it.
    pub fn offset(&self) -> Offset {
        if self.is_unpadded() {
            return Offset::Shared(self.width);
        }
        let numbers: Vec<i32> = self.left_padding.iter().map(|pad| self.width - pad).collect();
        Offset::PerRow { array: ops::int_vector(&numbers), numbers }
    }

    /// What `tokens` new columns may attend to: nothing to hide for one token without padding, the
    /// causal rule without padding, else booleans `[B, 1, tokens, width + tokens]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn full_mask(&self, tokens: usize) -> Result<Mask> {
        match (self.is_unpadded(), tokens) {
            (true, 1) => Ok(Mask::None),
            (true, _) => Ok(Mask::Causal),
            (false, _) => Ok(Mask::Array(self.padding_mask(ops::axis_index(tokens))?)),
        }
    }

    /// mlx-lm 0.32.2, `base.create_causal_mask` with `left_padding`.
    fn padding_mask(&self, tokens: i32) -> Result<Array> {
        let total = self.width + tokens;
        let columns = Array::from_iter(0..total, &[1, 1, 1, total]);
        let padding =
            Array::from_slice(&self.left_padding, &[ops::axis_index(self.rows()), 1, 1, 1]);
        let visible = padding.le(&columns)?;
        if tokens == 1 {
            return Ok(visible);
        }
        let queries = Array::from_iter(self.width..total, &[1, 1, tokens, 1]);
        Ok(ops::logical_and(&visible, queries.ge(&columns)?)?)
    }

    /// Counts `tokens` new columns.
    pub fn advance(&mut self, tokens: usize) {
        self.width += ops::axis_index(tokens);
    }

    /// Adds `joiner`'s rows, right-aligned on the wider of the two.
    pub fn extend(&mut self, joiner: &Self) {
        let width = self.width.max(joiner.width);
        let (own, other) = (width - self.width, width - joiner.width);
        self.left_padding.iter_mut().for_each(|padding| *padding += own);
        self.left_padding.extend(joiner.left_padding.iter().map(|padding| padding + other));
        self.width = width;
    }

    /// One geometry of several lone rows, right-aligned on the widest.
    pub(super) fn merge(solos: &[Self]) -> Self {
        let width = solos.iter().map(Self::width).max().unwrap_or(0);
        Self { width, left_padding: solos.iter().map(|solo| width - solo.width).collect() }
    }

    /// Takes the last `tokens` columns back from every row.
    pub(super) fn trim(&mut self, tokens: i32) {
        self.width -= tokens;
    }

    /// Tokens of the shortest row.
    pub(super) fn shortest(&self) -> i32 {
        self.left_padding.iter().map(|padding| self.width - padding).min().unwrap_or(0)
    }

    /// Keeps the rows at `keep` and returns how many columns all of them had as padding; those are
    /// gone from the width.
    pub fn filter(&mut self, keep: &[usize]) -> i32 {
        self.left_padding = keep.iter().map(|row| self.left_padding[*row]).collect();
        let shift = self.left_padding.iter().copied().min().unwrap_or(0);
        self.left_padding.iter_mut().for_each(|padding| *padding -= shift);
        self.width -= shift;
        shift
    }
}

/// `tokens` rounded up to whole granules.
pub(super) fn granules(tokens: i32) -> i32 {
    let granule = ops::axis_index(KV_GRANULE_TOKENS);
    (tokens + granule - 1) / granule * granule
}

/// Row numbers as MLX counts them.
pub(super) fn indices(rows: &[usize]) -> Vec<i32> {
    rows.iter().map(|row| ops::axis_index(*row)).collect()
}
