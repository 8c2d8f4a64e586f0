//! Array operations that mlx-rs lacks or makes roundabout, and the few of its own that the models
//! name often. Shapes: B rows, H heads, S tokens, D head dimension, V vocabulary.

use std::f32::consts::SQRT_2;
use std::f64::consts::FRAC_1_PI;

use half::{bf16, f16};
use mlx_rs::ops::indexing;
pub use mlx_rs::ops::{concatenate, logical_and, sigmoid};
use mlx_rs::{Array, Dtype, Stream};

use super::failure;
use crate::error::{Code, Error, Result};

/// The axis of `[B, H, S, D]` that runs over tokens.
pub const TIME_AXIS: usize = 2;

/// What a query may attend to.
#[derive(Debug, Clone)]
pub enum Mask {
    /// Everything.
    None,
    /// Itself and what came before it.
    Causal,
    /// Where this boolean array, broadcast to `[B, H, L, S]`, is true.
    Array(Array),
}

/// A new handle to the same array; nothing is copied.
pub fn share(array: &Array) -> Array {
    array.clone()
}

/// Scaled dot-product attention: queries `[B, Hq, L, D]` over keys and values `[B, Hkv, S, D]`.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn attention(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    mask: &Mask,
) -> Result<Array> {
    attention_with_sinks(queries, (keys, values), scale, mask, None)
}

/// The same, in which each query head of `sinks` `[Hq]` has one more score that no value answers to
/// (Xiao et al. 2023).
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn attention_with_sinks(
    queries: &Array,
    (keys, values): (&Array, &Array),
    scale: f32,
    mask: &Mask,
    sinks: Option<&Array>,
) -> Result<Array> {
    use mlx_rs::fast::{ScaledDotProductAttentionMask as Kind, scaled_dot_product_attention};
    let mask = match mask {
        Mask::None => None,
        Mask::Causal => Some(Kind::Causal),
        Mask::Array(array) => Some(Kind::Array(array)),
    };
    Ok(scaled_dot_product_attention(queries, keys, values, scale, mask, sinks)?)
}

/// Root-mean-square normalization over the last axis, then times `weight` if there is one.
///
/// # Errors
/// `EngineFailed` when the weight does not fit the last axis.
pub fn rms_norm(x: &Array, weight: Option<&Array>, epsilon: f32) -> Result<Array> {
    Ok(mlx_rs::fast::rms_norm(x, weight, epsilon)?)
}

/// Which frequencies a rotary embedding turns with.
#[derive(Debug, Clone)]
pub enum RopeFrequencies {
    /// `base^(-2i/d)`.
    Base(f32),
    /// `[d / 2]` wavelengths over 2 pi.
    Table(Array),
}

/// How a rotary embedding turns (Su et al. 2021).
#[derive(Debug, Clone)]
pub struct RopeSpec {
    /// Leading dimensions of a head that turn.
    pub dimensions: i32,
    /// Pairs are neighbours instead of halves.
    pub traditional: bool,
    /// Positions are multiplied by this.
    pub scale: f32,
    /// The frequencies.
    pub frequencies: RopeFrequencies,
}

impl RopeSpec {
    fn base(&self) -> Option<f32> {
        match self.frequencies {
            RopeFrequencies::Base(base) => Some(base),
            RopeFrequencies::Table(_) => None,
        }
    }

    fn table(&self) -> Option<&Array> {
        match &self.frequencies {
            RopeFrequencies::Base(_) => None,
            RopeFrequencies::Table(table) => Some(table),
        }
    }
}

/// Turns `x` `[B, H, L, D]`, whose first token stands at `offset` in every row.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn rope(x: &Array, spec: &RopeSpec, offset: i32) -> Result<Array> {
    let RopeSpec { dimensions, traditional, scale, .. } = *spec;
    let (base, table) = (spec.base(), spec.table());
    Ok(mlx_rs::fast::rope(x, dimensions, traditional, base, scale, offset, table)?)
}

/// Turns `x` `[B, H, L, D]`, whose first token stands at `offsets` `[B]`.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn rope_per_row(x: &Array, spec: &RopeSpec, offsets: &Array) -> Result<Array> {
    let RopeSpec { dimensions, traditional, scale, .. } = *spec;
    let (base, table) = (spec.base(), spec.table());
    Ok(mlx_rs::fast::rope_dynamic(x, dimensions, traditional, base, scale, offsets, table)?)
}

