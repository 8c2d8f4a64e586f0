//! Doing what the plan says: rows are read some at a time, checked, rewritten and put in their place. So memory
//! holds a piece of one tensor, whatever the checkpoint's size.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;

use half::{bf16, f16};
use safetensors::Dtype;

use super::draft::Piece;
use super::plan::{Plan, TensorPlan};
use super::shards::Shard;
use super::source::{Source, value_bytes};
use super::{ConvertProgress, Progress};
use crate::error::{Code, Error, Result};
use crate::hub::staging::Staging;
use crate::hub::{WeightDtype, io_error};
use crate::limits::CONVERT_PIECE_BYTES;
use crate::mlx;
use crate::mlx::rewrite::{Rewrite, Rewritten, Rows, rewrite};

/// Writes the weights of `plan` into `shards`.
pub(super) fn write(
    staging: &Staging,
    source: &Source,
    plan: &Plan,
    shards: &[Shard],
    progress: &mut Progress<'_>,
) -> Result<()> {
    let files = source.files.iter().map(File::open).collect::<std::io::Result<Vec<_>>>()?;
    let total_bytes = plan.tensors.iter().map(|tensor| read_bytes(source, tensor)).sum();
    let mut writing = Writing { source, files, done_bytes: 0, total_bytes, progress };
    for shard in shards {
        let path = staging.path(&shard.name);
        let failed = |error| io_error(&error, format_args!("failed to write `{}`", path.display()));
        let mut target = File::create(&path).map_err(failed)?;
        target.set_len(shard.bytes).map_err(failed)?;
        target.write_all(&shard.header).map_err(failed)?;
        for (tensor, places) in plan.tensors[shard.tensors.clone()].iter().zip(&shard.places) {
            writing
                .tensor(tensor, places, &mut target)
                .map_err(|error| error.while_doing(format_args!("tensor `{}`", tensor.name)))?;
        }
    }
    Ok(())
}

/// Bytes that are read for a tensor.
fn read_bytes(source: &Source, tensor: &TensorPlan) -> u64 {
    let bytes = |piece: &Piece| piece.bytes(source.tensors[piece.source].stored.dtype) as u64;
    tensor.draft.pieces.iter().map(bytes).sum()
}

/// The state of all tensors.
struct Writing<'a, 'b> {
    source: &'a Source,
    files: Vec<File>,
    done_bytes: u64,
    total_bytes: u64,
    progress: &'a mut Progress<'b>,
}

impl Writing<'_, '_> {
    /// Writes one tensor, each of its outputs from its place on.
    fn tensor(&mut self, tensor: &TensorPlan, places: &[u64], target: &mut File) -> Result<()> {
        let mut places = places.to_vec();
        let width = |piece: &Piece| value_bytes(self.source.tensors[piece.source].stored.dtype);
        let pieces = tensor.draft.pieces.iter().flat_map(|piece| cut(piece, width(piece)));
        for piece in pieces.collect::<Vec<_>>() {
            let bytes = self.read(&piece)?;
            self.done_bytes += bytes.len() as u64;
            let parts = rewritten(tensor, &piece, bytes)?;
            for (place, part) in places.iter_mut().zip(&parts) {
                target.seek(SeekFrom::Start(*place))?;
                target.write_all(part)?;
                *place += part.len() as u64;
            }
            self.tell()?;
        }
        Ok(())
    }

    /// Tells how far it is, and hears whether to go on.
    fn tell(&mut self) -> Result<()> {
        let Self { done_bytes, total_bytes, .. } = *self;
        match (self.progress)(ConvertProgress { done_bytes, total_bytes }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                Err(Error::new(Code::ShuttingDown, "the conversion was stopped"))
            }
        }
    }

    /// The numbers of a piece, row by row.
    fn read(&mut self, piece: &Piece) -> Result<Vec<u8>> {
        let tensor = &self.source.tensors[piece.source];
        let width = value_bytes(tensor.stored.dtype);
        let row_bytes = piece.columns * width;
        let spanned_rows = piece.rows.saturating_sub(1) * piece.step + piece.rows.min(1);
        let mut bytes = vec![0; spanned_rows * row_bytes];
        let start = tensor.stored.range.start + (piece.first * row_bytes) as u64;
        let path = &self.source.files[tensor.file];
        let file = &mut self.files[tensor.file];
        file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut bytes)).map_err(
            |error| io_error(&error, format_args!("failed to read `{}`", path.display())),
        )?;
        keep_rows(&mut bytes, row_bytes, piece.step);
        Ok(match piece.transposed {
            true => transposed(&bytes, piece.columns, width),
            false => bytes,
        })
    }
}

/// Cuts a piece into parts of about [`CONVERT_PIECE_BYTES`] of the file; a transposed one stays whole, because
/// its rows are spread over all of it.
fn cut(piece: &Piece, width: usize) -> Vec<Piece> {
    let row_bytes = (piece.columns * piece.step * width).max(1);
    let most = if piece.transposed { piece.rows } else { CONVERT_PIECE_BYTES / row_bytes };
    let most = most.max(1);
    let part = |start: usize| Piece {
        first: piece.first + start * piece.step,
        rows: most.min(piece.rows - start),
        ..piece.clone()
    };
    (0..piece.rows).step_by(most).map(part).collect()
}

