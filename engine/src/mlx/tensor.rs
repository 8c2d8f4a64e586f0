//! Arrays as bytes, and back: what is written to disk.

use mlx_rs::{Array, Dtype};

use super::ops;
use crate::error::{Code, Error, Result};

/// An array as it lies in memory, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// Its type under the name that safetensors files use.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<i32>,
    /// Its numbers, in the machine's order of bytes.
    pub bytes: Vec<u8>,
}

/// Types that caches are made of, their names and the bytes of a number.
const TYPES: [(Dtype, &str, i32); 5] = [
    (Dtype::Float32, "F32", 4),
    (Dtype::Float16, "F16", 2),
    (Dtype::Bfloat16, "BF16", 2),
    (Dtype::Uint32, "U32", 4),
    (Dtype::Int32, "I32", 4),
];

/// Reads `array`, which waits for it.
///
/// # Errors
/// `Internal` for a type that no cache has; `EngineFailed` with MLX's text.
pub fn read(array: &Array) -> Result<RawTensor> {
    let found = TYPES.iter().find(|(dtype, ..)| *dtype == array.dtype());
    let (_, name, _) = found.ok_or_else(|| unknown(&format!("{:?}", array.dtype())))?;
    let bytes = array.reshape(&[-1])?.view::<u8>()?.contiguous()?;
    ops::evaluate([&bytes])?;
    let bytes = bytes.try_as_slice::<u8>().map_err(|error| unknown(&error.to_string()))?.to_vec();
    Ok(RawTensor { dtype: name, shape: array.shape().to_vec(), bytes })
}

/// The array that [`read`] told of.
///
/// # Errors
/// `BadModel` when the bytes are too few or too many, or the type has another name; `EngineFailed`
/// with MLX's text.
pub fn write(dtype: &str, shape: &[i32], bytes: &[u8]) -> Result<Array> {
    let found = TYPES.iter().find(|(_, name, _)| *name == dtype);
    let (dtype, _, width) = found.ok_or_else(|| unknown(dtype))?;
    let count = shape.iter().try_fold(*width, |count, side| count.checked_mul(*side));
    if count.and_then(|count| usize::try_from(count).ok()) != Some(bytes.len()) {
        let message = format!("a stored tensor {shape:?} of {dtype:?} has {} bytes", bytes.len());
        return Err(Error::new(Code::BadModel, message));
    }
    let flat = Array::from_slice(bytes, &[ops::axis_index(bytes.len())]);
    Ok(flat.view_dtype(*dtype)?.reshape(shape)?)
}

fn unknown(what: &str) -> Error {
    Error::new(Code::Internal, format!("a cache holds numbers that cannot be stored: {what}"))
}