/// Columns `start..stop` of `axis`.
///
/// # Errors
/// `EngineFailed` when the axis does not exist.
pub fn slice_axis(array: &Array, axis: usize, start: i32, stop: i32) -> Result<Array> {
    let bounds = Bounds::of_axis(array, axis, start, stop);
    let stream = Stream::thread_local_or_default();
    new_array("slicing", |result| {
        // SAFETY: the three vectors have one entry per axis and outlive the call, as do the handles.
        unsafe {
            mlx_sys::mlx_slice(
                result,
                array.as_ptr(),
                bounds.start.as_ptr(),
                bounds.start.len(),
                bounds.stop.as_ptr(),
                bounds.stop.len(),
                bounds.stride.as_ptr(),
                bounds.stride.len(),
                stream.as_ptr(),
            )
        }
    })
}

/// `array` with columns `start..stop` of `axis` replaced by `update`. MLX writes in place when no
/// other handle to `array` is left at evaluation.
///
/// # Errors
/// `EngineFailed` when the update does not fit.
pub fn slice_update_axis(
    array: &Array,
    update: &Array,
    axis: usize,
    start: i32,
    stop: i32,
) -> Result<Array> {
    let bounds = Bounds::of_axis(array, axis, start, stop);
    let stream = Stream::thread_local_or_default();
    new_array("updating a slice", |result| {
        // SAFETY: the three vectors have one entry per axis and outlive the call, as do the handles.
        unsafe {
            mlx_sys::mlx_slice_update(
                result,
                array.as_ptr(),
                update.as_ptr(),
                bounds.start.as_ptr(),
                bounds.start.len(),
                bounds.stop.as_ptr(),
                bounds.stop.len(),
                bounds.stride.as_ptr(),
                bounds.stride.len(),
                stream.as_ptr(),
            )
        }
    })
}

/// Zeros of `shape`.
///
/// # Errors
/// `EngineFailed` when the allocation is impossible.
pub fn zeros(shape: &[i32], dtype: Dtype) -> Result<Array> {
    Ok(mlx_rs::ops::zeros_dtype(shape, dtype)?)
}

/// `array` with `left` and `right` zero columns added to `axis`.
///
/// # Errors
/// `EngineFailed` when the allocation is impossible.
pub fn pad_axis(array: &Array, axis: usize, left: i32, right: i32) -> Result<Array> {
    let mut parts = Vec::with_capacity(3);
    let zeros_of = |columns: i32| {
        let mut shape = array.shape().to_vec();
        shape[axis] = columns;
        zeros(&shape, array.dtype())
    };
    if left > 0 {
        parts.push(zeros_of(left)?);
    }
    parts.push(share(array));
    if right > 0 {
        parts.push(zeros_of(right)?);
    }
    concatenate_axis(&parts, axis)
}

/// Joins arrays along `axis`.
///
/// # Errors
/// `EngineFailed` when the other axes differ.
pub fn concatenate_axis(arrays: &[Array], axis: usize) -> Result<Array> {
    match arrays {
        [only] => Ok(share(only)),
        arrays => Ok(concatenate(arrays, axis_index(axis))?),
    }
}

/// Entries `indices` of `axis`; the result has the shape of the indices in its place.
///
/// # Errors
/// `EngineFailed` when the axis does not exist.
pub fn take_axis(array: &Array, indices: &Array, axis: i32) -> Result<Array> {
    Ok(indexing::take_axis(array, indices, axis)?)
}

/// `bias + x w`.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn add_matmul(bias: &Array, x: &Array, w: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::addmm(bias, x, w, None, None)?)
}

/// `x W^T` (`transpose`) or `x W` for packed values with their scales and biases, `W` packed in groups
/// of `group_size` along its last axis with `bits` bits a value.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn quantized_product(
    x: &Array,
    (packed, scales, biases): (&Array, &Array, &Array),
    (group_size, bits): (i32, i32),
    transpose: bool,
) -> Result<Array> {
    Ok(mlx_rs::ops::quantized_matmul(x, packed, scales, biases, transpose, group_size, bits)?)
}

/// Packed values, scales and biases of `array`, in groups of `group_size` along its last axis.
///
/// # Errors
/// `EngineFailed` when the last axis does not divide.
pub fn quantize(array: &Array, (group_size, bits): (i32, i32)) -> Result<(Array, Array, Array)> {
    Ok(mlx_rs::ops::quantize(array, group_size, bits)?)
}

