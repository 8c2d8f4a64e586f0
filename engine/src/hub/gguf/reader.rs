//! The header reader: version, metadata and tensor infos, all checked against the file's length.

use std::collections::HashSet;
use std::fmt::Arguments;
use std::io::Read;

use super::cursor::Cursor;
use super::metadata::{Array, Metadata, Value};
use super::{TensorType, bad_import};
use crate::error::Result;

/// Bytes that a header may take; the largest vocabularies need about a tenth.
pub const HEADER_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Dimensions of a tensor.
pub const DIMENSIONS_MAX: u32 = 4;
/// The largest `general.alignment`, in bytes.
pub const ALIGNMENT_BYTES_MAX: u64 = 1024 * 1024;

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT_BYTES_DEFAULT: u64 = 32;
const ARRAY_DEPTH_MAX: u32 = 4;
/// Key length, value type and a one-byte value.
const PAIR_BYTES_MIN: u64 = 8 + 4 + 1;
/// Name length, dimension count, one dimension, type and offset.
const TENSOR_INFO_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// Everything that comes before the tensor data.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The key-value pairs.
    pub metadata: Metadata,
    /// The tensors in the file's order; names are unique, ranges lie in the file and never overlap.
    pub tensors: Vec<TensorInfo>,
}

/// Where one tensor lies and how it is packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// llama.cpp's name, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// Dimensions, outermost first (the reverse of the file's order); all at least 1.
    pub shape: Vec<u64>,
    /// How its values are packed.
    pub kind: TensorType,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

impl TensorInfo {
    /// Values of one innermost row; a multiple of the type's block.
    pub fn row_values(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Innermost rows.
    pub fn rows(&self) -> u64 {
        self.shape.iter().rev().skip(1).product()
    }
}

/// Reads and checks the header of a GGUF file of `file_bytes` bytes.
pub fn read_header(reader: impl Read, file_bytes: u64) -> Result<Header> {
    let mut cursor = Cursor::new(reader, file_bytes.min(HEADER_BYTES_MAX));
    read_version(&mut cursor)?;
    let tensor_count = cursor.count(TENSOR_INFO_BYTES_MIN, format_args!("the tensor count"))?;
    let pair_count = cursor.count(PAIR_BYTES_MIN, format_args!("the metadata count"))?;
    let metadata = read_metadata(&mut cursor, pair_count)?;
    let mut tensors = Vec::with_capacity(tensor_count);
    for index in 0..tensor_count {
        tensors.push(read_tensor_info(&mut cursor, index)?);
    }
    let data_start = align(cursor.position(), alignment(&metadata)?)
        .ok_or_else(|| bad_import("the header is too long"))?;
    place_tensors(&mut tensors, data_start, file_bytes, alignment(&metadata)?)?;
    Ok(Header { metadata, tensors })
}

fn read_version(cursor: &mut Cursor<impl Read>) -> Result<()> {
    let magic: [u8; 4] = cursor.bytes(format_args!("the magic number"))?;
    if magic != MAGIC {
        return Err(bad_import(format!("not a GGUF file: it starts with {magic:02x?}")));
    }
    match cursor.u32(format_args!("the version"))? {
        2 | 3 => Ok(()),
        swapped @ (0x0200_0000 | 0x0300_0000) => Err(bad_import(format!(
            "the file is big-endian (version reads as {swapped:#010x}); only little-endian files are supported"
        ))),
        other => Err(bad_import(format!("GGUF version {other} is not supported (2 and 3 are)"))),
    }
}

fn read_metadata(cursor: &mut Cursor<impl Read>, count: usize) -> Result<Metadata> {
    let mut metadata = Metadata::default();
    for index in 0..count {
        let key = cursor.string(format_args!("metadata key {index}"))?;
        let kind = cursor.u32(format_args!("the type of metadata `{key}`"))?;
        let value = read_value(cursor, kind, format_args!("metadata `{key}`"))?;
        metadata.insert(key, value)?;
    }
    Ok(metadata)
}

/// The format's value types, by code.
mod kind {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}

fn read_value(cursor: &mut Cursor<impl Read>, code: u32, what: Arguments<'_>) -> Result<Value> {
    Ok(match code {
        kind::U8 => Value::Integer(u8::from_le_bytes(cursor.bytes(what)?).into()),
        kind::I8 => Value::Integer(i8::from_le_bytes(cursor.bytes(what)?).into()),
        kind::U16 => Value::Integer(u16::from_le_bytes(cursor.bytes(what)?).into()),
        kind::I16 => Value::Integer(i16::from_le_bytes(cursor.bytes(what)?).into()),
        kind::U32 => Value::Integer(cursor.u32(what)?.into()),
        kind::I32 => Value::Integer(i32::from_le_bytes(cursor.bytes(what)?).into()),
        kind::U64 => Value::Integer(cursor.u64(what)?.into()),
        kind::I64 => Value::Integer(i64::from_le_bytes(cursor.bytes(what)?).into()),
        kind::F32 => Value::Float(shortest_decimal(f32::from_le_bytes(cursor.bytes(what)?))),
        kind::F64 => Value::Float(f64::from_le_bytes(cursor.bytes(what)?)),
        kind::BOOL => Value::Boolean(read_boolean(cursor, what)?),
        kind::STRING => Value::String(cursor.string(what)?),
        kind::ARRAY => Value::Array(read_array(cursor, what, ARRAY_DEPTH_MAX)?),
        other => return Err(bad_import(format!("{what} has unknown value type {other}"))),
    })
}

fn read_boolean(cursor: &mut Cursor<impl Read>, what: Arguments<'_>) -> Result<bool> {
    match cursor.bytes(what)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(bad_import(format!("{what} must be a boolean, found byte {other}"))),
    }
}

