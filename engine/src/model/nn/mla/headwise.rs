//! One matrix per head: what takes queries into the latents' space, and attended latents out of it
//! (mlx-lm 0.32.2, `mla.MultiLinear`).

use super::LatentShape;
use crate::error::{Code, Error, Result};
use crate::mlx::{Array, Packed, PackedFormat, PackedMode, Weights, ops};
use crate::model::ModelConfig;
use crate::model::nn::linear::{check_plain, load_packed};

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
        let weight = weights.take_shaped(&name, &[outputs, inputs])?;
        check_plain(&name, &weight)?;
        return Ok((weight, None));
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::mlx::{Device, Dtype};

    const SHAPE: LatentShape = LatentShape {
        hidden: 8,
        heads: 2,
        query_latent: None,
        latent: 64,
        plain: 32,
        turned: 4,
        value: 3,
    };
    const ROWS: i32 = 2 * (32 + 3);

    fn wave(shape: &[i32], seed: f32) -> Array {
        let count: i32 = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (seed + i as f32 * 0.37).sin()).collect();
        Array::from_slice(&values, shape)
    }

    fn load(weights: Vec<(&str, Array)>, config: &Value) -> Result<(Headwise, Headwise)> {
        let named = weights.into_iter().map(|(name, array)| (format!("a.{name}"), array));
        let config = ModelConfig::from_fields(config.as_object().unwrap().clone());
        Headwise::load_pair(&mut Weights::of(named), &config, "a", &SHAPE)
    }

    fn packed(array: &Array, (group_size, bits): (i32, i32)) -> [(&'static str, Array); 3] {
        let (values, scales, biases) = ops::quantize(array, (group_size, bits)).unwrap();
        [("weight", values), ("scales", scales), ("biases", biases)]
    }

    fn joined(rows: &Array, packing: (i32, i32)) -> Vec<(&'static str, Array)> {
        let names = ["kv_b_proj.weight", "kv_b_proj.scales", "kv_b_proj.biases"];
        let parts = packed(rows, packing).into_iter().map(|(_, array)| array);
        names.into_iter().zip(parts).collect()
    }

    /// What both directions make of some numbers.
    fn products((embedding, unembedding): &(Headwise, Headwise)) -> [Vec<f32>; 3] {
        let queries = wave(&[1, 2, 1, SHAPE.plain], 0.2);
        let latents = wave(&[1, 1, 5, SHAPE.latent], 0.9);
        [
            embedding.forward(&queries).unwrap(),
            embedding.backward(&latents).unwrap(),
            unembedding.forward(&latents).unwrap(),
        ]
        .map(|product| ops::read_f32(&product).unwrap())
    }

    #[test]
    fn a_joined_matrix_makes_the_keys_and_values_of_each_head() {
        Device::cpu();
        let rows = wave(&[ROWS, SHAPE.latent], 0.4);
        let latents = wave(&[1, 1, 5, SHAPE.latent], 0.9);
        // [head][key or value row][token].
        let all = ops::read_f32(&rows.matmul(latents.reshape(&[5, 64]).unwrap().t()).unwrap());
        let all = all.unwrap();
        let part = |rows: std::ops::Range<usize>| {
            let head = |head: usize| {
                let all = &all;
                let rows = rows.clone();
                let tokens = (0..5).flat_map(move |token| {
                    rows.clone().map(move |row| all[(head * 35 + row) * 5 + token])
                });
                tokens.collect::<Vec<f32>>()
            };
            [head(0), head(1)].concat()
        };
        let pair = load(vec![("kv_b_proj.weight", rows)], &json!({})).unwrap();
        let [_, keys, values] = products(&pair);
        for (got, wanted) in [(keys, part(0..32)), (values, part(32..35))] {
            assert_eq!(got.len(), wanted.len());
            // Sums of 64 products below 1.
            assert!(got.iter().zip(&wanted).all(|(got, wanted)| (got - wanted).abs() < 1e-5));
        }
    }

    #[test]
    fn a_packed_joined_matrix_is_split_and_packed_anew_the_same_way() {
        Device::cpu();
        let rows = wave(&[ROWS, SHAPE.latent], 0.4);
        for packing in [(32, 4), (32, 8)] {
            let (group_size, bits) = packing;
            let [(_, values), (_, scales), (_, biases)] = packed(&rows, packing);
            let plain = ops::dequantize(&values, &scales, &biases, packing).unwrap();
            let plain = plain.reshape(&[2, 35, 64]).unwrap();
            let keys = ops::slice_axis(&plain, 1, 0, 32).unwrap().swap_axes(-1, -2).unwrap();
            let outs = ops::slice_axis(&plain, 1, 32, 35).unwrap();
            let names = [
                ["embed_q.weight", "embed_q.scales", "embed_q.biases"],
                ["unembed_out.weight", "unembed_out.scales", "unembed_out.biases"],
            ];
            let split = [keys.contiguous().unwrap(), outs.contiguous().unwrap()];
            let named = split.iter().zip(names).flat_map(|(array, names)| {
                names.into_iter().zip(packed(array, packing).map(|(_, array)| array))
            });
            let config = json!({ "quantization": { "group_size": group_size, "bits": bits } });
            let ready = load(named.collect(), &config).unwrap();
            let made = load(joined(&rows, packing), &json!({})).unwrap();
            assert_eq!(products(&made), products(&ready), "{packing:?}");
        }
    }

    #[test]
    fn joined_matrices_that_do_not_fit_are_refused_by_name() {
        Device::cpu();
        let short = wave(&[ROWS - 1, SHAPE.latent], 0.4);
        let rows = wave(&[ROWS, SHAPE.latent], 0.4);
        let mut unbiased = joined(&rows, (32, 4));
        unbiased.pop();
        let bytes = rows.as_dtype(Dtype::Uint8).unwrap();
        let cases = [
            (vec![("kv_b_proj.weight", short.clone())], "kv_b_proj.weight"),
            (vec![("kv_b_proj.weight", bytes)], "kv_b_proj.weight"),
            (joined(&short, (32, 4)), "kv_b_proj.weight"),
            (joined(&rows, (64, 4)), "groups of 64"),
            (unbiased, "kv_b_proj.biases"),
            (vec![("embed_q.weight", rows)], "embed_q.weight"),
            (Vec::new(), "embed_q.weight"),
        ];
        for (weights, named) in cases {
            let error = load(weights, &json!({})).unwrap_err();
            assert_eq!(error.code(), Code::BadModel, "{error}");
            assert!(error.message().contains(named), "{error}");
        }
    }
}
