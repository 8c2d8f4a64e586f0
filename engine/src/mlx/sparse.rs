//! Operations of sparse attention: choosing columns by their scores, and seeing those alone. Shapes as
//! in `ops`; `k` columns are chosen.

use mlx_rs::Array;

use super::failure;
use super::ops::{TIME_AXIS, axis_index, scalar, slice_axis, zeros};
use crate::error::Result;

/// Normalization of the last axis to mean 0 and variance 1, with a learned weight and bias (Ba et al.
/// 2016).
///
/// # Errors
/// `EngineFailed` when weight or bias do not fit the last axis.
pub fn layer_norm(x: &Array, weight: &Array, bias: &Array, epsilon: f32) -> Result<Array> {
    Ok(mlx_rs::fast::layer_norm(x, Some(weight), Some(bias), epsilon)?)
}

/// What of `array` is positive, else 0.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn positive_part(array: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::maximum(array, scalar(0.0, array.dtype())?)?)
}

/// `array` with minus infinity where `kept` is false.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn only_where(kept: &Array, array: &Array) -> Result<Array> {
    let minus_infinity = scalar(f32::NEG_INFINITY, array.dtype())?;
    Ok(mlx_rs::ops::select(kept, array, minus_infinity)?)
}

/// Indices of the `count` largest values of the last axis, in no order.
///
/// # Errors
/// `EngineFailed` when there are fewer.
pub fn largest_last(array: &Array, count: i32) -> Result<Array> {
    let width = array.dim(-1);
    let order = mlx_rs::ops::argpartition_axis(array, width - count, -1)?;
    slice_axis(&order, array.ndim() - 1, width - count, width)
}

/// The columns `indices` `[B, 1, 1, k]` of `columns` `[B, 1, S, D]`: `[B, 1, k, D]`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn take_columns(columns: &Array, indices: &Array) -> Result<Array> {
    let (rows, count) = (indices.dim(0), indices.dim(-1));
    let indices = indices.reshape(&[rows, 1, count, 1])?;
    let indices = mlx_rs::ops::broadcast_to(&indices, &[rows, 1, count, columns.dim(-1)])?;
    Ok(columns.take_along_axis(&indices, axis_index(TIME_AXIS))?)
}

/// The entries `indices` `[B, 1, 1, k]` of the last axis of `array` `[B, 1, 1, S]`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn take_last(array: &Array, indices: &Array) -> Result<Array> {
    Ok(array.take_along_axis(indices, -1)?)
}

/// Booleans `[B, 1, L, width]`, true at `indices` `[B, 1, L, k]`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn mark_last(indices: &Array, width: i32) -> Result<Array> {
    let mut shape = indices.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = width;
    }
    let unmarked = zeros(&shape, mlx_rs::Dtype::Bool)?;
    Ok(unmarked.put_along_axis(indices, Array::from_bool(true), -1)?)
}

/// The sum over the second axis of `[B, H, L, S]`, kept as an axis of one.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn sum_heads(array: &Array) -> Result<Array> {
    Ok(array.sum_axis(1, true)?)
}

/// `array`, which is computed only after `other` is.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn depend(array: &Array, other: &Array) -> Result<Array> {
    // SAFETY: both vectors are fresh handles on arrays that outlive the call; each is freed below, and
    // freeing a handle does not free the arrays.
    unsafe {
        let inputs = mlx_sys::mlx_vector_array_new_value(array.as_ptr());
        let others = mlx_sys::mlx_vector_array_new_value(other.as_ptr());
        let mut outputs = mlx_sys::mlx_vector_array_new();
        let mut raw = mlx_sys::mlx_array_new();
        let status = match mlx_sys::mlx_depends(&raw mut outputs, inputs, others) {
            0 => mlx_sys::mlx_vector_array_get(&raw mut raw, outputs, 0),
            status => status,
        };
        let array = Array::from_ptr(raw);
        for vector in [inputs, others, outputs] {
            mlx_sys::mlx_vector_array_free(vector);
        }
        failure::check(status, "ordering two arrays")?;
        Ok(array)
    }
}

/// Whether the array's numbers are there.
#[cfg(test)]
pub(crate) fn is_computed(array: &Array) -> bool {
    let mut computed = false;
    // SAFETY: a live handle, and a place for the answer.
    let status = unsafe { mlx_sys::_mlx_array_is_available(&raw mut computed, array.as_ptr()) };
    assert_eq!(status, 0);
    computed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx::{Device, ops};

    #[test]
    fn an_array_that_depends_on_another_is_computed_after_it() {
        Device::cpu();
        let sum = |start: f32| {
            let array = Array::from_slice(&[start, 2.0], &[2]);
            array.add(&array).unwrap()
        };
        let (first, other) = (sum(1.0), sum(3.0));
        let tied = depend(&first, &other).unwrap();
        assert!(!is_computed(&other));
        ops::evaluate([&tied]).unwrap();
        assert!(is_computed(&other));
        assert_eq!(ops::read_f32(&tied).unwrap(), [2.0, 4.0]);
    }

    #[test]
    fn chosen_columns_are_those_of_the_largest_scores_in_each_row() {
        Device::cpu();
        let scores =
            Array::from_slice(&[0.5_f32, 3.0, -1.0, 2.0, 9.0, 0.0, 1.0, -2.0], &[2, 1, 1, 4]);
        let chosen = largest_last(&scores, 2).unwrap();
        let marks = ops::read_f32(&mark_last(&chosen, 4).unwrap()).unwrap();
        assert_eq!(marks, [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
        let columns: Vec<f32> = (0..16).map(|value| value as f32).collect();
        let taken = take_columns(&Array::from_slice(&columns, &[2, 1, 4, 2]), &chosen).unwrap();
        assert_eq!(taken.shape(), [2, 1, 2, 2]);
        let mut pairs: Vec<_> =
            ops::read_f32(&taken).unwrap().chunks(2).map(|pair| (pair[0], pair[1])).collect();
        pairs.sort_by(|left, right| left.0.total_cmp(&right.0));
        assert_eq!(pairs, [(2.0, 3.0), (6.0, 7.0), (8.0, 9.0), (12.0, 13.0)]);
        let mut scores = ops::read_f32(&take_last(&scores, &chosen).unwrap()).unwrap();
        scores.sort_by(f32::total_cmp);
        assert_eq!(scores, [1.0, 2.0, 3.0, 9.0]);
    }
}