/// Keeps each first one of `step` rows.
fn keep_rows(bytes: &mut Vec<u8>, row_bytes: usize, step: usize) {
    if step == 1 {
        return;
    }
    let rows = bytes.len().div_ceil((row_bytes * step).max(1));
    for row in 0..rows {
        let start = row * step * row_bytes;
        bytes.copy_within(start..start + row_bytes, row * row_bytes);
    }
    bytes.truncate(rows * row_bytes);
}

/// Columns as rows.
fn transposed(bytes: &[u8], columns: usize, width: usize) -> Vec<u8> {
    let rows = bytes.len() / (columns * width).max(1);
    let mut target = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let start = (row * columns + column) * width;
            target.extend_from_slice(&bytes[start..start + width]);
        }
    }
    target
}

/// What is written of the rows `bytes` of `piece`: for each output one part.
fn rewritten(tensor: &TensorPlan, piece: &Piece, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let TensorPlan { draft, cast, format, .. } = tensor;
    let name = match draft.dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::BF16 => "BF16",
        // Packed before: it stays as it is.
        _ => return Ok(vec![bytes]),
    };
    check_finite(&bytes, draft.dtype, *cast)?;
    if draft.term == 0.0 && cast.is_none() && format.is_none() {
        return Ok(vec![bytes]);
    }
    let rows = Rows { dtype: name, columns: piece.row_values(), bytes: &bytes };
    let cast = cast.map(array_type);
    Ok(match rewrite(&rows, &Rewrite { term: draft.term, cast, format: *format })? {
        Rewritten::Dense(bytes) => vec![bytes],
        Rewritten::Packed(parts) => parts.into(),
    })
}

fn array_type(dtype: WeightDtype) -> mlx::Dtype {
    match dtype {
        WeightDtype::F32 => mlx::Dtype::Float32,
        WeightDtype::F16 => mlx::Dtype::Float16,
        WeightDtype::Bf16 => mlx::Dtype::Bfloat16,
    }
}

/// Refuses numbers that are not finite, or would not be in the type that they are cast to.
fn check_finite(bytes: &[u8], dtype: Dtype, cast: Option<WeightDtype>) -> Result<()> {
    let Some(largest) = largest(bytes, dtype) else {
        let message = "it holds values that are no finite numbers (NaN or infinity)";
        return Err(Error::new(Code::BadModel, message)
            .with_hint("the file was damaged or its conversion failed: fetch it again"));
    };
    // Rounding keeps the order, so the largest one tells for all.
    let fits = match cast {
        Some(WeightDtype::F16) => f16::from_f32(largest).is_finite(),
        Some(WeightDtype::Bf16) => bf16::from_f32(largest).is_finite(),
        Some(WeightDtype::F32) | None => true,
    };
    match (fits, cast) {
        (false, Some(dtype)) => {
            let message = format!("a value of {largest:e} does not fit in {dtype}");
            Err(Error::new(Code::BadModel, message).with_hint("convert with --dtype bf16 or f32"))
        }
        _ => Ok(()),
    }
}

/// The largest magnitude; `None` where a value is not finite.
fn largest(bytes: &[u8], dtype: Dtype) -> Option<f32> {
    let largest = match dtype {
        // Magnitudes of floats are ordered as their bits without the sign are.
        Dtype::F32 => {
            let bits = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & 0x7FFF_FFFF;
            f32::from_bits(bytes.as_chunks().0.iter().map(bits).max().unwrap_or(0))
        }
        Dtype::F16 => f16::from_bits(largest_bits(bytes)).to_f32(),
        _ => bf16::from_bits(largest_bits(bytes)).to_f32(),
    };
    largest.is_finite().then_some(largest)
}

fn largest_bits(bytes: &[u8]) -> u16 {
    let bits = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & 0x7FFF;
    bytes.as_chunks().0.iter().map(bits).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(columns: usize, first: usize, step: usize, rows: usize) -> Piece {
        Piece { source: 0, columns, first, step, rows, transposed: false }
    }

    #[test]
    fn a_piece_is_cut_into_parts_that_follow_each_other_and_are_not_too_large() {
        let columns = CONVERT_PIECE_BYTES / 8;
        for step in [1, 2, 3] {
            for rows in [1, 2, 3, 7, 8, 20] {
                let whole = piece(columns, 5, step, rows);
                let parts = cut(&whole, 2);
                let mut next = whole.first;
                for part in &parts {
                    assert_eq!((part.first, part.step, part.columns), (next, step, columns));
                    assert!(part.bytes(Dtype::BF16) * step <= CONVERT_PIECE_BYTES);
                    next += part.rows * step;
                }
                assert_eq!(parts.iter().map(|part| part.rows).sum::<usize>(), rows);
                assert_eq!(parts.len(), rows.div_ceil(4 / step));
            }
        }
        assert_eq!(cut(&piece(4, 0, 1, 0), 2), []);
        let turned = Piece { transposed: true, ..piece(columns, 0, 1, 9) };
        assert_eq!(cut(&turned, 2), [turned]);
    }

    #[test]
    fn one_of_several_rows_is_kept_and_columns_become_rows() {
        let mut bytes: Vec<u8> = (0..14).collect();
        keep_rows(&mut bytes, 2, 3);
        assert_eq!(bytes, [0, 1, 6, 7, 12, 13]);
        keep_rows(&mut bytes, 2, 1);
        assert_eq!(transposed(&bytes, 3, 1), [0, 7, 1, 12, 6, 13]);
        assert_eq!(transposed(&bytes, 3, 2), bytes);
        assert_eq!(transposed(&bytes, 1, 2), bytes);
    }
}
