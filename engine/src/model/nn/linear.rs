//! Linear layers, dense and packed.

use serde_json::Value;

use crate::error::{Code, Error, Result};
use crate::mlx::{Array, Packed, PackedFormat, PackedMode, Weights, ops};
use crate::model::ModelConfig;

/// `y = x W^T + b`.
#[derive(Debug)]
pub struct Linear {
    weight: Matrix,
    bias: Option<Array>,
}

/// A weight `[out, in]`.
#[derive(Debug)]
pub(super) enum Matrix {
    /// The transposed view is kept beside the weight, so that a step builds one node less.
    Dense {
        weight: Array,
        transposed: Array,
    },
    Packed(Packed),
}

/// How a checkpoint's affine-quantized weights are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantization {
    /// Weights per scale and bias.
    pub group_size: i32,
    /// Bits per weight.
    pub bits: i32,
}

impl Quantization {
    /// The checkpoint's scheme for the layer `path`: its own entry, else the general one, as
    /// mlx-lm 0.32.2's `utils.load_model` reads `quantization`.
    ///
    /// # Errors
    /// `BadModel` for a mode, bits or a group size that this engine does not run.
    pub fn of_layer(config: &ModelConfig, path: &str) -> Result<Option<Self>> {
        let Some(general) = config.section("quantization")? else {
            return Ok(None);
        };
        match general.get(path) {
            Some(Value::Object(_)) => Self::read(&general.section(path)?.unwrap_or(general)),
            _ => Self::read(&general),
        }
        .map(Some)
    }

    fn read(section: &ModelConfig) -> Result<Self> {
        if let Some(mode) = section.get("mode").filter(|mode| *mode != "affine") {
            return Err(section.wrong("mode", mode).with_hint("only `affine` is supported"));
        }
        let own = Self { group_size: section.count("group_size")?, bits: section.count("bits")? };
        let supported = matches!(own.group_size, 32 | 64 | 128) && matches!(own.bits, 2..=6 | 8);
        if supported {
            return Ok(own);
        }
        let what = format!("quantization with {} bits in groups of {}", own.bits, own.group_size);
        Err(Error::new(Code::BadModel, format!("{what} is not supported")))
    }
}

impl Linear {
    /// Takes `path.weight` of shape `[outputs, inputs]` (packed when `path.scales` exists) and
    /// `path.bias` if there is one.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or of another shape.
    pub fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (outputs, inputs): (i32, i32),
    ) -> Result<Self> {
        let weight = Matrix::load(weights, config, path, (outputs, inputs))?;
        let bias_name = format!("{path}.bias");
        let bias = weights.contains(&bias_name);
        let bias = bias.then(|| weights.take_shaped(&bias_name, &[outputs])).transpose()?;
        Ok(Self { weight, bias })
    }

    /// Applies the layer to the last axis of `x`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        match (&self.weight, &self.bias) {
            (Matrix::Dense { transposed, .. }, Some(bias)) => ops::add_matmul(bias, x, transposed),
            (weight, None) => weight.multiply(x),
            (weight, Some(bias)) => Ok(weight.multiply(x)?.add(bias)?),
        }
    }
}

impl Matrix {
    pub(super) fn load(
        weights: &mut Weights,
        config: &ModelConfig,
        path: &str,
        (outputs, inputs): (i32, i32),
    ) -> Result<Self> {
        let name = format!("{path}.weight");
        if !weights.contains(&format!("{path}.scales")) {
            let weight = weights.take_shaped(&name, &[outputs, inputs])?;
            let transposed = weight.transpose_axes(&[1, 0])?;
            return Ok(Self::Dense { weight, transposed });
        }
        Ok(Self::Packed(load_packed(weights, config, path, &[outputs, inputs])?))
    }

    /// `x W^T`.
    pub(super) fn multiply(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense { transposed, .. } => Ok(x.matmul(transposed)?),
            Self::Packed(matrix) => matrix.multiply(x),
        }
    }
}

/// Takes the packed matrix `path.weight`, or a stack of them, that unpacks to `shape`.
///
/// # Errors
/// `BadModel` when a tensor is missing, of another shape, or packed in a way that is not known.
pub(super) fn load_packed(
    weights: &mut Weights,
    config: &ModelConfig,
    path: &str,
    shape: &[i32],
) -> Result<Packed> {
    let quantization = Quantization::of_layer(config, path)?.ok_or_else(|| {
        let message = format!("`{path}` is packed, but the config has no `quantization`");
        Error::new(Code::BadModel, message)
    })?;
    let Quantization { group_size, bits } = quantization;
    let [stack @ .., inputs] = shape else { return Err(Error::new(Code::Internal, "no shape")) };
    let shaped = |columns: i32| [stack, &[columns]].concat();
    let groups = shaped(inputs / group_size);
    Ok(Packed {
        values: weights.take_shaped(&format!("{path}.weight"), &shaped(inputs * bits / 32))?,
        scales: weights.take_shaped(&format!("{path}.scales"), &groups)?,
        biases: Some(weights.take_shaped(&format!("{path}.biases"), &groups)?),
        format: PackedFormat { mode: PackedMode::Affine, group_size, bits },
    })
}
