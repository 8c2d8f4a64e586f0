//! Models: blocks in the terms of the papers, one file per architecture, and the loader.
//!
//! A model holds weights and nothing else; what a row has seen lives in its cache set. A forward
//! reads the set's positions once, lets each layer write its own cache, and advances the set.
//!
//! What a config says of a model can be had without one: [`outline`] needs no arrays.

#[cfg(feature = "mlx")]
pub mod arch;
#[cfg(feature = "mlx")]
mod blocks;
mod config;
#[cfg(feature = "mlx")]
mod embed;
#[cfg(feature = "mlx")]
mod fingerprint;
#[cfg(feature = "mlx")]
mod language;
#[cfg(feature = "mlx")]
mod loader;
#[cfg(feature = "mlx")]
pub mod nn;
pub mod outline;
mod reach;
#[cfg(feature = "mlx")]
mod registry;
mod windows;

#[cfg(feature = "mlx")]
pub use blocks::{
    Acceptance, BlockDiffusion, CanvasLength, Decoding, Denoising, EarlyEnd, TemperatureSlope,
};
pub use config::{GENERATION, ModelConfig};
#[cfg(feature = "mlx")]
pub use embed::{EmbedOptions, embed, text_vector};
#[cfg(feature = "mlx")]
pub use fingerprint::fingerprint;
#[cfg(feature = "mlx")]
pub use language::{Model, PredictionHead};
#[cfg(feature = "mlx")]
pub use loader::{
    LoadOptions, Loaded, Loading, check, estimate_weights_bytes, load, load_with_progress,
};
pub use outline::Outline;
#[cfg(feature = "mlx")]
pub use registry::{Family, Tower};
pub use windows::{full_layers, layer_windows, layer_windows_or};
