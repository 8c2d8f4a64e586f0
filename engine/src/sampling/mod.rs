//! From logits to a token, per row.
//!
//! The parameters are plain data and build without MLX; the samplers need arrays.

mod params;

pub use params::SamplingParams;
