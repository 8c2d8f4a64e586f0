//! KV caches: one row's own (solo) and the batch's, which are the same types with more rows.
//!
//! Words: **width** is the number of token columns written so far, shared by all rows of a set;
//! **left padding** is how many of them, from the left, are not this row's; a row's **offset** is
//! `width - left padding`, the position of its next token. Rows are right-aligned, so "the current
//! token" is one column for everybody.
//!
//! Invariants: a solo set has one row and no padding, so adopting it as a batch is a move; `filter`
//! shifts out the padding that all survivors share (logits differ otherwise: the reduction's length
//! is part of the numerics); `extract` yields the bytes of the row's solo run.

#[cfg(feature = "mlx")]
mod columns;
#[cfg(feature = "mlx")]
mod full;
#[cfg(feature = "mlx")]
mod geometry;
mod profile;
#[cfg(feature = "mlx")]
mod set;
#[cfg(feature = "mlx")]
#[cfg(test)]
mod tests;

#[cfg(feature = "mlx")]
pub use columns::{AffineColumns, Columns, KeyValues, Packing};
#[cfg(feature = "mlx")]
pub use full::FullCache;
#[cfg(feature = "mlx")]
pub use geometry::{Geometry, Offset};
pub use profile::{KvProfile, LayerBytes};
#[cfg(feature = "mlx")]
pub use set::{CacheSet, LayerCache, LayerSlot, Positions};
