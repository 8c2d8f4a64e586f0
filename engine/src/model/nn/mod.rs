//! Blocks that architectures share, in the terms of the papers.

mod attend;
mod attention;
mod decoder;
mod embedding;
mod linear;
mod mlp;
mod norm;
mod rope;

pub use attention::{Attention, AttentionOptions, AttentionShape, HeadNorms};
pub use decoder::{Block, Decoder, DecoderSizes, Residual};
pub use embedding::Embedding;
pub use linear::{Linear, Quantization};
pub use mlp::{Activation, Mlp};
pub use norm::RmsNorm;
pub use rope::Rope;
