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
//! small. GPUs run a [kernel](crate::mlx::DeltaKernel) instead, whose sums have another order (mlx-lm has
//! one for Metal), once it has shown on that device that it agrees with the operations.

use std::ops::Range;
use std::rc::Rc;

use crate::error::Result;
use crate::limits::RECURRENCE_PIECE_TOKENS;
use crate::mlx::{Array, DeltaInputs, DeltaKernel, DeltaShape, Dtype, ops, recurrence};

/// How far a kernel may be from the operations where memories and what is read from them are below 1:
/// sums of some hundred f32 products in another order. What is read is rounded besides.
const KERNEL_TOLERANCE: f32 = 1e-4;

/// The rule for memories of one shape.
#[derive(Debug, Clone)]
pub struct DeltaRule {
    kernel: Option<Rc<DeltaKernel>>,
}

impl DeltaRule {
    /// By operations alone.
    pub fn by_operations() -> Self {
        Self { kernel: None }
    }

    /// By a kernel where this thread's device has one that agrees with the operations on numbers of type
    /// `dtype`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text when the operations fail.
    pub fn of_device(shape: DeltaShape, dtype: Dtype) -> Result<Self> {
        let Some(kernel) = DeltaKernel::new(shape)? else { return Ok(Self::by_operations()) };
        match distance(&kernel, shape, dtype) {
            Ok(distance) if distance <= KERNEL_TOLERANCE + rounding(dtype) => {
                Ok(Self { kernel: Some(Rc::new(kernel)) })
            }
            Ok(distance) => {
                tracing::warn!(distance, "the delta rule's kernel is wrong here: operations run");
                Ok(Self::by_operations())
            }
            Err(error) => {
                tracing::warn!(%error, "the delta rule's kernel does not run here: operations do");
                Ok(Self::by_operations())
            }
        }
    }

    /// Runs `tokens` over `memory` `[B, Hv, Dv, Dk]`, which is empty at first; returns what they read
    /// `[B, L, Hv, Dv]`, in the queries' type, and the memory after the last of them.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn run(&self, tokens: &Tokens, memory: Option<&Array>) -> Result<(Array, Array)> {
        match &self.kernel {
            Some(kernel) => run_kernel(kernel, tokens, memory),
            None => run_in_pieces(tokens, memory, ops::axis_index(RECURRENCE_PIECE_TOKENS)),
        }
    }
}

/// The greatest difference of what `kernel` and the operations make of a few tokens.
fn distance(kernel: &DeltaKernel, shape: DeltaShape, dtype: Dtype) -> Result<f32> {
    let tokens = Tokens::of_waves(shape, (2, 5), dtype)?;
    let (first, second) = (tokens.part(TOKEN_AXIS, 0..2)?, tokens.part(TOKEN_AXIS, 2..5)?);
    let mut greatest = 0.0_f32;
    let (_, memory) = run_in_pieces(&first, None, 1)?;
    for (tokens, memory) in [(&first, None), (&second, Some(&memory))] {
        let wanted = run_in_pieces(tokens, memory, 1)?;
        let got = run_kernel(kernel, tokens, memory)?;
        for (got, wanted) in [(&got.0, &wanted.0), (&got.1, &wanted.1)] {
            let pairs = ops::read_f32(got)?.into_iter().zip(ops::read_f32(wanted)?);
            // A number that is none is as far as can be.
            let apart = |(got, wanted): (f32, f32)| match (got - wanted).abs() {
                apart if apart.is_nan() => f32::INFINITY,
                apart => apart,
            };
            greatest = pairs.map(apart).fold(greatest, f32::max);
        }
    }
    Ok(greatest)
}

/// The distance of two neighbours in `dtype` below 1.
fn rounding(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bfloat16 => 2_f32.powi(-8),
        Dtype::Float16 => 2_f32.powi(-11),
        _ => 0.0,
    }
}

