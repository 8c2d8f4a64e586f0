//! Writing `model.safetensors`, one tensor at a time.
//!
//! The safetensors crate asks each view for its bytes when it is that view's turn, so a view here
//! is a promise: it reads, unpacks and reorders its tensor only then. A view cannot fail, so the
//! first failure is kept aside, later views give nothing, and the file is thrown away.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, View, serialize_to_file};

use super::{ImportProgress, WeightDtype};
use crate::error::{Code, Error, Result};
use crate::hub::gguf::{TensorInfo, TensorPlan, bad_import};
use crate::hub::staging::Staging;

/// Packed bytes that are unpacked at a time.
const CHUNK_BYTES: u64 = 1024 * 1024;
const FILE_NAME: &str = "model.safetensors";

/// Writes all `plans`; gives the bytes of weights written.
pub(super) fn write(
    staging: &Staging,
    file: &mut File,
    plans: &[TensorPlan],
    dtype: WeightDtype,
    progress: &mut dyn FnMut(ImportProgress),
) -> Result<u64> {
    let sizes = plans.iter().map(|plan| target_bytes(plan, dtype)).collect::<Result<Vec<_>>>()?;
    let total_bytes = sizes
        .iter()
        .try_fold(0u64, |total, size| total.checked_add(*size as u64))
        .ok_or_else(|| bad_import("the weights are too large"))?;
    let conversion = RefCell::new(Conversion {
        file,
        dtype,
        progress,
        done_bytes: 0,
        total_bytes,
        failure: None,
    });
    let views = plans.iter().zip(sizes).map(|(plan, bytes)| {
        let view = PlannedView { plan, shape: shape(plan), dtype, bytes, conversion: &conversion };
        (plan.name.as_str(), view)
    });
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let path = staging.path(FILE_NAME);
    let written = serialize_to_file(views, Some(metadata), &path);
    if let Some(failure) = conversion.into_inner().failure {
        return Err(failure);
    }
    written.map_err(|error| {
        Error::new(Code::Io, format!("failed to write `{}`: {error}", path.display()))
    })?;
    share_permissions(staging)?;
    Ok(total_bytes)
}

/// The crate writes through a private temporary file; gives the result the permissions of its
/// neighbours.
fn share_permissions(staging: &Staging) -> Result<()> {
    let permissions = fs::metadata(staging.path("config.json"))?.permissions();
    Ok(fs::set_permissions(staging.path(FILE_NAME), permissions)?)
}

/// All values of a small tensor.
pub(super) fn read_values(file: &mut File, tensor: &TensorInfo) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    let mut packed = Vec::new();
    read_packed(file, tensor.offset, tensor.bytes, &mut packed)?;
    tensor.kind.dequantize(&packed, &mut values);
    Ok(values)
}

fn read_packed(file: &mut File, offset: u64, bytes: u64, packed: &mut Vec<u8>) -> Result<()> {
    packed.clear();
    file.seek(SeekFrom::Start(offset))?;
    let read = file.by_ref().take(bytes).read_to_end(packed)?;
    if read as u64 == bytes {
        return Ok(());
    }
    Err(bad_import(format!(
        "the file ended at byte {}, while it was being read",
        offset + read as u64
    )))
}

fn shape(plan: &TensorPlan) -> Vec<usize> {
    // A dimension that does not fit has already failed in `target_bytes`.
    plan.source.shape.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)).collect()
}

fn target_bytes(plan: &TensorPlan, dtype: WeightDtype) -> Result<usize> {
    plan.source
        .shape
        .iter()
        .try_fold(dtype.bytes(), |product, size| product.checked_mul(*size))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| bad_import(format!("tensor `{}` is too large", plan.source.name)))
}

struct PlannedView<'a, 'b> {
    plan: &'a TensorPlan,
    shape: Vec<usize>,
    dtype: WeightDtype,
    bytes: usize,
    conversion: &'a RefCell<Conversion<'b>>,
}

impl View for PlannedView<'_, '_> {
    fn dtype(&self) -> Dtype {
        self.dtype.stored()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.conversion.borrow_mut().convert(self.plan, self.bytes))
    }

    fn data_len(&self) -> usize {
        self.bytes
    }
}

/// The state that all views share.
struct Conversion<'a> {
    file: &'a mut File,
    dtype: WeightDtype,
    progress: &'a mut dyn FnMut(ImportProgress),
    done_bytes: u64,
    total_bytes: u64,
    failure: Option<Error>,
}

