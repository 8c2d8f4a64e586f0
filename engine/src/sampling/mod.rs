//! From logits to a token, per row.
//!
//! A row's logits go through *processors* (bias, penalties), become log-probabilities, go through
//! *filters* (top_p, min_p, XTC, top_k), and one token is picked. The parameters are plain data and build
//! without MLX; what touches arrays needs it.
//!
//! Invariant: what a row picks, and what it tells of it, is a function of its logits, its parameters, its
//! prompt and its own answer: neither of its neighbours, nor of when its tokens are read.

#[cfg(feature = "mlx")]
mod capture;
#[cfg(feature = "mlx")]
mod filters;
#[cfg(feature = "mlx")]
mod history;
mod logprobs;
mod noise;
mod overrides;
mod params;
#[cfg(feature = "mlx")]
mod processors;
#[cfg(feature = "mlx")]
mod sampler;

#[cfg(feature = "mlx")]
pub use filters::Filters;
pub use logprobs::{Sampled, TokenLogprobs};
pub use noise::{NoiseAt, NoiseSource, SeededNoise};
pub use overrides::{PenaltyOverrides, SamplingOverrides};
pub use params::{PENALTY_CONTEXT_TOKENS_DEFAULT, Penalty, SamplingParams, Xtc};
#[cfg(feature = "mlx")]
pub use sampler::{Picks, Sampler};
