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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx::Device;

    const KEY_HEADS: i32 = 2;
    const VALUE_HEADS: i32 = 6;
    const KEY_WIDTH: i32 = 5;
    const VALUE_WIDTH: i32 = 4;

    /// Smooth numbers between -1 and 1.
    fn numbers(shape: &[i32], seed: f32) -> Array {
        let count: i32 = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|i| (seed + i as f32 * 0.37).sin()).collect();
        Array::from_slice(&data, shape)
    }

    fn tokens(rows: i32, count: i32) -> Tokens {
        Device::cpu();
        let keys = [rows, count, KEY_HEADS, KEY_WIDTH];
        let heads = [rows, count, VALUE_HEADS];
        Tokens {
            queries: numbers(&keys, 0.1),
            keys: ops::scale(&numbers(&keys, 2.3), 0.5).unwrap(),
            values: numbers(&[rows, count, VALUE_HEADS, VALUE_WIDTH], 5.9),
            decays: ops::sigmoid(ops::scale(&numbers(&heads, 7.7), 3.0).unwrap()).unwrap(),
            strengths: ops::sigmoid(numbers(&heads, 9.1)).unwrap(),
        }
    }

    fn memory(rows: i32) -> Array {
        numbers(&[rows, VALUE_HEADS, VALUE_WIDTH, KEY_WIDTH], 4.4)
    }

    fn part(tokens: &Tokens, axis: usize, range: std::ops::Range<i32>) -> Tokens {
        let part = |array: &Array| ops::slice_axis(array, axis, range.start, range.end).unwrap();
        Tokens {
            queries: part(&tokens.queries),
            keys: part(&tokens.keys),
            values: part(&tokens.values),
            decays: part(&tokens.decays),
            strengths: part(&tokens.strengths),
        }
    }

    fn bits(arrays: &(Array, Array)) -> (Vec<u32>, Vec<u32>) {
        let bits = |array| ops::read_f32(array).unwrap().into_iter().map(f32::to_bits).collect();
        (bits(&arrays.0), bits(&arrays.1))
    }

    /// One head of one row by the paper's formula, in f64: what each token reads, and the memory.
    fn by_the_formula(
        tokens: &Tokens,
        memory: &Array,
        (row, head): (usize, usize),
    ) -> (Vec<f64>, Vec<f64>) {
        let (kw, vw, vh) = (KEY_WIDTH as usize, VALUE_WIDTH as usize, VALUE_HEADS as usize);
        let (count, kh) = (tokens.keys.dim(1) as usize, KEY_HEADS as usize);
        let read = |array: &Array, at: usize, width: usize| -> Vec<f64> {
            let values = ops::read_f32(array).unwrap();
            values[at * width..(at + 1) * width].iter().map(|value| f64::from(*value)).collect()
        };
        let mut memory = read(memory, row * vh + head, vw * kw);
        let mut answers = Vec::new();
        for token in 0..count {
            let (at, key_at) = (row * count + token, head / (vh / kh));
            let query = read(&tokens.queries, at * kh + key_at, kw);
            let key = read(&tokens.keys, at * kh + key_at, kw);
            let value = read(&tokens.values, at * vh + head, vw);
            let decay = read(&tokens.decays, at * vh + head, 1)[0];
            let strength = read(&tokens.strengths, at * vh + head, 1)[0];
            let dot = |line: &[f64], with: &[f64]| -> f64 {
                line.iter().zip(with).map(|(left, right)| left * right).sum()
            };
            for (line, value) in memory.chunks_mut(kw).zip(value) {
                line.iter_mut().for_each(|number| *number *= decay);
                let lack = strength * (value - dot(line, &key));
                line.iter_mut().zip(&key).for_each(|(number, key)| *number += lack * key);
                answers.push(dot(line, &query));
            }
        }
        (answers, memory)
    }

    #[test]
    fn a_memory_fades_is_corrected_and_read_as_the_paper_says() {
        let (rows, count) = (2, 7);
        let (tokens, memory) = (tokens(rows, count), memory(rows));
        let (read, after) = run(&tokens, Some(&memory)).unwrap();
        assert_eq!(read.shape(), [rows, count, VALUE_HEADS, VALUE_WIDTH]);
        assert_eq!(after.shape(), memory.shape());
        let (read, after) = (ops::read_f32(&read).unwrap(), ops::read_f32(&after).unwrap());
        let (heads, width) = (VALUE_HEADS as usize, VALUE_WIDTH as usize);
        let near = |got: f32, wanted: f64| {
            // Sums of five f32 products below 1, seven tokens long.
            assert!((f64::from(got) - wanted).abs() < 1e-5, "{got} and {wanted}");
        };
        for (row, head) in (0..rows as usize).flat_map(|row| (0..heads).map(move |h| (row, h))) {
            let (wanted, memory) = by_the_formula(&tokens, &memory, (row, head));
            for (index, wanted) in wanted.into_iter().enumerate() {
                let (token, place) = (index / width, index % width);
                near(read[((row * count as usize + token) * heads + head) * width + place], wanted);
            }
            for (index, wanted) in memory.iter().enumerate() {
                near(after[(row * heads + head) * memory.len() + index], *wanted);
            }
        }
    }

    #[test]
    fn no_bit_depends_on_how_long_the_pieces_are() {
        for count in [1, 2, 5, 31, 32, 33, 65] {
            let tokens = tokens(2, count);
            let whole = bits(&run_in_pieces(&tokens, None, 1000).unwrap());
            for piece_tokens in [1, 3, 32] {
                let pieces = run_in_pieces(&tokens, None, piece_tokens).unwrap();
                assert!(bits(&pieces) == whole, "{count} tokens by {piece_tokens}");
            }
            assert!(bits(&run(&tokens, None).unwrap()) == whole, "{count} tokens");
        }
    }

    #[test]
    fn tokens_in_two_runs_are_tokens_in_one() {
        let tokens = tokens(2, 9);
        let (read, memory) = run(&tokens, None).unwrap();
        for cut in 1..9 {
            let (first, between) = run(&part(&tokens, TOKEN_AXIS, 0..cut), None).unwrap();
            let (second, after) = run(&part(&tokens, TOKEN_AXIS, cut..9), Some(&between)).unwrap();
            let both = ops::concatenate_axis(&[first, second], TOKEN_AXIS).unwrap();
            assert!(bits(&(both, after)) == bits(&(read.clone(), memory.clone())), "cut at {cut}");
        }
    }

    #[test]
    fn a_row_among_others_is_the_row_alone() {
        let (tokens, memory) = (tokens(3, 4), memory(3));
        let (read, after) = run(&tokens, Some(&memory)).unwrap();
        for row in 0..3 {
            let own = |array: &Array| ops::slice_axis(array, 0, row, row + 1).unwrap();
            let alone = run(&part(&tokens, 0, row..row + 1), Some(&own(&memory))).unwrap();
            assert!(bits(&alone) == bits(&(own(&read), own(&after))), "row {row}");
        }
    }

    #[test]
    fn what_is_read_has_the_models_type_and_the_memory_stays_in_f32() {
        let wide = tokens(1, 3);
        let half = |array: &Array| array.as_dtype(Dtype::Bfloat16).unwrap();
        let tokens = Tokens {
            queries: half(&wide.queries),
            keys: half(&wide.keys),
            values: half(&wide.values),
            strengths: half(&wide.strengths),
            decays: wide.decays,
        };
        let (read, memory) = run(&tokens, None).unwrap();
        assert_eq!((read.dtype(), memory.dtype()), (Dtype::Bfloat16, Dtype::Float32));
    }
}
