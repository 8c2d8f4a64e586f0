//! Blocks that architectures share, in the terms of the papers.

mod attend;
mod attention;
mod embedding;
mod linear;
mod mlp;
mod norm;
mod rope;

pub use attention::{Attention, AttentionShape};
pub use embedding::Embedding;
pub use linear::{Linear, Quantization};
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use rope::Rope;
