//! Blocks that architectures share, in the terms of the papers.

mod attend;
mod attention;
mod decoder;
mod delta_rule;
mod embedding;
mod expanded_latent;
mod experts;
mod feed_forward;
mod gated_delta;
mod latent_decoder;
mod linear;
mod mixer;
mod mla;
mod mlp;
mod norm;
mod prediction;
mod quantization;
mod query_scale;
mod rope;
mod router;
mod spec;

pub use attention::{
    Attention, AttentionOptions, AttentionShape, HeadNorms, NormSpan, Projections,
};
pub use decoder::{Block, Decoder, DecoderSizes, LogitScale, Residual};
pub use delta_rule::DeltaRule;
pub use embedding::Embedding;
pub use expanded_latent::{ExpandedLatent, ExpandedLatentShape};
pub use experts::{ExpertSizes, Experts, stack_experts};
pub use feed_forward::{FeedForward, Mixture, MixtureSpec, SharedSpec};
pub use gated_delta::{GatedDelta, GatedDeltaShape};
pub use latent_decoder::{LatentBlock, LatentDecoder, LatentDecoderSpec, LatentLayerSpec};
pub use linear::Linear;
pub use mixer::Mixer;
pub use mla::{
    Chosen, IndexerSpec, LatentAttention, LatentAttentionSpec, LatentShape, LatentStep,
    latent_scale, split_joined,
};
pub use mlp::{Activation, Gating, Mlp};
pub use norm::{NormWeights, RmsNorm};
pub use prediction::PredictionLayer;
pub use query_scale::QueryScale;
pub(crate) use rope::kind as rope_kind;
pub use rope::{BASE_DEFAULT, Rope, RopeOptions};
pub use router::{Choice, Router, RouterSpec, Routing, SigmoidRouting};
pub use spec::{DecoderSpec, HeadSource, LayerSpec, NormPlacement};
