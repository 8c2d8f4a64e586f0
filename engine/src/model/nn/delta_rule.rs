//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024): a memory that maps keys to values, fades,
//! and is corrected by what it got wrong.
//!
//! Words: per value head the **memory** is a matrix `S` `[Dv, Dk]`. A token first lets it fade,
//! `S = decay S`; then **writes**, with strength beta, what the memory lacks of the value under the
//! token's key, `S = S + beta (v - S k) k^T`; then **reads** `S q`. Op for op as mlx-lm 0.32.2's
//! `gated_delta_ops`, memory and sums in f32.
//!
//! Tokens follow each other, so a prompt is a long chain of operations. It is handed to the device piece
//! by piece, which changes no number and keeps what the host builds, and what the device keeps for it,
//! small.

use crate::error::Result;
use crate::limits::RECURRENCE_PIECE_TOKENS;
use crate::mlx::{Array, Dtype, ops, recurrence};

/// What tokens bring. Each key head serves `Hv / Hk` value heads in a row.
#[derive(Debug)]
pub(super) struct Tokens {
    /// `[B, L, Hk, Dk]`.
    pub(super) queries: Array,
    /// `[B, L, Hk, Dk]`.
    pub(super) keys: Array,
    /// `[B, L, Hv, Dv]`.
    pub(super) values: Array,
    /// What is left of the memory after each token, `[B, L, Hv]` in f32.
    pub(super) decays: Array,
    /// How much of the lack is written, `[B, L, Hv]`.
    pub(super) strengths: Array,
}

/// Runs `tokens` over `memory` `[B, Hv, Dv, Dk]`, which is empty at first; returns what they read
/// `[B, L, Hv, Dv]`, in the queries' type, and the memory after the last of them.
///
/// # Errors
/// `EngineFailed` with MLX's text.
pub(super) fn run(tokens: &Tokens, memory: Option<&Array>) -> Result<(Array, Array)> {
    run_in_pieces(tokens, memory, ops::axis_index(RECURRENCE_PIECE_TOKENS))
}

fn run_in_pieces(
    tokens: &Tokens,
    memory: Option<&Array>,
    piece_tokens: i32,
) -> Result<(Array, Array)> {
    let (shape, dtype) = (Shape::of(tokens), tokens.queries.dtype());
    let mut memory = shape.spread_memory(memory)?;
    let tokens = shape.spread(tokens)?;
    let mut read = Vec::new();
    for start in (0..shape.tokens).step_by(piece_tokens.unsigned_abs() as usize) {
        let stop = shape.tokens.min(start + piece_tokens);
        let piece = run_piece(&tokens, start..stop, &mut memory)?.as_dtype(dtype)?;
        if stop < shape.tokens {
            ops::start_evaluation([&piece, &memory])?;
        }
        read.push(piece);
    }
    let read = ops::concatenate_axis(&read, TOKEN_AXIS)?;
    let Shape { rows, tokens, key_heads, sharing, key_width, value_width } = shape;
    let heads = key_heads * sharing;
    let read = read.reshape(&[rows, tokens, heads, value_width])?;
    Ok((read, memory.reshape(&[rows, heads, value_width, key_width])?))
}

const TOKEN_AXIS: usize = 1;

/// Sizes, with value heads counted under the key head that they share.
#[derive(Debug, Clone, Copy)]
struct Shape {
    rows: i32,
    tokens: i32,
    key_heads: i32,
    /// Value heads per key head.
    sharing: i32,
    key_width: i32,
    value_width: i32,
}

impl Shape {
    fn of(tokens: &Tokens) -> Self {
        let (keys, values) = (&tokens.keys, &tokens.values);
        Self {
            rows: keys.dim(0),
            tokens: keys.dim(1),
            key_heads: keys.dim(2),
            sharing: values.dim(2) / keys.dim(2),
            key_width: keys.dim(3),
            value_width: values.dim(3),
        }
    }

    /// The memory as `[B, 1, Hk, Hv / Hk, Dv, Dk]`: one token's, so that it meets a token's slice.
    fn spread_memory(self, memory: Option<&Array>) -> Result<Array> {
        let Self { rows, key_heads, sharing, key_width, value_width, .. } = self;
        let shape = [rows, 1, key_heads, sharing, value_width, key_width];
        match memory {
            Some(memory) => Ok(memory.reshape(&shape)?),
            None => ops::zeros(&shape, Dtype::Float32),
        }
    }

    /// The tokens, each part with axes for heads and memory: what a slice of it broadcasts over.
    fn spread(self, tokens: &Tokens) -> Result<Tokens> {
        let Self { rows, tokens: count, key_heads, sharing, key_width, value_width } = self;
        let keys = [rows, count, key_heads, 1, 1, key_width];
        let head = [rows, count, key_heads, sharing, 1];
        Ok(Tokens {
            queries: tokens.queries.reshape(&keys)?,
            keys: tokens.keys.reshape(&keys)?,
            values: tokens.values.reshape(&[rows, count, key_heads, sharing, value_width])?,
            decays: tokens.decays.reshape(&[rows, count, key_heads, sharing, 1, 1])?,
            strengths: tokens.strengths.reshape(&head)?,
        })
    }
}

/// What the tokens of `piece` read, `[B, L, Hk, Hv / Hk, Dv]` in f32.
fn run_piece(tokens: &Tokens, piece: std::ops::Range<i32>, memory: &mut Array) -> Result<Array> {
    let read = piece.map(|token| step(&tokens.at(token)?, memory)).collect::<Result<Vec<_>>>()?;
    ops::concatenate_axis(&read, TOKEN_AXIS)
}

/// One token: what it reads, `[B, 1, Hk, Hv / Hk, Dv]`.
fn step(token: &Tokens, memory: &mut Array) -> Result<Array> {
    let faded = memory.multiply(&token.decays)?;
    let held = recurrence::sum_last(&faded.multiply(&token.keys)?)?;
    let written = token.values.subtract(held)?.multiply(&token.strengths)?;
    *memory = faded.add(token.keys.multiply(written.expand_dims(-1)?)?)?;
    recurrence::sum_last(&memory.multiply(&token.queries)?)
}

impl Tokens {
    /// Token `index` alone, as views.
    fn at(&self, index: i32) -> Result<Self> {
        let part = |part: &Array| match part.dim(1) {
            1 => Ok(ops::share(part)),
            _ => ops::slice_axis(part, TOKEN_AXIS, index, index + 1),
        };
        Ok(Self {
            queries: part(&self.queries)?,
            keys: part(&self.keys)?,
            values: part(&self.values)?,
            decays: part(&self.decays)?,
            strengths: part(&self.strengths)?,
        })
    }
}