/// Softmax over the last axis, summed in f32.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn softmax_last(array: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::softmax_axis(array, -1, true)?)
}

/// `array` broadcast to `shape`.
///
/// # Errors
/// `EngineFailed` when it does not broadcast.
pub fn broadcast(array: &Array, shape: &[i32]) -> Result<Array> {
    Ok(mlx_rs::ops::broadcast_to(array, shape)?)
}

/// Booleans `[queries, keys]`: the last query sees every key, each one before it one less.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn causal_mask(queries: i32, keys: i32) -> Result<Array> {
    let positions = Array::from_iter(keys - queries..keys, &[queries, 1]);
    let columns = Array::from_iter(0..keys, &[1, keys]);
    Ok(positions.ge(&columns)?)
}

/// `scores` where `visible`, else their type's least finite number.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn keep_where(visible: &Array, scores: &Array) -> Result<Array> {
    let least = scores.dtype().finfo_min().unwrap_or(f64::from(f32::MIN));
    let least = scalar(least as f32, scores.dtype())?;
    Ok(mlx_rs::ops::select(visible, scores, least)?)
}

/// The plain values of affine-quantized rows.
///
/// # Errors
/// `EngineFailed` when the shapes do not fit.
pub fn dequantize(
    packed: &Array,
    scales: &Array,
    biases: &Array,
    (group_size, bits): (i32, i32),
) -> Result<Array> {
    Ok(mlx_rs::ops::dequantize(packed, scales, biases, group_size, bits)?)
}

/// Rows `indices` of the first axis, in that order.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn take_rows(array: &Array, indices: &[i32]) -> Result<Array> {
    take_axis(array, &int_vector(indices), 0)
}

/// A vector of 32-bit integers.
pub fn int_vector(values: &[i32]) -> Array {
    Array::from_slice(values, &[axis_index(values.len())])
}

/// A vector of token ids, or of other numbers that are never negative.
pub fn token_vector(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[axis_index(tokens.len())])
}

/// A vector of `dtype`, rounded to it here.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn vector(values: &[f32], dtype: Dtype) -> Result<Array> {
    let shape = [axis_index(values.len())];
    match dtype {
        Dtype::Bfloat16 => {
            let values: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            Ok(Array::from_slice(&values, &shape))
        }
        Dtype::Float16 => {
            let values: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
            Ok(Array::from_slice(&values, &shape))
        }
        dtype => Ok(Array::from_slice(values, &shape).as_dtype(dtype)?),
    }
}

/// Token ids as `[rows, columns]`, row after row.
pub fn token_matrix(tokens: &[u32], rows: usize) -> Array {
    let columns = tokens.len() / rows.max(1);
    Array::from_slice(tokens, &[axis_index(rows), axis_index(columns)])
}

/// The index of the largest value of the last axis, as u32; the first one where several tie.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn argmax_last(array: &Array) -> Result<Array> {
    Ok(indexing::argmax_axis(array, -1, false)?)
}

/// Natural-log probabilities of logits `[.., V]`, in their dtype, as mlx-lm 0.32.2 makes them
/// (`generate.py`: logits minus their logsumexp).
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn log_probabilities(logits: &Array) -> Result<Array> {
    Ok(logits.subtract(logits.logsumexp_axis(-1, true)?)?)
}

/// `x * (1 + erf(x / sqrt(2))) / 2`, rounded step by step as MLX 0.32.2's `nn.gelu` does.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn gelu(x: &Array) -> Result<Array> {
    let inside = mlx_rs::ops::erf(divide(x, SQRT_2)?)?;
    divide(&x.multiply(shift(&inside, 1.0)?)?, 2.0)
}

/// `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, as MLX 0.32.2's `nn.gelu_approx`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn gelu_tanh(x: &Array) -> Result<Array> {
    let cubed = x.power(scalar(3.0, x.dtype())?)?;
    let inside = x.add(scale(&cubed, 0.044_715)?)?;
    let factor = (2.0 * FRAC_1_PI).sqrt() as f32;
    let tanh = mlx_rs::ops::tanh(scale(&inside, factor)?)?;
    Ok(scale(x, 0.5)?.multiply(shift(&tanh, 1.0)?)?)
}

/// `cap * tanh(array / cap)`: within plus and minus `cap`, near the array where that is small.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn soft_cap(array: &Array, cap: f32) -> Result<Array> {
    scale(&mlx_rs::ops::tanh(divide(array, cap)?)?, cap)
}

