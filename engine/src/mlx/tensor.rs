//! Arrays as bytes, and back: what is written to disk.

use mlx_rs::{Array, Dtype};

use super::ops;
use crate::error::{Code, Error, Result};

/// What an array is, without its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSpec {
    /// Its type under the name that safetensors files use.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How many bytes its numbers take.
    pub bytes: u64,
}

/// Types that caches are made of, their names and the bytes of a number.
const TYPES: [(Dtype, &str, usize); 5] = [
    (Dtype::Float32, "F32", 4),
    (Dtype::Float16, "F16", 2),
    (Dtype::Bfloat16, "BF16", 2),
    (Dtype::Uint32, "U32", 4),
    (Dtype::Int32, "I32", 4),
];

/// What `array` is; it is not waited for.
///
/// # Errors
/// `Internal` for a type that no cache has.
pub fn spec(array: &Array) -> Result<RawSpec> {
    let found = TYPES.iter().find(|(dtype, ..)| *dtype == array.dtype());
    let (_, dtype, _) = found.ok_or_else(|| unknown(&format!("{:?}", array.dtype())))?;
    let shape = array.shape().iter().map(|side| side.unsigned_abs() as usize).collect();
    Ok(RawSpec { dtype, shape, bytes: array.nbytes() as u64 })
}

/// The numbers of `array` row by row, in the machine's order of bytes. Waits for them.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub fn read(array: &Array) -> Result<Vec<u8>> {
    let bytes = array.reshape(&[-1])?.view::<u8>()?.contiguous()?;
    ops::evaluate([&bytes])?;
    Ok(bytes.try_as_slice::<u8>().map_err(|error| unknown(&error.to_string()))?.to_vec())
}

/// The array that [`spec`] and [`read`] told of.
///
/// # Errors
/// `BadModel` when the bytes are too few or too many, or the type has another name; `EngineFailed`
/// with MLX's text.
pub fn write(dtype: &str, shape: &[usize], bytes: &[u8]) -> Result<Array> {
    let found = TYPES.iter().find(|(_, name, _)| *name == dtype);
    let (dtype, _, width) = found.ok_or_else(|| unknown(dtype))?;
    let sides = shape.iter().map(|side| i32::try_from(*side).ok()).collect::<Option<Vec<_>>>();
    let count = shape.iter().try_fold(*width, |count, side| count.checked_mul(*side));
    let (Some(sides), true) = (sides, count == Some(bytes.len())) else {
        let message = format!("a stored tensor {shape:?} of {dtype:?} has {} bytes", bytes.len());
        return Err(Error::new(Code::BadModel, message));
    };
    let flat = Array::from_slice(bytes, &[ops::axis_index(bytes.len())]);
    let array = flat.view_dtype(*dtype)?.reshape(&sides)?;
    ops::evaluate([&array])?;
    Ok(array)
}

fn unknown(what: &str) -> Error {
    Error::new(Code::Internal, format!("a cache holds numbers that cannot be stored: {what}"))
}
