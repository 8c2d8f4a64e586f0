//! The only place that touches mlx-rs and mlx-sys: device, memory, operations, weights; and the
//! engine thread that owns every array.
//!
//! Invariants: arrays never leave the engine thread (mlx-rs lets them, but MLX's streams belong to the
//! thread that made them: what holds arrays for long is [`ThreadBound`]); `unsafe` appears only here, each with its SAFETY line; an
//! MLX failure is an [`Error`](crate::error::Error) with the text that MLX gave.

#![allow(unsafe_code)]

#[cfg(feature = "mlx")]
pub mod canvas;
#[cfg(feature = "mlx")]
mod delta_kernel;
#[cfg(feature = "mlx")]
mod device;
#[cfg(feature = "mlx")]
mod exit;
#[cfg(feature = "mlx")]
pub mod experts;
#[cfg(feature = "mlx")]
mod failure;
#[cfg(feature = "mlx")]
pub mod fused;
#[cfg(feature = "mlx")]
mod kernel;
#[cfg(all(feature = "mlx", not(target_os = "macos")))]
mod mach;
#[cfg(feature = "mlx")]
pub mod memory;
#[cfg(feature = "mlx")]
pub mod ops;
#[cfg(feature = "mlx")]
mod packed;
#[cfg(feature = "mlx")]
pub mod recurrence;
#[cfg(feature = "mlx")]
pub mod rewrite;
pub mod shards;
#[cfg(feature = "mlx")]
pub mod sparse;
#[cfg(feature = "mlx")]
pub mod tensor;
#[cfg(feature = "mlx")]
mod weights;

#[cfg(feature = "mlx")]
pub use delta_kernel::{DeltaInputs, DeltaKernel, DeltaShape};
#[cfg(feature = "mlx")]
pub use device::{BackEnd, Device};
#[cfg(feature = "mlx")]
pub use exit::leave;
#[cfg(feature = "mlx")]
pub use mlx_rs::{Array, Dtype};
#[cfg(feature = "mlx")]
pub use packed::{Packed, PackedFormat, PackedMode};
#[cfg(feature = "mlx")]
pub use weights::{ReadProgress, Weights, WeightsReading, estimate_bytes};

pub use shards::shard_files;

pub mod thread;

/// Makes the struct that holds it stay on its thread: neither `Send` nor `Sync`.
///
/// ```compile_fail
/// fn leaves_its_thread<T: Send>() {}
/// leaves_its_thread::<slipstream_engine::mlx::ThreadBound>();
/// ```
#[cfg(feature = "mlx")]
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadBound(std::marker::PhantomData<*const ()>);
