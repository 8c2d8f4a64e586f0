//! From logits to a token, per row.
//!
//! The parameters are plain data and build without MLX; the samplers need arrays.

mod noise;
mod params;
#[cfg(feature = "mlx")]
mod sampler;

pub use noise::{NoiseAt, NoiseSource, SeededNoise};
pub use params::SamplingParams;
#[cfg(feature = "mlx")]
pub use sampler::{Sampler, filter};