fn run_kernel(
    kernel: &DeltaKernel,
    tokens: &Tokens,
    memory: Option<&Array>,
) -> Result<(Array, Array)> {
    let Tokens { queries, keys, values, decays, strengths } = tokens;
    let memory = match memory {
        Some(memory) => ops::share(memory),
        None => {
            let shape = [keys.dim(0), values.dim(2), values.dim(3), keys.dim(3)];
            ops::zeros(&shape, Dtype::Float32)?
        }
    };
    kernel.run(&DeltaInputs { queries, keys, values, decays, strengths, memory: &memory })
}

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
fn run_piece(tokens: &Tokens, piece: Range<i32>, memory: &mut Array) -> Result<Array> {
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
    /// Smooth numbers, with which memories stay below 1: queries and keys no longer than 1.
    fn of_waves(shape: DeltaShape, (rows, count): (i32, i32), dtype: Dtype) -> Result<Self> {
        let DeltaShape { key_heads, value_heads, key_width, value_width } = shape;
        let wave = |sizes: &[i32], phase: f32, height: f32| {
            let numbers: i32 = sizes.iter().product();
            let number = |index: i32| height * (phase + index as f32 * 0.37).sin();
            Array::from_iter((0..numbers).map(number), sizes)
        };
        let unit = (key_width as f32).sqrt().recip();
        let (key, head) = ([rows, count, key_heads, key_width], [rows, count, value_heads]);
        Ok(Self {
            queries: wave(&key, 0.1, unit).as_dtype(dtype)?,
            keys: wave(&key, 2.3, unit).as_dtype(dtype)?,
            values: wave(&[rows, count, value_heads, value_width], 5.9, 1.0).as_dtype(dtype)?,
            decays: ops::sigmoid(wave(&head, 7.7, 3.0))?,
            strengths: ops::sigmoid(wave(&head, 9.1, 1.0).as_dtype(dtype)?)?,
        })
    }

    /// Token `index` alone, as views.
    fn at(&self, index: i32) -> Result<Self> {
        self.part(TOKEN_AXIS, index..index + 1)
    }

    /// The entries `range` of one of the axes that all parts have, as views.
    fn part(&self, axis: usize, range: Range<i32>) -> Result<Self> {
        let part = |part: &Array| match part.dim(ops::axis_index(axis)) == range.end - range.start {
            true => Ok(ops::share(part)),
            false => ops::slice_axis(part, axis, range.start, range.end),
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

    const SHAPE: DeltaShape =
        DeltaShape { key_heads: 2, value_heads: 6, key_width: 5, value_width: 4 };

    fn tokens(rows: i32, count: i32) -> Tokens {
        Device::cpu();
        Tokens::of_waves(SHAPE, (rows, count), Dtype::Float32).unwrap()
    }

    fn memory(rows: i32) -> Array {
        let shape = [rows, SHAPE.value_heads, SHAPE.value_width, SHAPE.key_width];
        let count: i32 = shape.iter().product();
        Array::from_iter((0..count).map(|index| (4.4 + index as f32 * 0.37).sin()), &shape)
    }

    fn run(tokens: &Tokens, memory: Option<&Array>) -> Result<(Array, Array)> {
        DeltaRule::by_operations().run(tokens, memory)
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
        let (kw, vw) = (SHAPE.key_width as usize, SHAPE.value_width as usize);
        let (kh, vh) = (SHAPE.key_heads as usize, SHAPE.value_heads as usize);
        let count = tokens.keys.dim(1) as usize;
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
        assert_eq!(read.shape(), [rows, count, SHAPE.value_heads, SHAPE.value_width]);
        assert_eq!(after.shape(), memory.shape());
        let (read, after) = (ops::read_f32(&read).unwrap(), ops::read_f32(&after).unwrap());
        let (heads, width) = (SHAPE.value_heads as usize, SHAPE.value_width as usize);
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
            let (first, between) = run(&tokens.part(TOKEN_AXIS, 0..cut).unwrap(), None).unwrap();
            let (second, after) =
                run(&tokens.part(TOKEN_AXIS, cut..9).unwrap(), Some(&between)).unwrap();
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
            let alone = run(&tokens.part(0, row..row + 1).unwrap(), Some(&own(&memory))).unwrap();
            assert!(bits(&alone) == bits(&(own(&read), own(&after))), "row {row}");
        }
    }

    #[test]
    fn what_is_read_has_the_models_type_and_the_memory_stays_in_f32() {
        Device::cpu();
        let tokens = Tokens::of_waves(SHAPE, (1, 3), Dtype::Bfloat16).unwrap();
        let (read, memory) = run(&tokens, None).unwrap();
        assert_eq!((read.dtype(), memory.dtype()), (Dtype::Bfloat16, Dtype::Float32));
    }

    #[test]
    fn a_processor_runs_operations() {
        Device::cpu();
        let shape = DeltaShape { key_width: 32, ..SHAPE };
        assert!(DeltaRule::of_device(shape, Dtype::Float32).unwrap().kernel.is_none());
    }

    /// In every type, for memories of all kinds of widths, over prompts that are longer than a piece.
    #[test]
    #[ignore = "needs a GPU"]
    fn a_gpus_kernel_stays_near_the_operations_and_rows_do_not_see_each_other() {
        let device = Device::select().unwrap();
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
            for (key_width, value_width) in [(32, 5), (64, 128), (128, 128), (256, 33)] {
                let shape = DeltaShape { key_width, value_width, ..SHAPE };
                let rule = DeltaRule::of_device(shape, dtype).unwrap();
                let kernel = rule.kernel.expect("a kernel that agrees");
                let tokens = Tokens::of_waves(shape, (3, 150), dtype).unwrap();
                let whole = run_kernel(&kernel, &tokens, None).unwrap();
                let wanted = run_in_pieces(&tokens, None, 32).unwrap();
                assert_near(&whole.0, &wanted.0, KERNEL_TOLERANCE + rounding(dtype));
                assert_near(&whole.1, &wanted.1, KERNEL_TOLERANCE);
                let half = |range| tokens.part(TOKEN_AXIS, range).unwrap();
                let (first, between) = run_kernel(&kernel, &half(0..70), None).unwrap();
                let (second, after) = run_kernel(&kernel, &half(70..150), Some(&between)).unwrap();
                let both = ops::concatenate_axis(&[first, second], TOKEN_AXIS).unwrap();
                assert!(bits(&(both, after)) == bits(&whole), "{device:?}: {shape:?} in two runs");
                for row in 0..3 {
                    let own = |array: &Array| ops::slice_axis(array, 0, row, row + 1).unwrap();
                    let tokens = tokens.part(0, row..row + 1).unwrap();
                    let alone = run_kernel(&kernel, &tokens, None).unwrap();
                    assert!(bits(&alone) == bits(&(own(&whole.0), own(&whole.1))), "row {row}");
                }
            }
        }
    }

    fn assert_near(got: &Array, wanted: &Array, bound: f32) {
        assert_eq!((got.shape(), got.dtype()), (wanted.shape(), wanted.dtype()));
        let (got, wanted) = (ops::read_f32(got).unwrap(), ops::read_f32(wanted).unwrap());
        for (got, wanted) in got.iter().zip(wanted) {
            assert!((got - wanted).abs() <= bound, "{got} and {wanted}");
        }
    }
}
