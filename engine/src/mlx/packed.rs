//! Packed matrices, one or a stack of them, and products with them.
//!
//! Words: a **mode** is one of MLX's ways to pack; **values** are the packed numbers, `32 / bits` to a
//! word, along the input axis; each **group** of them has a scale, and in the affine mode a bias.

use std::ffi::CStr;
use std::fmt;

use mlx_rs::{Array, Dtype, Stream};

use super::ops;
use crate::error::Result;

/// How numbers are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedMode {
    /// `scale * q + bias` with scale and bias in the matrix's own type.
    Affine,
    /// Four-bit floats (e2m1) with a power of two for each 32 (the OCP microscaling formats, 2023).
    Mxfp4,
    /// Eight-bit floats (e4m3), scaled the same way.
    Mxfp8,
    /// Four-bit floats (e2m1) with an eight-bit float (e4m3) for each 16 (NVIDIA).
    Nvfp4,
}

impl PackedMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4];

    /// As MLX and configs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    fn c_name(self) -> &'static CStr {
        match self {
            Self::Affine => c"affine",
            Self::Mxfp4 => c"mxfp4",
            Self::Mxfp8 => c"mxfp8",
            Self::Nvfp4 => c"nvfp4",
        }
    }
}

/// How a matrix is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedFormat {
    /// In which of MLX's ways.
    pub mode: PackedMode,
    /// Numbers per scale.
    pub group_size: i32,
    /// Bits per number.
    pub bits: i32,
}

impl fmt::Display for PackedFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, group_size, bits } = self;
        write!(formatter, "{} with {bits} bits in groups of {group_size}", mode.name())
    }
}

/// A packed matrix `[out, in]`, or a stack of them `[E, out, in]`. A clone shares its memory.
#[derive(Debug, Clone)]
pub struct Packed {
    /// `[.., out, in * bits / 32]` of u32.
    pub values: Array,
    /// `[.., out, in / group_size]`.
    pub scales: Array,
    /// The same, in the affine mode.
    pub biases: Option<Array>,
    /// How they are packed.
    pub format: PackedFormat,
}

impl Packed {
    /// `x W^T` for one matrix, or for each of a stack whose axis meets that of `x` before the last two.
    ///
    /// # Errors
    /// `EngineFailed` when the shapes do not fit.
    pub fn multiply(&self, x: &Array) -> Result<Array> {
        self.product(x, true)
    }

    /// The same with `x W`.
    ///
    /// # Errors
    /// `EngineFailed` when the shapes do not fit.
    pub fn multiply_transposed(&self, x: &Array) -> Result<Array> {
        self.product(x, false)
    }

    fn product(&self, x: &Array, transpose: bool) -> Result<Array> {
        let Raw { group_size, bits, mode, biases, stream } = Raw::of(self);
        ops::new_array("a product with a packed matrix", |result| {
            // SAFETY: every handle and the mode's name outlive the call; absent biases are an empty
            // handle, as MLX's C interface asks.
            unsafe {
                mlx_sys::mlx_quantized_matmul(
                    result,
                    x.as_ptr(),
                    self.values.as_ptr(),
                    self.scales.as_ptr(),
                    biases.as_ptr(),
                    transpose,
                    group_size,
                    bits,
                    mode.as_ptr(),
                    stream.as_ptr(),
                )
            }
        })
    }

    /// `x W` for one matrix.
    ///
    /// # Errors
    /// `EngineFailed` when the shapes do not fit.
    pub fn mix_rows(&self, x: &Array) -> Result<Array> {
        self.product(x, false)
    }

    /// For a stack: `x W[e]^T` for each `e` of `experts`, whose axes meet those of `x` before the last
    /// two; `sorted` says that they ascend.
    ///
    /// # Errors
    /// `EngineFailed` when the shapes do not fit.
    pub fn multiply_each(&self, x: &Array, experts: &Array, sorted: bool) -> Result<Array> {
        let Raw { group_size, bits, mode, biases, stream } = Raw::of(self);
        let every_row = absent();
        ops::new_array("products with packed experts", |result| {
            // SAFETY: every handle and the mode's name outlive the call; absent biases and left
            // indices are empty handles, as MLX's C interface asks.
            unsafe {
                mlx_sys::mlx_gather_qmm(
                    result,
                    x.as_ptr(),
                    self.values.as_ptr(),
                    self.scales.as_ptr(),
                    biases.as_ptr(),
                    every_row.as_ptr(),
                    experts.as_ptr(),
                    true,
                    group_size,
                    bits,
                    mode.as_ptr(),
                    sorted,
                    stream.as_ptr(),
                )
            }
        })
    }

    /// Rows `indices` of one matrix, unpacked: `[.., in]` of `dtype`.
    ///
    /// # Errors
    /// `EngineFailed` when the shapes do not fit.
    pub fn rows(&self, indices: &Array, dtype: Dtype) -> Result<Array> {
        let take = |array: &Array| ops::take_axis(array, indices, 0);
        let rows = Self {
            values: take(&self.values)?,
            scales: take(&self.scales)?,
            biases: self.biases.as_ref().map(take).transpose()?,
            format: self.format,
        };
        rows.unpack(dtype)
    }

    /// The plain numbers in `dtype`, which is that of the scales where these are floats.
    ///
    /// # Errors
    /// `EngineFailed` when the shapes do not fit.
    pub fn unpack(&self, dtype: Dtype) -> Result<Array> {
        let Raw { group_size, bits, mode, biases, stream } = Raw::of(self);
        let global_scale = absent();
        let dtype = mlx_sys::mlx_optional_dtype { value: dtype.into(), has_value: true };
        ops::new_array("unpacking", |result| {
            // SAFETY: every handle and the mode's name outlive the call; absent biases and the absent
            // scale of all are empty handles, as MLX's C interface asks.
            unsafe {
                mlx_sys::mlx_dequantize(
                    result,
                    self.values.as_ptr(),
                    self.scales.as_ptr(),
                    biases.as_ptr(),
                    group_size,
                    bits,
                    mode.as_ptr(),
                    global_scale.as_ptr(),
                    dtype,
                    stream.as_ptr(),
                )
            }
        })
    }
}

/// What every call hands to MLX besides its arrays.
struct Raw {
    group_size: mlx_sys::mlx_optional_int,
    bits: mlx_sys::mlx_optional_int,
    mode: &'static CStr,
    biases: Array,
    stream: Stream,
}

impl Raw {
    fn of(packed: &Packed) -> Self {
        let some = |value| mlx_sys::mlx_optional_int { value, has_value: true };
        Self {
            group_size: some(packed.format.group_size),
            bits: some(packed.format.bits),
            mode: packed.format.mode.c_name(),
            biases: packed.biases.as_ref().map_or_else(absent, ops::share),
            stream: Stream::thread_local_or_default(),
        }
    }
}

/// The handle that stands for no array.
fn absent() -> Array {
    // SAFETY: an empty handle, freed with the wrapper.
    unsafe { Array::from_ptr(mlx_sys::mlx_array_new()) }
}
