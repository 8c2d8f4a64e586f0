//! Chains of elementwise operations that a GPU runs as one kernel, through MLX's `compile`.
//!
//! A decode step on a GPU is mostly the launching of small kernels. The feed-forward gates are where
//! fusing them keeps every bit: the fused kernel rounds after each operation as the single ones do, and
//! it is a pure function of its inputs, so that a failed compilation leaves nothing half-written. It is
//! tried out before the first step ([`engage`]); a thread that has not engaged it, or could not, runs
//! the single operations.

use std::cell::RefCell;

use mlx_rs::error::Exception;
use mlx_rs::transforms::compile::compile;
use mlx_rs::{Array, Dtype};

use super::ops;
use crate::error::{Code, Error, Result};

/// `activation(gate) * up`.
type Gated =
    Box<dyn for<'a> FnMut((&'a Array, &'a Array)) -> std::result::Result<Array, Exception>>;

struct Fused {
    silu: Gated,
    gelu_tanh: Gated,
}

thread_local! {
    static FUSED: RefCell<Option<Fused>> = const { RefCell::new(None) };
}

/// Fuses this thread's gates from now on, after a try of each with arrays of `dtype`.
///
/// # Errors
/// `EngineFailed` when the try fails, or gives other numbers than the single operations; then nothing
/// is fused.
pub fn engage(dtype: Dtype) -> Result<()> {
    disengage();
    let mut fused = Fused {
        silu: Box::new(compile(traced(single_silu), true)),
        gelu_tanh: Box::new(compile(traced(single_gelu_tanh), true)),
    };
    try_out(&mut fused.silu, single_silu, dtype)?;
    try_out(&mut fused.gelu_tanh, single_gelu_tanh, dtype)?;
    FUSED.set(Some(fused));
    Ok(())
}

/// Back to single operations on this thread.
pub fn disengage() {
    FUSED.set(None);
}

/// `gate * sigmoid(gate) * up` (SwiGLU's gate, Shazeer 2020).
///
/// # Errors
/// `EngineFailed` when the shapes differ.
pub fn gated_silu(gate: &Array, up: &Array) -> Result<Array> {
    gated(|fused| &mut fused.silu, single_silu, gate, up)
}

/// `gelu_tanh(gate) * up` (GeGLU's gate, Shazeer 2020).
///
/// # Errors
/// `EngineFailed` when the shapes differ.
pub fn gated_gelu_tanh(gate: &Array, up: &Array) -> Result<Array> {
    gated(|fused| &mut fused.gelu_tanh, single_gelu_tanh, gate, up)
}

fn gated(
    chain: impl Fn(&mut Fused) -> &mut Gated,
    single: Single,
    gate: &Array,
    up: &Array,
) -> Result<Array> {
    FUSED.with_borrow_mut(|fused| match fused {
        Some(fused) => Ok(chain(fused)((gate, up))?),
        None => single(gate, up),
    })
}

type Single = fn(&Array, &Array) -> Result<Array>;

fn single_silu(gate: &Array, up: &Array) -> Result<Array> {
    Ok(gate.multiply(ops::sigmoid(gate)?)?.multiply(up)?)
}

fn single_gelu_tanh(gate: &Array, up: &Array) -> Result<Array> {
    Ok(ops::gelu_tanh(gate)?.multiply(up)?)
}

/// `single` as MLX traces it.
fn traced(
    single: Single,
) -> impl FnMut((&Array, &Array)) -> std::result::Result<Array, Exception> + 'static {
    move |(gate, up)| single(gate, up).map_err(|error| Exception::custom(error.message()))
}

/// Values around zero and far from it, in one more than a vector's width.
fn samples(dtype: Dtype) -> Result<(Array, Array)> {
    let of = |factor: f32| {
        let values: Vec<f32> = (-32..33).map(|index| index as f32 * factor).collect();
        Array::from_slice(&values, &[1, 1, 65]).as_dtype(dtype)
    };
    Ok((of(0.37)?, of(-1.13)?))
}

fn try_out(fused: &mut Gated, single: Single, dtype: Dtype) -> Result<()> {
    let (gate, up) = samples(dtype)?;
    let together = ops::read_f32(&fused((&gate, &up))?)?;
    let one_by_one = ops::read_f32(&single(&gate, &up)?)?;
    let same = together.iter().zip(&one_by_one).all(|(a, b)| a.to_bits() == b.to_bits());
    match same && together.len() == one_by_one.len() {
        true => Ok(()),
        false => Err(Error::new(Code::EngineFailed, "a fused kernel rounds differently")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx::Device;

    /// MLX compiles for the processor with the same C++ compiler that set-up builds mlx-c with.
    #[test]
    fn fused_gates_give_the_bits_of_single_operations_in_every_shape() {
        Device::cpu();
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
            let (gate, up) = samples(dtype).unwrap();
            let shapes: [&[i32]; 3] = [&[1, 1, 65], &[5, 1, 13], &[1, 13, 5]];
            for shape in shapes {
                let (gate, up) = (gate.reshape(shape).unwrap(), up.reshape(shape).unwrap());
                let both = || {
                    [gated_silu(&gate, &up), gated_gelu_tanh(&gate, &up)]
                        .map(|result| ops::read_f32(&result.unwrap()).unwrap())
                };
                disengage();
                let single = both();
                engage(dtype).unwrap();
                assert!(FUSED.with_borrow(Option::is_some));
                assert_eq!(both(), single, "{dtype:?} {shape:?}");
            }
        }
        disengage();
    }
}