impl Conversion<'_> {
    /// The `bytes` bytes of one weight, or none after a failure.
    fn convert(&mut self, plan: &TensorPlan, bytes: usize) -> Vec<u8> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let converted = self.try_convert(plan, bytes).unwrap_or_else(|error| {
            let attempt = format!("converting tensor `{}`", plan.source.name);
            self.failure = Some(error.while_doing(attempt));
            Vec::new()
        });
        self.done_bytes += converted.len() as u64;
        (self.progress)(ImportProgress::Weights {
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
        });
        converted
    }

    fn try_convert(&mut self, plan: &TensorPlan, bytes: usize) -> Result<Vec<u8>> {
        let slices = plan.source.shape[0];
        let slice_bytes =
            bytes / usize::try_from(slices).expect("each slice has bytes, and all fit");
        let mut target = vec![0; bytes];
        let (mut packed, mut values) = (Vec::new(), Vec::new());
        for chunk in chunks(&plan.source) {
            read_packed(self.file, chunk.offset, chunk.bytes, &mut packed)?;
            values.clear();
            plan.source.kind.dequantize(&packed, &mut values);
            for (slice, values) in
                (chunk.first..).zip(values.chunks_exact(slice_bytes / self.value_bytes()))
            {
                let row = plan.row_order.target(slice, slices);
                let start = usize::try_from(row).expect("a slice of the tensor") * slice_bytes;
                encode(values, plan.shift, self.dtype, &mut target[start..start + slice_bytes])?;
            }
        }
        Ok(target)
    }

    fn value_bytes(&self) -> usize {
        match self.dtype {
            WeightDtype::F32 => 4,
            WeightDtype::Bf16 | WeightDtype::F16 => 2,
        }
    }
}

/// Some consecutive outermost slices of a tensor in the file.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    first: u64,
    offset: u64,
    bytes: u64,
}

/// Cuts a tensor into chunks of about [`CHUNK_BYTES`]. A vector, whose slices are single values and
/// may share a block, is one chunk.
fn chunks(tensor: &TensorInfo) -> impl Iterator<Item = Chunk> {
    let TensorInfo { offset, bytes, .. } = *tensor;
    let slices = tensor.shape[0];
    let per_chunk = match tensor.shape.len() {
        1 => slices,
        _ => (CHUNK_BYTES / (bytes / slices)).clamp(1, slices),
    };
    (0..slices.div_ceil(per_chunk)).map(move |index| {
        let first = index * per_chunk;
        let start = bytes / slices * first;
        let end =
            if per_chunk >= slices - first { bytes } else { bytes / slices * (first + per_chunk) };
        Chunk { first, offset: offset + start, bytes: end - start }
    })
}

/// Writes shifted `values` in `dtype`; values that are not finite, before or after, are an error.
fn encode(values: &[f32], shift: f32, dtype: WeightDtype, target: &mut [u8]) -> Result<()> {
    let finite = match dtype {
        WeightDtype::F32 => {
            store(values, shift, target, |value| (value.to_le_bytes(), value.is_finite()))
        }
        WeightDtype::Bf16 => store(values, shift, target, |value| {
            let rounded = bf16::from_f32(value);
            (rounded.to_le_bytes(), rounded.is_finite())
        }),
        WeightDtype::F16 => store(values, shift, target, |value| {
            let rounded = f16::from_f32(value);
            (rounded.to_le_bytes(), rounded.is_finite())
        }),
    };
    if finite { Ok(()) } else { Err(not_finite(values, dtype)) }
}

/// Stores each value's bytes; says whether all were finite.
fn store<const N: usize>(
    values: &[f32],
    shift: f32,
    target: &mut [u8],
    encode: impl Fn(f32) -> ([u8; N], bool),
) -> bool {
    let mut all_finite = true;
    for (value, bytes) in values.iter().zip(target.chunks_exact_mut(N)) {
        // Adding a zero would lose the sign of another.
        let value = if shift == 0.0 { *value } else { value + shift };
        let (encoded, finite) = encode(value);
        bytes.copy_from_slice(&encoded);
        all_finite &= finite;
    }
    all_finite
}

fn not_finite(values: &[f32], dtype: WeightDtype) -> Error {
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    if values.iter().all(|value| value.is_finite()) {
        return bad_import(format!("a value of {largest:e} does not fit in {dtype}"))
            .with_hint("import with --dtype bf16 or f32");
    }
    bad_import("it holds a value that is not a finite number").with_hint("the file may be damaged")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::hub::gguf::{RowOrder, TensorType};

    #[test]
    fn rows_find_their_place_across_chunks() {
        let (rows, columns) = (16u64, 64 * 1024u64);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 32]).unwrap();
        for row in 0..rows {
            file.write_all(&(row as f32).to_le_bytes().repeat(columns as usize)).unwrap();
        }
        let source = TensorInfo {
            name: "blk.0.attn_q.weight".to_owned(),
            shape: vec![rows, columns],
            kind: TensorType::F32,
            offset: 32,
            bytes: rows * columns * 4,
        };
        assert_eq!(chunks(&source).count(), 4);
        let row_order = RowOrder::HalfSplit { heads: 2 };
        let plan = TensorPlan { name: "q".to_owned(), source, row_order, shift: 0.0 };
        let mut conversion = Conversion {
            file: &mut file,
            dtype: WeightDtype::F32,
            progress: &mut |_| (),
            done_bytes: 0,
            total_bytes: 0,
            failure: None,
        };
        let converted = conversion.try_convert(&plan, (rows * columns * 4) as usize).unwrap();
        let stored_rows: Vec<f32> = converted
            .chunks_exact(columns as usize * 4)
            .map(|row| {
                let value = &row[..4];
                assert!(row.chunks_exact(4).all(|other| other == value));
                f32::from_le_bytes(value.try_into().unwrap())
            })
            .collect();
        let first_head = [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0];
        let second_head = first_head.map(|row| row + 8.0);
        assert_eq!(stored_rows, [first_head, second_head].concat());
    }
}
