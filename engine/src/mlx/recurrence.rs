//! Operations that recurrent layers are made of. Shapes: B rows, L tokens, C channels.

use mlx_rs::{Array, Dtype};

use super::ops;
use crate::error::Result;

/// Each channel of `x` `[B, L, C]` convolved along the tokens with a filter of its own, `filters`
/// `[C, K, 1]`: `[B, L - K + 1, C]`.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn convolve_channels(x: &Array, filters: &Array) -> Result<Array> {
    let (stride, padding, dilation) = (1, 0, 1);
    Ok(mlx_rs::ops::conv1d(x, filters, stride, padding, dilation, filters.dim(0))?)
}

/// `x * sigmoid(x)`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn silu(x: &Array) -> Result<Array> {
    Ok(x.multiply(ops::sigmoid(x)?)?)
}

/// `log(1 + e^x)`, as MLX 0.32.2's `nn.softplus` makes it.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn softplus(x: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::logaddexp(x, ops::scalar(0.0, x.dtype())?)?)
}

/// The last axis over its root mean square, without a weight.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn rms_normalize(x: &Array, epsilon: f32) -> Result<Array> {
    Ok(mlx_rs::fast::rms_norm(x, None, epsilon)?)
}

/// The sum of the last axis, which is dropped.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn sum_last(x: &Array) -> Result<Array> {
    Ok(x.sum_axis(-1, false)?)
}

/// `-e^x` in f32.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn minus_exp_f32(x: &Array) -> Result<Array> {
    Ok(ops::exp_f32(x)?.negative()?)
}

/// `silu(gate) * x`, computed in f32 and rounded to the type of `x`: mlx-lm 0.32.2, `precise_swiglu`.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn gate_precisely(gate: &Array, x: &Array) -> Result<Array> {
    let wide = |array: &Array| array.as_dtype(Dtype::Float32);
    Ok(silu(&wide(gate)?)?.multiply(wide(x)?)?.as_dtype(x.dtype())?)
}