fn read_array(cursor: &mut Cursor<impl Read>, what: Arguments<'_>, depth: u32) -> Result<Array> {
    let code = cursor.u32(what)?;
    let item_bytes_min = match code {
        kind::U8 | kind::I8 | kind::BOOL => 1,
        kind::U16 | kind::I16 => 2,
        kind::U32 | kind::I32 | kind::F32 => 4,
        kind::U64 | kind::I64 | kind::F64 | kind::STRING => 8,
        kind::ARRAY => 12,
        other => {
            return Err(bad_import(format!("{what} has items of unknown type {other}")));
        }
    };
    let count = cursor.count(item_bytes_min, what)?;
    match code {
        kind::STRING => items(count, || cursor.string(what)).map(Array::Strings),
        kind::F32 => items(count, || cursor.bytes(what).map(f32::from_le_bytes)).map(Array::Floats),
        kind::U8 | kind::I8 | kind::U16 | kind::I16 | kind::U32 | kind::I32 => {
            items(count, || read_small_integer(cursor, code, what)).map(Array::Integers)
        }
        kind::ARRAY if depth == 0 => Err(bad_import(format!("{what} nests arrays too deeply"))),
        kind::ARRAY => {
            for _ in 0..count {
                read_array(cursor, what, depth - 1)?;
            }
            Ok(Array::Other(count))
        }
        _ => {
            for _ in 0..count {
                read_value(cursor, code, what)?;
            }
            Ok(Array::Other(count))
        }
    }
}

fn items<T>(count: usize, mut read: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    (0..count).map(|_| read()).collect()
}

fn read_small_integer(
    cursor: &mut Cursor<impl Read>,
    code: u32,
    what: Arguments<'_>,
) -> Result<i64> {
    Ok(match code {
        kind::U8 => u8::from_le_bytes(cursor.bytes(what)?).into(),
        kind::I8 => i8::from_le_bytes(cursor.bytes(what)?).into(),
        kind::U16 => u16::from_le_bytes(cursor.bytes(what)?).into(),
        kind::I16 => i16::from_le_bytes(cursor.bytes(what)?).into(),
        kind::U32 => cursor.u32(what)?.into(),
        _ => i32::from_le_bytes(cursor.bytes(what)?).into(),
    })
}

