//! One matrix per head: what takes queries into the latents' space, and attended latents out of it
//! (mlx-lm 0.32.2, `mla.MultiLinear`).

use super::LatentShape;
use crate::error::{Code, Error, Result};
use crate::mlx::{Array, Weights, ops};
use crate::model::ModelConfig;
use crate::model::nn::Quantization;

/// Weights `[heads, out, in]`.
#[derive(Debug)]
pub(super) enum Headwise {
    /// The transposed view is kept beside the weight, so that a step builds one node less.
    Dense { weight: Array, transposed: Array },
    /// Packed along the input axis.
    Affine { packed: Array, scales: Array, biases: Array, packing: (i32, i32) },
}

impl Headwise {
    /// Takes `path.embed_q` `[heads, latent, plain]` and `path.unembed_out` `[heads, value, latent]`, or
    /// makes them from `path.kv_b_proj`, which hub checkpoints have instead.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub(super) fn load_pair(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        shape: &LatentShape,
    ) -> Result<(Self, Self)> {
        let at = |name: &str| format!("{path}.{name}");
        if weights.contains(&at("kv_b_proj.weight")) {
            return Self::split(weights, &at("kv_b_proj"), shape);
        }
        let LatentShape { heads, latent, plain, value, .. } = *shape;
        let embedding = Self::load(weights, config, &at("embed_q"), [heads, latent, plain])?;
        let unembedding = Self::load(weights, config, &at("unembed_out"), [heads, value, latent])?;
        Ok((embedding, unembedding))
    }

    fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        [heads, outputs, inputs]: [i32; 3],
    ) -> Result<Self> {
        let name = format!("{path}.weight");
        if !weights.contains(&format!("{path}.scales")) {
            return Self::dense(weights.take_shaped(&name, &[heads, outputs, inputs])?);
        }
        let quantization = Quantization::of_layer(config, path)?.ok_or_else(|| {
            let message = format!("`{path}` is packed, but the config has no `quantization`");
            Error::new(Code::BadModel, message)
        })?;
        let Quantization { group_size, bits } = quantization;
        let groups = [heads, outputs, inputs / group_size];
        Ok(Self::Affine {
            packed: weights.take_shaped(&name, &[heads, outputs, inputs * bits / 32])?,
            scales: weights.take_shaped(&format!("{path}.scales"), &groups)?,
            biases: weights.take_shaped(&format!("{path}.biases"), &groups)?,
            packing: (group_size, bits),
        })
    }

    /// Rows of `path` are, head by head, those that make a plain key and those that make a value. What
    /// is packed is packed anew the same way, as mlx-lm 0.32.2's `deepseek_v32.Model.sanitize` does: plain
    /// keys change their input axis.
    fn split(weights: &mut Weights, path: &str, shape: &LatentShape) -> Result<(Self, Self)> {
        let LatentShape { heads, latent, plain, value, .. } = *shape;
        let (rows, packing) = unpacked(weights, path, (heads * (plain + value), latent))?;
        let rows = rows.reshape(&[heads, plain + value, latent])?;
        let keys = ops::slice_axis(&rows, 1, 0, plain)?.swap_axes(-1, -2)?.contiguous()?;
        let values = ops::slice_axis(&rows, 1, plain, plain + value)?.contiguous()?;
        let pair = match packing {
            None => (Self::dense(keys)?, Self::dense(values)?),
            Some(packing) => (Self::packed(&keys, packing)?, Self::packed(&values, packing)?),
        };
        // Now, so that what they were made from is free before the next block is.
        ops::evaluate(pair.0.arrays().into_iter().chain(pair.1.arrays()))?;
        Ok(pair)
    }

    fn dense(weight: Array) -> Result<Self> {
        let transposed = weight.swap_axes(-1, -2)?;
        Ok(Self::Dense { weight, transposed })
    }

    fn packed(weight: &Array, packing: (i32, i32)) -> Result<Self> {
        let (packed, scales, biases) = ops::quantize(weight, packing)?;
        Ok(Self::Affine { packed, scales, biases, packing })
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Dense { weight, .. } => vec![weight],
            Self::Affine { packed, scales, biases, .. } => vec![packed, scales, biases],
        }
    }

    /// `[B, heads or 1, L, in]` to `[B, heads, L, out]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn forward(&self, x: &Array) -> Result<Array> {
        self.multiply(x, true)
    }

    /// By the transposed matrices: `[B, heads or 1, L, out]` to `[B, heads, L, in]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn backward(&self, x: &Array) -> Result<Array> {
        self.multiply(x, false)
    }

    fn multiply(&self, x: &Array, transpose: bool) -> Result<Array> {
        match self {
            Self::Dense { transposed, .. } if transpose => Ok(x.matmul(transposed)?),
            Self::Dense { weight, .. } => Ok(x.matmul(weight)?),
            Self::Affine { packed, scales, biases, packing } => {
                ops::quantized_product(x, (packed, scales, biases), *packing, transpose)
            }
        }
    }
}

/// The plain values of `path`, and how they were packed: read from their shapes, as the oracle does.
fn unpacked(
    weights: &mut Weights,
    path: &str,
    (outputs, inputs): (i32, i32),
) -> Result<(Array, Option<(i32, i32)>)> {
    let name = format!("{path}.weight");
    if !weights.contains(&format!("{path}.scales")) {
        return Ok((weights.take_shaped(&name, &[outputs, inputs])?, None));
    }
    let packed = weights.take(&name)?;
    let scales = weights.take(&format!("{path}.scales"))?;
    let biases = weights.take(&format!("{path}.biases"))?;
    let bits = packed.dim(-1) * 32 / inputs;
    let group_size = inputs / scales.dim(-1).max(1);
    let fits = [&packed, &scales, &biases].iter().all(|array| array.shape()[0] == outputs)
        && scales.shape() == [outputs, inputs / group_size.max(1)]
        && packed.shape() == [outputs, inputs * bits / 32]
        && biases.shape() == scales.shape();
    if !fits {
        let message = format!(
            "tensor `{name}` has shape {:?} and scales {:?}, but the config says [{outputs}, {inputs}]",
            packed.shape(),
            scales.shape()
        );
        return Err(Error::new(Code::BadModel, message));
    }
    let packing = (group_size, bits);
    Ok((ops::dequantize(&packed, &scales, &biases, packing)?, Some(packing)))
}