/// `left + right`, kept within f16's finite numbers where that is their type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn add_finite(left: &Array, right: &Array) -> Result<Array> {
    if left.dtype() != Dtype::Float16 {
        return Ok(left.add(right)?);
    }
    let wide = |array: &Array| array.as_dtype(Dtype::Float32);
    let bound = f16::MAX.to_f32();
    let sum = wide(left)?.add(wide(right)?)?;
    Ok(mlx_rs::ops::clip(&sum, (-bound, bound))?.as_dtype(Dtype::Float16)?)
}

/// `array * factor` in the array's own type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn scale(array: &Array, factor: f32) -> Result<Array> {
    Ok(array.multiply(scalar(factor, array.dtype())?)?)
}

/// `array / divisor` in the array's own type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn divide(array: &Array, divisor: f32) -> Result<Array> {
    Ok(array.divide(scalar(divisor, array.dtype())?)?)
}

/// `dividend / array` in the array's own type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn divide_by(dividend: f32, array: &Array) -> Result<Array> {
    Ok(scalar(dividend, array.dtype())?.divide(array)?)
}

/// `base^exponents` in the exponents' own type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn power_of(base: f32, exponents: &Array) -> Result<Array> {
    Ok(scalar(base, exponents.dtype())?.power(exponents)?)
}

/// `1 - array` in the array's own type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn one_minus(array: &Array) -> Result<Array> {
    Ok(scalar(1.0, array.dtype())?.subtract(array)?)
}

/// `array`, with what is below 0 or above 1 moved there.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn clip_to_unit(array: &Array) -> Result<Array> {
    let (zero, one) = (scalar(0.0, array.dtype())?, scalar(1.0, array.dtype())?);
    Ok(mlx_rs::ops::minimum(mlx_rs::ops::maximum(array, zero)?, one)?)
}

/// Where `low < array` and `array < high`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn between(array: &Array, low: f32, high: f32) -> Result<Array> {
    Ok(logical_and(above(array, low)?, array.lt(scalar(high, array.dtype())?)?)?)
}

/// Where `array > bound`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn above(array: &Array, bound: f32) -> Result<Array> {
    Ok(array.gt(scalar(bound, array.dtype())?)?)
}

/// Where `array < bound`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn below(array: &Array, bound: f32) -> Result<Array> {
    Ok(array.lt(scalar(bound, array.dtype())?)?)
}

/// The least value above `bound` of the last axis, which is kept; infinity where none is.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn least_above(array: &Array, bound: f32) -> Result<Array> {
    let infinity = scalar(f32::INFINITY, array.dtype())?;
    let candidates = mlx_rs::ops::select(above(array, bound)?, array, infinity)?;
    Ok(candidates.min_axis(-1, true)?)
}

/// Softmax over the last axis, as MLX makes it unless asked for more precision.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn probabilities(array: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::softmax_axis(array, -1, false)?)
}

/// A vector with `values` at `indices`; an index that occurs twice must come with the same value.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn put(vector: &Array, indices: &Array, values: &Array) -> Result<Array> {
    Ok(vector.put_along_axis(indices, values, 0)?)
}

/// `array` with the values of `original` at `indices` of the last axis.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn put_back(array: &Array, indices: &Array, original: &Array) -> Result<Array> {
    let values = original.take_along_axis(indices, -1)?;
    Ok(array.put_along_axis(indices, &values, -1)?)
}

/// A vector with `values` added at `indices`, one after the other where an index occurs twice.
///
/// # Errors
/// `EngineFailed` when indices and values differ in number.
pub fn scatter_add(vector: &Array, indices: &Array, values: &Array) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    new_array("adding at indices", |result| {
        // SAFETY: the handles outlive the call.
        unsafe {
            mlx_sys::mlx_scatter_add_axis(
                result,
                vector.as_ptr(),
                indices.as_ptr(),
                values.as_ptr(),
                0,
                stream.as_ptr(),
            )
        }
    })
}

/// `chosen` where `condition` is true, else `other`.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn choose(condition: &Array, chosen: &Array, other: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::select(condition, chosen, other)?)
}

/// `array + term` in the array's own type.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn shift(array: &Array, term: f32) -> Result<Array> {
    Ok(array.add(scalar(term, array.dtype())?)?)
}

/// Whether any value is NaN.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn has_nan(array: &Array) -> Result<bool> {
    // NaN alone differs from itself.
    let any = array.ne(array)?.any(false)?.as_dtype(Dtype::Uint32)?.reshape(&[1])?;
    Ok(read_u32(&any)? != [0])
}

