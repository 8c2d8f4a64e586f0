//! KV caches: one row's own (solo) and the batch's, which are the same types with more rows.
//!
//! Words: **width** is the number of token columns written so far, shared by all rows of a set;
//! **left padding** is how many of them, from the left, are not this row's; a row's **offset** is
//! `width - left padding`, the position of its next token. Rows are right-aligned, so "the current
//! token" is one column for everybody. Sliding windows count in [`Ring`]s, which have their own
//! paddings: a ring overwrites them, while full layers shift them out.
//!
//! Bookkeeping is apart from the arrays: [`Geometry`] and [`Ring`] decide once for all layers what an
//! update, a join or an exit does to the columns, and each layer carries it out on what it stores.
//!
//! Invariants: a solo set has one row and no padding, so adopting it as a batch is a move; `filter`
//! shifts out the padding that all survivors share in full layers (logits differ otherwise: the
//! reduction's length is part of the numerics); `extract` yields the bytes of the row's solo run, in
//! temporal order; the buffers of rows that decode are never larger than [`KvProfile`] projects.

#[cfg(feature = "mlx")]
mod buffers;
#[cfg(feature = "mlx")]
mod columns;
#[cfg(feature = "mlx")]
mod frame;
#[cfg(feature = "mlx")]
mod full;
#[cfg(feature = "mlx")]
mod geometry;
mod kv_config;
#[cfg(feature = "mlx")]
mod latent;
#[cfg(feature = "mlx")]
mod layer;
#[cfg(feature = "mlx")]
mod owned;
mod profile;
#[cfg(feature = "mlx")]
mod recurrent;
#[cfg(feature = "mlx")]
mod ring;
#[cfg(feature = "mlx")]
mod rotating;
#[cfg(feature = "mlx")]
mod saved;
mod scheme;
#[cfg(feature = "mlx")]
mod set;
#[cfg(test)]
#[cfg(feature = "mlx")]
mod tests;
mod window;

#[cfg(feature = "mlx")]
pub use columns::{AffineColumns, Columns, KeyValues};
#[cfg(feature = "mlx")]
pub use full::FullCache;
#[cfg(feature = "mlx")]
pub use geometry::{Geometry, Offset};
pub use kv_config::read as read_kv_config;
#[cfg(feature = "mlx")]
pub use latent::{LatentCache, LatentColumns};
#[cfg(feature = "mlx")]
pub use layer::{LayerCache, LayerSlot};
#[cfg(feature = "mlx")]
pub use owned::{OwnedCache, OwnedLayer};
pub use profile::{KvProfile, LayerBytes, TokenShape};
#[cfg(feature = "mlx")]
pub use recurrent::RecurrentCache;
#[cfg(feature = "mlx")]
pub use ring::Ring;
#[cfg(feature = "mlx")]
pub use rotating::RotatingCache;
#[cfg(feature = "mlx")]
pub use saved::SavedSet;
pub use scheme::{GROUP_SIZE_DEFAULT, KvQuant, KvScheme, Packing};
#[cfg(feature = "mlx")]
pub use set::{CacheSet, Positions};
pub use window::Window;
