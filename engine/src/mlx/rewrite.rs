//! Rows of numbers in another form: cast, and packed. Bytes in, bytes out, so that whoever converts a
//! checkpoint holds no arrays.

use mlx_rs::Dtype;

use super::packed::{PackedFormat, PackedMode};
use super::{ops, tensor};
use crate::error::{Code, Error, Result};

/// Rows of numbers.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Their type under the name that safetensors files use: a float.
    pub dtype: &'a str,
    /// Numbers of a row.
    pub columns: usize,
    /// All of them, row by row.
    pub bytes: &'a [u8],
}

/// What is to become of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rewrite {
    /// What is added to every number first, in its own type.
    pub term: f32,
    /// The type that they are cast to then.
    pub cast: Option<Dtype>,
    /// How they are packed at last; affine.
    pub format: Option<PackedFormat>,
}

/// What became of rows, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewritten {
    /// Numbers.
    Dense(Vec<u8>),
    /// Packed values, scales and biases.
    Packed([Vec<u8>; 3]),
}

/// Rewrites `rows`. Each row's bytes depend on that row alone, so a matrix may come in parts.
///
/// # Errors
/// `EngineFailed` with MLX's text when the rows do not divide into groups; `Internal` for a type that is no
/// float, or a mode other than affine.
pub fn rewrite(rows: &Rows<'_>, rewrite: &Rewrite) -> Result<Rewritten> {
    let Rewrite { term, cast, format } = *rewrite;
    let width = if rows.dtype == "F32" { 4 } else { 2 };
    let count = rows.bytes.len() / (rows.columns * width).max(1);
    let mut array = tensor::write(rows.dtype, &[count, rows.columns], rows.bytes)?;
    if term != 0.0 {
        array = ops::shift(&array, term)?;
    }
    if let Some(dtype) = cast {
        array = array.as_dtype(dtype)?;
    }
    let Some(PackedFormat { mode, group_size, bits }) = format else {
        return Ok(Rewritten::Dense(tensor::read(&array)?));
    };
    if mode != PackedMode::Affine {
        return Err(Error::new(Code::Internal, format!("cannot pack as {}", mode.name())));
    }
    let (values, scales, biases) = ops::quantize(&array, (group_size, bits))?;
    ops::evaluate([&values, &scales, &biases])?;
    Ok(Rewritten::Packed([tensor::read(&values)?, tensor::read(&scales)?, tensor::read(&biases)?]))
}

#[cfg(test)]
mod tests {
    use super::super::Device;
    use super::*;

    const COLUMNS: usize = 64;

    fn numbers(rows: usize) -> Vec<u8> {
        let value = |index: usize| half::bf16::from_f32((index as f32 * 0.37).sin());
        (0..rows * COLUMNS).flat_map(|index| value(index).to_le_bytes()).collect()
    }

    fn packed(bytes: &[u8], cast: Option<Dtype>) -> [Vec<u8>; 3] {
        let rows = Rows { dtype: "BF16", columns: COLUMNS, bytes };
        let format = PackedFormat { mode: PackedMode::Affine, group_size: 32, bits: 4 };
        let wanted = Rewrite { term: 0.0, cast, format: Some(format) };
        match rewrite(&rows, &wanted).unwrap() {
            Rewritten::Packed(parts) => parts,
            Rewritten::Dense(_) => panic!("asked for packed rows"),
        }
    }

    #[test]
    fn a_matrix_packed_in_parts_has_the_bytes_of_the_whole() {
        Device::cpu();
        let bytes = numbers(9);
        let row_bytes = bytes.len() / 9;
        for cast in [None, Some(Dtype::Float16), Some(Dtype::Float32)] {
            let whole = packed(&bytes, cast);
            for cut in 1..9 {
                let (first, second) = bytes.split_at(cut * row_bytes);
                let (first, second) = (packed(first, cast), packed(second, cast));
                for part in 0..3 {
                    let joined = [&first[part][..], &second[part]].concat();
                    assert_eq!(joined, whole[part], "part {part} cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn rows_are_shifted_in_their_own_type_before_they_are_cast() {
        Device::cpu();
        let value = half::bf16::from_f32(1.0 / 3.0);
        let rows = Rows { dtype: "BF16", columns: 1, bytes: &value.to_le_bytes() };
        let wanted = Rewrite { term: 1.0, cast: Some(Dtype::Float32), format: None };
        let expected = half::bf16::from_f32(value.to_f32() + 1.0).to_f32();
        let expected = Rewritten::Dense(expected.to_le_bytes().to_vec());
        assert_eq!(rewrite(&rows, &wanted).unwrap(), expected);
    }
}