/// `1e-5` for the `f32` that a writer made of `1e-5`, instead of `9.999999747378752e-6`.
fn shortest_decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// Reads one info; `offset` is still relative to the tensor data.
fn read_tensor_info(cursor: &mut Cursor<impl Read>, index: usize) -> Result<TensorInfo> {
    let name = cursor.string(format_args!("the name of tensor {index}"))?;
    let dimensions = cursor.u32(format_args!("the dimension count of tensor `{name}`"))?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        return Err(bad_import(format!(
            "tensor `{name}` has {dimensions} dimensions; 1 to {DIMENSIONS_MAX} are allowed"
        )));
    }
    let mut shape = (0..dimensions)
        .map(|axis| cursor.u64(format_args!("dimension {axis} of tensor `{name}`")))
        .collect::<Result<Vec<_>>>()?;
    shape.reverse();
    let code = cursor.u32(format_args!("the type of tensor `{name}`"))?;
    let kind = TensorType::from_code(code)
        .map_err(|error| error.while_doing(format_args!("tensor `{name}` cannot be read")))?;
    let offset = cursor.u64(format_args!("the offset of tensor `{name}`"))?;
    let bytes = packed_bytes(&name, &shape, kind)?;
    Ok(TensorInfo { name, shape, kind, offset, bytes })
}

fn packed_bytes(name: &str, shape: &[u64], kind: TensorType) -> Result<u64> {
    let row_values = shape.last().copied().unwrap_or(0);
    if shape.contains(&0) {
        return Err(bad_import(format!("tensor `{name}` has an empty dimension: {shape:?}")));
    }
    if !row_values.is_multiple_of(kind.block_values()) {
        return Err(bad_import(format!(
            "tensor `{name}` has rows of {row_values} values, which is not a multiple of the {} \
             that a block of {kind} holds",
            kind.block_values()
        )));
    }
    shape
        .iter()
        .try_fold(1u64, |product, dimension| product.checked_mul(*dimension))
        .and_then(|values| (values / kind.block_values()).checked_mul(kind.block_bytes()))
        .ok_or_else(|| bad_import(format!("tensor `{name}` is too large: {shape:?}")))
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    let bytes = metadata.count("general.alignment")?.unwrap_or(ALIGNMENT_BYTES_DEFAULT);
    if bytes.is_power_of_two() && bytes <= ALIGNMENT_BYTES_MAX {
        return Ok(bytes);
    }
    Err(bad_import(format!(
        "`general.alignment` must be a power of two up to {ALIGNMENT_BYTES_MAX}, found {bytes}"
    )))
}

fn align(position: u64, alignment: u64) -> Option<u64> {
    position.checked_next_multiple_of(alignment)
}

/// Makes offsets absolute and checks that ranges are aligned, inside the file and disjoint.
fn place_tensors(
    tensors: &mut [TensorInfo],
    data_start: u64,
    file_bytes: u64,
    alignment: u64,
) -> Result<()> {
    let mut names = HashSet::with_capacity(tensors.len());
    for tensor in tensors.iter_mut() {
        let TensorInfo { name, offset, bytes, .. } = tensor;
        if !offset.is_multiple_of(alignment) {
            return Err(bad_import(format!(
                "tensor `{name}` starts at offset {offset}, which is not a multiple of {alignment}"
            )));
        }
        let start = data_start.checked_add(*offset);
        let end = start.and_then(|start| start.checked_add(*bytes));
        let (Some(start), Some(_)) = (start, end.filter(|end| *end <= file_bytes)) else {
            return Err(bad_import(format!(
                "tensor `{name}` needs {bytes} bytes at offset {offset} of the data, past the end of \
                 the file ({file_bytes} bytes, data from byte {data_start})"
            ))
            .with_hint("the file may be truncated; fetch it again"));
        };
        *offset = start;
        if !names.insert(name.as_str()) {
            return Err(bad_import(format!("tensor `{name}` occurs twice")));
        }
    }
    refuse_overlaps(tensors)
}

fn refuse_overlaps(tensors: &[TensorInfo]) -> Result<()> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(bad_import(format!(
                "tensors `{}` and `{}` overlap at byte {}",
                pair[0].name, pair[1].name, pair[1].offset
            )));
        }
    }
    Ok(())
}