/// The last axis in ascending order.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn sort_last(array: &Array) -> Result<Array> {
    Ok(mlx_rs::ops::sort_axis(array, -1)?)
}

/// Indices that put the value of rank `rank` (from 0, ascending) in its place along the last axis,
/// smaller ones before it.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn argpartition_last(array: &Array, rank: i32) -> Result<Array> {
    Ok(mlx_rs::ops::argpartition_axis(array, rank, -1)?)
}

/// `e^array` in f32.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn exp_f32(array: &Array) -> Result<Array> {
    Ok(array.as_dtype(Dtype::Float32)?.exp()?)
}

/// For ascending values along the last axis, the sum of those after each.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn sum_of_larger(array: &Array) -> Result<Array> {
    Ok(array.cumsum(-1, true, false)?)
}

/// How many of the last axis are true, as i32 with the axis kept.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn count_last(array: &Array) -> Result<Array> {
    Ok(array.as_dtype(Dtype::Int32)?.sum_axis(-1, true)?)
}

/// `array` with minus infinity where `excluded` is true.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn exclude(excluded: &Array, array: &Array) -> Result<Array> {
    let minus_infinity = scalar(f32::NEG_INFINITY, array.dtype())?;
    Ok(mlx_rs::ops::select(excluded, minus_infinity, array)?)
}

/// `logits` `[B, V]` with minus infinity at each token whose bit in its row's words (bit `i % 32` of word
/// `i / 32`) is not set, or that the words end before. A row without words keeps every bit of its logits.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn keep_bits(rows: &[Option<&[u32]>], logits: &Array) -> Result<Array> {
    let vocabulary = logits.dim(-1);
    let width = vocabulary.unsigned_abs().div_ceil(u32::BITS) as usize;
    let mut words = Vec::with_capacity(rows.len() * width);
    for row in rows {
        let given = row.unwrap_or(&[]);
        let rest = if row.is_some() { 0 } else { u32::MAX };
        words.extend(given.iter().copied().chain(std::iter::repeat(rest)).take(width));
    }
    let words = Array::from_slice(&words, &[axis_index(rows.len()), axis_index(width), 1]);
    let bits: Vec<u32> = (0..u32::BITS).map(|bit| 1 << bit).collect();
    let bits = Array::from_slice(&bits, &[1, 1, axis_index(bits.len())]);
    let cleared = bitwise_and(&words, &bits)?.eq(Array::from_slice(&[0u32], &[]))?;
    let cleared = cleared.reshape(&[axis_index(rows.len()), -1])?;
    exclude(&slice_axis(&cleared, 1, 0, vocabulary)?, logits)
}

/// The bits that two arrays of integers, broadcast, have in common.
fn bitwise_and(left: &Array, right: &Array) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    new_array("comparing bits", |result| {
        // SAFETY: the handles outlive the call.
        unsafe { mlx_sys::mlx_bitwise_and(result, left.as_ptr(), right.as_ptr(), stream.as_ptr()) }
    })
}

/// `array` with minus infinity at `indices` of the last axis.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn put_minus_infinity(array: &Array, indices: &Array) -> Result<Array> {
    let minus_infinity = scalar(f32::NEG_INFINITY, array.dtype())?;
    Ok(array.put_along_axis(indices, minus_infinity, -1)?)
}

/// One number of type `dtype`.
pub(super) fn scalar(value: f32, dtype: Dtype) -> Result<Array> {
    match dtype {
        // Rounded here, so that a step does not cast constants on the device.
        Dtype::Bfloat16 => Ok(Array::from_slice(&[bf16::from_f32(value)], &[])),
        Dtype::Float16 => Ok(Array::from_slice(&[f16::from_f32(value)], &[])),
        dtype => Ok(Array::from_f32(value).as_dtype(dtype)?),
    }
}

/// Starts the evaluation of `arrays` and returns at once.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn start_evaluation<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(mlx_rs::transforms::async_eval(arrays)?)
}

/// Evaluates `arrays` and waits for them.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn evaluate<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(mlx_rs::transforms::eval(arrays)?)
}

