//! MLX's allocator.

use crate::error::Result;
use crate::telemetry::MemorySnapshot;

/// The allocator's figures; `weights_bytes` is left to whoever loaded them.
pub fn snapshot() -> MemorySnapshot {
    let bytes = |figure: std::result::Result<usize, _>| figure.map_or(0, |bytes| bytes as u64);
    MemorySnapshot {
        active_bytes: bytes(mlx_rs::memory::active_memory()),
        cache_bytes: bytes(mlx_rs::memory::cache_memory()),
        peak_bytes: bytes(mlx_rs::memory::peak_memory()),
        weights_bytes: 0,
    }
}

/// Gives buffers kept for reuse back to the system.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn clear_cache() -> Result<()> {
    Ok(mlx_rs::memory::clear_cache()?)
}

/// Forgets the most bytes that were ever active: `peak_bytes` counts from here.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn forget_peak() -> Result<()> {
    Ok(mlx_rs::memory::reset_peak_memory()?)
}
