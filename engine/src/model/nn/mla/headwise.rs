//! One matrix per head: what takes queries into the latents' space, and attended latents out of it
//! (mlx-lm 0.32.2, `mla.MultiLinear`).

use super::LatentShape;
use crate::error::{Code, Error, Result};
use crate::mlx::{Array, Packed, PackedFormat, PackedMode, Weights, ops};
use crate::model::ModelConfig;
use crate::model::nn::linear::load_packed;

/// Weights `[heads, out, in]`.
#[derive(Debug)]
pub(super) enum Headwise {
    /// The transposed view is kept beside the weight, so that a step builds one node less.
    Dense { weight: Array, transposed: Array },
    /// Packed along the input axis.
    Packed(Packed),
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
        let embedding = Self::load(weights, config, &at("embed_q"), &[heads, latent, plain])?;
        let unembedding = Self::load(weights, config, &at("unembed_out"), &[heads, value, latent])?;
        Ok((embedding, unembedding))
    }

    fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        shape: &[i32],
    ) -> Result<Self> {
        match weights.contains(&format!("{path}.scales")) {
            true => Ok(Self::Packed(load_packed(weights, config, path, shape)?)),
            false => Self::dense(weights.take_shaped(&format!("{path}.weight"), shape)?),
        }
    }

    /// Rows of `path` are, head by head, those that make a plain key and those that make a value. What
    /// is packed is packed anew the same way, as mlx-lm 0.32.2's `deepseek_v32.Model.sanitize` does: plain
    /// keys change their input axis.
    fn split(weights: &mut Weights, path: &str, shape: &LatentShape) -> Result<(Self, Self)> {
        let LatentShape { heads, latent, plain, value, .. } = *shape;
        let (rows, format) = unpacked(weights, path, (heads * (plain + value), latent))?;
        let rows = rows.reshape(&[heads, plain + value, latent])?;
        let keys = ops::slice_axis(&rows, 1, 0, plain)?.swap_axes(-1, -2)?.contiguous()?;
        let values = ops::slice_axis(&rows, 1, plain, plain + value)?.contiguous()?;
        if let Some(PackedFormat { group_size, .. }) =
            format.filter(|how| plain % how.group_size != 0)
        {
            let message = format!(
                "`{path}` is packed in groups of {group_size}, which keys of {plain} do not divide into"
            );
            return Err(Error::new(Code::BadModel, message));
        }
        let pair = match format {
            None => (Self::dense(keys)?, Self::dense(values)?),
            Some(format) => (Self::packed(&keys, format)?, Self::packed(&values, format)?),
        };
        // Now, so that what they were made from is free before the next block is.
        ops::evaluate(pair.0.arrays().into_iter().chain(pair.1.arrays()))?;
        Ok(pair)
    }

    fn dense(weight: Array) -> Result<Self> {
        let transposed = weight.swap_axes(-1, -2)?;
        Ok(Self::Dense { weight, transposed })
    }

    fn packed(weight: &Array, format: PackedFormat) -> Result<Self> {
        let (values, scales, biases) = ops::quantize(weight, (format.group_size, format.bits))?;
        Ok(Self::Packed(Packed { values, scales, biases: Some(biases), format }))
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Dense { weight, .. } => vec![weight],
            Self::Packed(Packed { values, scales, biases, .. }) => {
                [values, scales].into_iter().chain(biases).collect()
            }
        }
    }

    /// `[B, heads or 1, L, in]` to `[B, heads, L, out]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense { transposed, .. } => Ok(x.matmul(transposed)?),
            Self::Packed(matrices) => matrices.multiply(x),
        }
    }

    /// By the transposed matrices: `[B, heads or 1, L, out]` to `[B, heads, L, in]`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn backward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense { weight, .. } => Ok(x.matmul(weight)?),
            Self::Packed(matrices) => matrices.multiply_transposed(x),
        }
    }
}

/// The plain values of `path`, and how they were packed: read from their shapes, as the oracle does,
/// which knows the affine mode only.
fn unpacked(
    weights: &mut Weights,
    path: &str,
    (outputs, inputs): (i32, i32),
) -> Result<(Array, Option<PackedFormat>)> {
    let name = format!("{path}.weight");
    if !weights.contains(&format!("{path}.scales")) {
        return Ok((weights.take_shaped(&name, &[outputs, inputs])?, None));
    }
    let values = weights.take(&name)?;
    let scales = weights.take(&format!("{path}.scales"))?;
    let biases = weights.take(&format!("{path}.biases"))?;
    let format = PackedFormat {
        mode: PackedMode::Affine,
        group_size: inputs / scales.dim(-1).max(1),
        bits: values.dim(-1) * 32 / inputs,
    };
    let groups = [outputs, inputs / format.group_size.max(1)];
    let fits = values.shape() == [outputs, inputs * format.bits / 32]
        && scales.shape() == groups
        && biases.shape() == groups;
    if !fits {
        let (values, scales) = (values.shape(), scales.shape());
        let message = format!(
            "tensor `{name}` has shape {values:?} with scales {scales:?}, which do not unpack to the \
             config's {:?}",
            [outputs, inputs]
        );
        return Err(Error::new(Code::BadModel, message));
    }
    let packed = Packed { values, scales, biases: Some(biases), format };
    Ok((packed.unpack()?, Some(format)))
}