/// The values of an array of u32, evaluated first.
///
/// # Errors
/// `Internal` when it holds another type, `EngineFailed` when its evaluation failed.
pub fn read_u32(array: &Array) -> Result<Vec<u32>> {
    array.eval()?;
    if array.size() == 0 {
        // It has no memory to look into.
        return Ok(Vec::new());
    }
    let values = array.try_as_slice::<u32>();
    values.map(<[u32]>::to_vec).map_err(|error| {
        Error::new(Code::Internal, format!("cannot read an array as u32: {error}"))
    })
}

/// The values of an array as f32, whatever its type, evaluated first.
///
/// # Errors
/// `EngineFailed` when its evaluation failed.
pub fn read_f32(array: &Array) -> Result<Vec<f32>> {
    let cast = array.as_dtype(Dtype::Float32)?.contiguous()?;
    cast.eval()?;
    if array.size() == 0 {
        // It has no memory to look into.
        return Ok(Vec::new());
    }
    let values = cast.try_as_slice::<f32>();
    values.map(<[f32]>::to_vec).map_err(|error| {
        Error::new(Code::Internal, format!("cannot read an array as f32: {error}"))
    })
}

/// A number from 0 (possible) to 1 (not possible): a function of `seed` and `index` alone, which tells
/// nothing of the [`gumbel`] numbers of the same two.
pub fn random_unit(seed: u64, index: u64) -> f32 {
    // The upper 24 bits are as many as f32 holds exactly.
    (mix(!seed, index) >> 40) as f32 / (1u32 << 24) as f32
}

/// Numbers with the standard Gumbel distribution, `[B, V]` in f32: each row a function of its key, a seed
/// and an index, alone.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn gumbel(keys: &[(u64, u64)], vocabulary: i32) -> Result<Array> {
    let bits = keys.iter().map(|(seed, index)| random_bits(mix(*seed, *index), vocabulary));
    let bits = concatenate_axis(&bits.collect::<Result<Vec<_>>>()?, 0)?;
    // Uniform and never 0 or 1: then no token's number is infinite, and one that was filtered cannot win.
    let spread =
        shift(&scale(&bits.as_dtype(Dtype::Float32)?, 1.0 / UNIFORM_STEPS)?, 0.5 / UNIFORM_STEPS)?;
    let below_one = scalar(1.0 - f32::EPSILON / 2.0, Dtype::Float32)?;
    let uniform = mlx_rs::ops::minimum(spread, below_one)?;
    // The logarithm of an exponential number, made so that small ones, which win, are the most exact.
    let exponential = mlx_rs::ops::log1p(uniform.negative()?)?.negative()?;
    Ok(exponential.log()?.negative()?)
}

/// How many numbers 32 bits can be.
const UNIFORM_STEPS: f32 = 4_294_967_296.0;

/// 32 random bits for each of `[1, V]`.
fn random_bits(seed: u64, vocabulary: i32) -> Result<Array> {
    let key = mlx_rs::random::key(seed)?;
    let (shape, width_bytes) = ([1, vocabulary], 4);
    let stream = Stream::thread_local_or_default();
    new_array("drawing random bits", |result| {
        // SAFETY: the shape has two entries and outlives the call, as do the handles.
        unsafe {
            mlx_sys::mlx_random_bits(
                result,
                shape.as_ptr(),
                shape.len(),
                width_bytes,
                key.as_ptr(),
                stream.as_ptr(),
            )
        }
    })
}

/// SplitMix64's finalizer (Steele, Lea, Flood 2014) over the seed and the draw's index.
fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Sizes and axes as MLX counts them.
pub fn axis_index(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

struct Bounds {
    start: Vec<i32>,
    stop: Vec<i32>,
    stride: Vec<i32>,
}

impl Bounds {
    fn of_axis(array: &Array, axis: usize, start: i32, stop: i32) -> Self {
        let shape = array.shape();
        let mut bounds = Self {
            start: vec![0; shape.len()],
            stop: shape.to_vec(),
            stride: vec![1; shape.len()],
        };
        bounds.start[axis] = start;
        bounds.stop[axis] = stop;
        bounds
    }
}

pub(super) fn new_array(
    attempt: &'static str,
    call: impl FnOnce(*mut mlx_sys::mlx_array) -> i32,
) -> Result<Array> {
    // SAFETY: an empty handle that either receives the result or is freed with the wrapper.
    let mut raw = unsafe { mlx_sys::mlx_array_new() };
    let status = call(&raw mut raw);
    // SAFETY: `raw` is ours alone; the wrapper frees it.
    let array = unsafe { Array::from_ptr(raw) };
    failure::check(status, attempt)?;
    Ok(array)
}
