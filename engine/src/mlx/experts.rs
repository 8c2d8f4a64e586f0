//! Operations of routers and experts. Shapes: B rows, L tokens, E experts, K of them chosen for each
//! token, N tokens times chosen experts.

use mlx_rs::ops::indexing;
use mlx_rs::{Array, Device, Dtype};

use super::ops::{self, scalar};
use crate::error::Result;

/// Whether products with dense experts of `dtype` can be computed: MLX 0.32.2's processor back end knows
/// f32 only.
pub fn knows_dense_experts(dtype: Dtype) -> bool {
    let on_processor = || Device::try_default().is_ok_and(|device| device == Device::cpu());
    dtype == Dtype::Float32 || !on_processor()
}

/// `x W[e]` for each `e` of `experts`, whose axes meet those of `x` before the last two, and `W`
/// `[E, in, out]`; `sorted` says that they ascend.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn multiply_each(x: &Array, weights: &Array, experts: &Array, sorted: bool) -> Result<Array> {
    Ok(mlx_rs::ops::gather_mm(x, weights, None, experts, sorted)?)
}

/// Which of N products belong to which expert, in the experts' order.
#[derive(Debug)]
pub struct ExpertOrder {
    /// `[N]`, ascending.
    pub experts: Array,
    /// `[N]`: the token of each.
    pub tokens: Array,
    inverse: Array,
    /// `[.., K]`, as they were chosen.
    shape: Vec<i32>,
}

impl ExpertOrder {
    /// Of `chosen` `[.., K]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn of(chosen: &Array) -> Result<Self> {
        let shape = chosen.shape().to_vec();
        let flat = chosen.reshape(&[-1])?;
        let order = mlx_rs::ops::argsort_axis(&flat, -1)?;
        let per_token = Array::from_slice(&[chosen.dim(-1).unsigned_abs()], &[]);
        Ok(Self {
            experts: ops::take_axis(&flat, &order, 0)?,
            tokens: mlx_rs::ops::floor_divide(&order, per_token)?,
            inverse: mlx_rs::ops::argsort_axis(&order, -1)?,
            shape,
        })
    }

    /// Results `[N, 1, D]` back in the order in which they were chosen: `[.., K, 1, D]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn restore(&self, results: &Array) -> Result<Array> {
        let mut shape = self.shape.clone();
        shape.extend([1, results.dim(-1)]);
        Ok(ops::take_axis(results, &self.inverse, 0)?.reshape(&shape)?)
    }
}

/// `sum_k weights[.., k] * results[.., k, :]`, rounded to the results' type: `[.., D]`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn weighted_sum(results: &Array, weights: &Array) -> Result<Array> {
    let weighed = results.multiply(weights.expand_dims(-1)?)?.sum_axis(-2, false)?;
    Ok(weighed.as_dtype(results.dtype())?)
}

/// Indices of the `count` greatest of the last axis, in MLX's order.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn greatest(scores: &Array, count: i32) -> Result<Array> {
    let (axis, all) = (scores.ndim() - 1, scores.dim(-1));
    let order = mlx_rs::ops::argpartition_axis(scores, -count, -1)?;
    ops::slice_axis(&order, axis, all - count, all)
}

/// The same, in the other of MLX's orders: that of the least of the negated scores.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn least_negated(scores: &Array, count: i32) -> Result<Array> {
    let order = mlx_rs::ops::argpartition_axis(scores.negative()?, count - 1, -1)?;
    ops::slice_axis(&order, scores.ndim() - 1, 0, count)
}

/// The entries at `indices` of the last axis.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn at(scores: &Array, indices: &Array) -> Result<Array> {
    Ok(indexing::take_along_axis(scores, indices, -1)?)
}

/// `array` divided by its sums over the last axis.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn share_out(array: &Array) -> Result<Array> {
    Ok(array.divide(array.sum_axis(-1, true)?)?)
}

/// Softmax over the last axis, in the array's own type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn softmax_in_own_type(array: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::softmax_axis(array, -1, false)?)
}

/// The logistic function in f32.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn sigmoid_f32(array: &Array) -> Result<Array> {
    Ok(ops::sigmoid(array.as_dtype(Dtype::Float32)?)?)
}

/// Scores `[.., E]` with those of the `dropped` groups at 0: the experts lie in `groups` groups side by
/// side, ranked by the sum of their two best.
///
/// # Errors
/// `EngineFailed` when the groups do not divide.
pub fn drop_groups(scores: &Array, groups: i32, dropped: i32) -> Result<Array> {
    let shape = scores.shape();
    let mut grouped = shape[..shape.len() - 1].to_vec();
    grouped.extend([groups, -1]);
    let grouped = scores.reshape(&grouped)?;
    let ranks = indexing::topk_axis(&grouped, 2, -1)?.sum_axis(-1, true)?;
    let order = mlx_rs::ops::argpartition_axis(ranks, dropped - 1, -2)?;
    let least = ops::slice_axis(&order, order.ndim() - 2, 0, dropped)?;
    let zero = scalar(0.0, grouped.dtype())?;
    Ok(indexing::put_along_axis(&grouped, least, zero, -2)?.reshape(shape)?)
}

/// Bytes `[.., n, 4 k]` as the little-endian words that they make, `[.., n k]` of u32.
///
/// # Errors
/// `EngineFailed` when the bytes do not divide into words.
pub fn bytes_as_words(bytes: &Array) -> Result<Array> {
    let words = bytes.view_dtype(Dtype::Uint32)?;
    let mut shape = words.shape()[..words.ndim().saturating_sub(2)].to_vec();
    shape.push(-1);
    Ok(words.reshape(&shape)?)
}

/// Arrays of one shape, one above the other along a new first axis.
///
/// # Errors
/// `EngineFailed` when the shapes differ.
pub fn stack(arrays: &[Array]) -> Result<Array> {
    Ok(mlx_rs::ops::stack(arrays, 0)?)
}

/// Rows `start..stop` of each matrix of `[E, rows, columns]`, in memory of their own.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn rows_of_each(stack: &Array, start: i32, stop: i32) -> Result<Array> {
    Ok(ops::slice_axis(stack, stack.ndim() - 2, start, stop)?.contiguous()?)
}

/// SwiGLU with bounds (gpt-oss; mlx-lm 0.32.2, `activations.swiglu_oai`): the gate is at most `limit`,
/// `up` within plus and minus `limit`, and the result `(up + 1) gate sigmoid(alpha gate)`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn clipped_swiglu(gate: &Array, up: &Array, (alpha, limit): (f32, f32)) -> Result<Array> {
    let gate = mlx_rs::ops::minimum(gate, scalar(limit, gate.dtype())?)?;
    let bounds = (scalar(-limit, up.dtype())?, scalar(limit, up.dtype())?);
    let up = mlx_rs::ops::minimum(mlx_rs::ops::maximum(up, bounds.0)?, bounds.1)?;
    let opening = gate.multiply(ops::sigmoid(ops::scale(&gate, alpha)?)?)?;
    Ok(ops::shift(&up, 1.0)?.multiply(opening)?)
}
