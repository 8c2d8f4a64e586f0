//! One matrix per head: what takes queries into the latents' space, and attended latents out of it
//! (mlx-lm 0.32.2, `mla.MultiLinear`).

use super::LatentShape;
use crate::error::{Code, Error, Result};
use crate::mlx::{Array, Packed, PackedFormat, PackedMode, Weights, ops};
use crate::model::ModelConfig;
use crate::model::nn::quantization::load_packed;

/// Weights `[heads, out, in]`.
#[derive(Debug)]
pub(super) enum Headwise {
    /// The transposed view is kept beside the weight, so that a step builds one node less.
    Dense { weight: Array, transposed: Array },
    /// Packed along the input axis.
    Packed(Packed),
}

impl Headwise {
    /// Takes `path.embed_q` `[heads, latent, plain]` and `path.unembed_out` `[heads, value, latent]`.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub(super) fn load_pair(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        shape: &LatentShape,
    ) -> Result<(Self, Self)> {
        let LatentShape { heads, latent, plain, value, .. } = *shape;
        let mut load = |name: &str, shape: [i32; 3]| {
            let path = format!("{path}.{name}");
            match load_packed(weights, config, &path, &shape)? {
                Some(packed) => Ok(Self::Packed(packed)),
                None => Self::dense(weights.take_shaped(&format!("{path}.weight"), &shape)?),
            }
        };
        Ok((load("embed_q", [heads, latent, plain])?, load("unembed_out", [heads, value, latent])?))
    }

    fn dense(weight: Array) -> Result<Self> {
        let transposed = weight.swap_axes(-1, -2)?;
        Ok(Self::Dense { weight, transposed })
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

/// Puts `path.embed_q` and `path.unembed_out` in the place of `path.kv_b_proj`, where a checkpoint has
/// that, as they are published: its rows are, head by head, those that make a plain key and those that
/// make a value. What is packed is packed anew the same way, as mlx-lm 0.32.2's
/// `deepseek_v32.Model.sanitize` does, because keys change their input axis.
///
/// # Errors
/// `BadModel` when a tensor is missing, of another shape, or does not divide into its groups.
pub fn split_joined(weights: &mut Weights, path: &str, shape: &LatentShape) -> Result<()> {
    let joined = format!("{path}.kv_b_proj");
    if !weights.contains(&format!("{joined}.weight")) {
        return Ok(());
    }
    let LatentShape { heads, latent, plain, value, .. } = *shape;
    let (rows, format) = unpacked(weights, &joined, (heads * (plain + value), latent))?;
    if let Some(PackedFormat { group_size, .. }) = format.filter(|how| plain % how.group_size != 0)
    {
        let message = format!(
            "`{joined}` is packed in groups of {group_size}, which keys of {plain} do not divide into"
        );
        return Err(Error::new(Code::BadModel, message));
    }
    let rows = rows.reshape(&[heads, plain + value, latent])?;
    let keys = ops::slice_axis(&rows, 1, 0, plain)?.swap_axes(-1, -2)?.contiguous()?;
    let values = ops::slice_axis(&rows, 1, plain, plain + value)?.contiguous()?;
    for (name, matrices) in [("embed_q", keys), ("unembed_out", values)] {
        let mut put = |part: &str, array| weights.put(format!("{path}.{name}.{part}"), array);
        match format {
            None => put("weight", matrices),
            Some(PackedFormat { group_size, bits, .. }) => {
                let (values, scales, biases) = ops::quantize(&matrices, (group_size, bits))?;
                put("weight", values);
                put("scales", scales);
                put("biases", biases);
            }
        }
    }
    Ok(())
}

/// The plain values of `path`, and how they were packed: read from their shapes, as the oracle does,
/// which knows the affine mode only.
fn unpacked(
    weights: &mut Weights,
    path: &str,
    (outputs, inputs): (i32, i32),
) -> Result<(Array, Option<PackedFormat>)> {
    let mut part = |name: &str| weights.detach(&format!("{path}.{name}"));
    let (values, scales) = (part("weight")?, part("scales").ok());
    let refusal = |scales: &[i32]| {
        let message = format!(
            "tensor `{path}.weight` has shape {:?} with scales {scales:?}, which do not unpack to the \
             config's {:?}",
            values.shape(),
            [outputs, inputs]
        );
        Error::new(Code::BadModel, message)
    };
    let Some(scales) = scales else {
        return match values.shape() == [outputs, inputs] {
            true => Ok((values, None)),
            false => Err(refusal(&[])),
        };
    };
    let biases = part("biases")?;
    let format = PackedFormat {
        mode: PackedMode::Affine,
        group_size: inputs / scales.dim(-1).max(1),
        bits: values.dim(-1) * 32 / inputs,
    };
    let groups = [outputs, inputs / format.group_size.max(1)];
    let known = matches!(format.bits, 2..=6 | 8) && matches!(format.group_size, 32 | 64 | 128);
    let fits = known
        && values.shape() == [outputs, inputs * format.bits / 32]
        && scales.shape() == groups
        && biases.shape() == groups;
    if !fits {
        return Err(refusal(scales.shape()));
    }
    let dtype = scales.dtype();
    let packed = Packed { values, scales, biases: Some(biases), format };
    Ok((packed.unpack(dtype)?, Some(format)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::mlx::Device;

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
        let mut weights = Weights::of(named);
        split_joined(&mut weights, "a", &SHAPE)?;
        Headwise::load_pair(&mut weights, &config, "a", &SHAPE)
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
            let made = load(joined(&rows, packing), &config).unwrap();
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
        let cases = [
            (vec![("kv_b_proj.weight", short.clone())], "kv_b_proj.weight"),
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
