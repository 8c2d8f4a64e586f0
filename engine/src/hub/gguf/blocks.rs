//! Tensor types: how values are packed in blocks, and their exact values as `f32`.
//!
//! The arithmetic follows ggml's reference dequantization (`ggml-quants.c`) operation by operation,
//! so results are bit-identical to it and to gguf-py; `fixtures/blocks.json` holds gguf-py's answers.

use std::fmt;

use half::{bf16, f16};

use super::bad_import;
use crate::error::Result;

/// A packing that can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the format's own")]
#[allow(non_camel_case_types, reason = "the names are the format's own")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// Values in a block of the K types.
const SUPER_BLOCK: usize = 256;

impl TensorType {
    /// All types that can be imported.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The type with ggml's `code`; an error that names it if it cannot be imported.
    pub fn from_code(code: u32) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code).ok_or_else(|| {
            let known: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
            bad_import(format!("tensor type {} is not supported", foreign_name(code)))
                .with_hint(format!("supported types: {}", known.join(", ")))
        })
    }

    /// ggml's number for the type.
    pub fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::BF16 => 30,
        }
    }

    /// Values per block.
    pub fn block_values(self) -> u64 {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => SUPER_BLOCK as u64,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 4 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 4 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q4_K => 4 + 12 + 128,
            Self::Q5_K => 4 + 12 + 32 + 128,
            Self::Q6_K => 128 + 64 + 16 + 2,
        }
    }

    /// Appends the values of whole blocks to `values`. A rest shorter than a block is ignored; the
    /// reader has made sure that there is none.
    pub fn dequantize(self, packed: &[u8], values: &mut Vec<f32>) {
        let unpack = match self {
            Self::F32 => unpack_f32,
            Self::F16 => unpack_f16,
            Self::BF16 => unpack_bf16,
            Self::Q4_0 => unpack_q4_0,
            Self::Q4_1 => unpack_q4_1,
            Self::Q5_0 => unpack_q5_0,
            Self::Q5_1 => unpack_q5_1,
            Self::Q8_0 => unpack_q8_0,
            Self::Q4_K => unpack_q4_k,
            Self::Q5_K => unpack_q5_k,
            Self::Q6_K => unpack_q6_k,
        };
        let block_bytes =
            usize::try_from(self.block_bytes()).expect("a block is a few hundred bytes");
        for block in packed.chunks_exact(block_bytes) {
            unpack(block, values);
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// ggml's name for a type that we do not read.
fn foreign_name(code: u32) -> String {
    let name = match code {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("number {code}"),
    };
    name.to_owned()
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn unpack_f32(block: &[u8], values: &mut Vec<f32>) {
    values.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]]));
}

fn unpack_f16(block: &[u8], values: &mut Vec<f32>) {
    values.push(half_at(block, 0));
}

fn unpack_bf16(block: &[u8], values: &mut Vec<f32>) {
    values.push(bf16::from_le_bytes([block[0], block[1]]).to_f32());
}

/// The 32 nibbles of 16 bytes: all low halves first, then all high halves.
fn nibbles(packed: &[u8]) -> impl Iterator<Item = u8> {
    packed.iter().map(|byte| byte & 0x0f).chain(packed.iter().map(|byte| byte >> 4))
}

/// 32 five-bit numbers: a nibble each in `low`, the fifth bits in the 4 bytes of `high`.
fn five_bits(high: &[u8], low: &[u8]) -> impl Iterator<Item = u8> {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    nibbles(low).enumerate().map(move |(index, nibble)| {
        let fifth = if high >> index & 1 == 1 { 16 } else { 0 };
        nibble | fifth
    })
}

fn unpack_q4_0(block: &[u8], values: &mut Vec<f32>) {
    let scale = half_at(block, 0);
    values.extend(nibbles(&block[2..]).map(|quant| scale * (f32::from(quant) - 8.0)));
}

fn unpack_q4_1(block: &[u8], values: &mut Vec<f32>) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    values.extend(nibbles(&block[4..]).map(|quant| scale * f32::from(quant) + minimum));
}

fn unpack_q5_0(block: &[u8], values: &mut Vec<f32>) {
    let scale = half_at(block, 0);
    let quants = five_bits(&block[2..6], &block[6..]);
    values.extend(quants.map(|quant| scale * (f32::from(quant) - 16.0)));
}

fn unpack_q5_1(block: &[u8], values: &mut Vec<f32>) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let quants = five_bits(&block[4..8], &block[8..]);
    values.extend(quants.map(|quant| scale * f32::from(quant) + minimum));
}

fn unpack_q8_0(block: &[u8], values: &mut Vec<f32>) {
    let scale = half_at(block, 0);
    values.extend(block[2..].iter().map(|byte| f32::from(byte.cast_signed()) * scale));
}

/// The six-bit scale and minimum of group `group` (0 to 7) from the 12 bytes that hold all of them.
fn scale_and_minimum(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (packed[group] & 0x3f, packed[group + 4] & 0x3f)
    } else {
        let low = packed[group + 4];
        ((low & 0x0f) | (packed[group - 4] >> 2 & 0x30), (low >> 4) | (packed[group] >> 2 & 0x30))
    };
    (f32::from(scale), f32::from(minimum))
}

fn unpack_q4_k(block: &[u8], values: &mut Vec<f32>) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let (scales, quants) = block[4..].split_at(12);
    for group in 0..SUPER_BLOCK / 32 {
        let (group_scale, group_minimum) = scale_and_minimum(scales, group);
        let (step, shift) = (scale * group_scale, minimum * group_minimum);
        let packed = &quants[group / 2 * 32..][..32];
        let nibble = group % 2 * 4;
        values.extend(packed.iter().map(|byte| step * f32::from(byte >> nibble & 0x0f) - shift));
    }
}

fn unpack_q5_k(block: &[u8], values: &mut Vec<f32>) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let (scales, rest) = block[4..].split_at(12);
    let (high, low) = rest.split_at(32);
    for group in 0..SUPER_BLOCK / 32 {
        let (group_scale, group_minimum) = scale_and_minimum(scales, group);
        let (step, shift) = (scale * group_scale, minimum * group_minimum);
        let packed = &low[group / 2 * 32..][..32];
        let nibble = group % 2 * 4;
        values.extend(packed.iter().zip(high).map(|(low, high)| {
            let quant = (low >> nibble & 0x0f) | (high >> group & 1) << 4;
            step * f32::from(quant) - shift
        }));
    }
}

fn unpack_q6_k(block: &[u8], values: &mut Vec<f32>) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let scale = half_at(rest, 16);
    for quarter in 0..8 {
        // Each half of the block has 64 low bytes and 32 high bytes for its four quarters of 32.
        let (part, position) = (quarter / 4, quarter % 4);
        let low = &low[part * 64 + position % 2 * 32..][..32];
        let high = &high[part * 32..][..32];
        for index in 0..32 {
            let nibble = low[index] >> (position / 2 * 4) & 0x0f;
            let top = high[index] >> (position * 2) & 3;
            let group_scale = f32::from(rest[quarter * 2 + index / 16].cast_signed());
            values.push(scale * group_scale * (f32::from(nibble | top << 4) - 32.0));
        }
    }
}
