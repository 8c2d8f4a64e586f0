//! Blocks that architectures share, in the terms of the papers.

mod attend;
mod attention;
mod decoder;
mod embedding;
mod linear;
mod mlp;
mod norm;
mod query_scale;
mod rope;

pub use attention::{Attention, AttentionOptions, AttentionShape, HeadNorms, Projections};
pub use decoder::{Decoder, DecoderSpec, Factors, HeadSource, LayerSpec, NormPlacement};
pub use embedding::Embedding;
pub use linear::{Linear, Quantization};
pub use mlp::{Gating, Mlp};
pub use norm::RmsNorm;
pub use query_scale::QueryScale;
pub use rope::{Rope, RopeOptions, kind as rope_kind};
