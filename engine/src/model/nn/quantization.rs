//! How a checkpoint packs its matrices, read as mlx-lm 0.32.2 does (`utils.load_model`).
//!
//! Words: the **general** format is what `quantization` says at its top; a layer that it lists by its
//! path is **named** there. A layer that is not named is dense without scales, and with them packed as
//! its shapes tell, whatever the general format is.

use serde_json::Value;

use crate::error::{Code, Error, Result};
use crate::mlx::{Dtype, Packed, PackedFormat, PackedMode, Weights};
use crate::model::ModelConfig;

/// Takes the packed matrix `path.weight` that unpacks to `shape`, `[out, in]` or `[E, out, in]`; `None`
/// where the checkpoint holds it dense.
///
/// # Errors
/// `BadModel` when a tensor is missing, of another shape, or packed in a way that is not known.
pub(super) fn load_packed(
    weights: &mut Weights,
    config: &ModelConfig,
    path: &str,
    shape: &[i32],
) -> Result<Option<Packed>> {
    let Some((inputs, stack)) = shape.split_last() else { return Ok(None) };
    let Some(format) = format_of(weights, config, path, *inputs)? else { return Ok(None) };
    let PackedFormat { group_size, bits, mode } = format;
    let shaped = |columns: i32| [stack, &[columns]].concat();
    let groups = shaped(inputs / group_size);
    let mut take =
        |part: &str, shape: &[i32]| weights.take_shaped(&format!("{path}.{part}"), shape);
    let values = take("weight", &shaped(inputs * bits / 32))?;
    let scales = take("scales", &groups)?;
    let biased = mode == PackedMode::Affine;
    let biases = biased.then(|| take("biases", &groups)).transpose()?;
    Ok(Some(Packed { values, scales, biases, format }))
}

/// In which form the checkpoint holds the layer `path`.
fn format_of(
    weights: &Weights,
    config: &ModelConfig,
    path: &str,
    inputs: i32,
) -> Result<Option<PackedFormat>> {
    let scheme = scheme(config)?;
    let global = format!("{path}.global_scale");
    if weights.contains(&global) {
        return Err(refusal(format!("tensor `{global}` is not supported: a scale of all groups")));
    }
    match scheme.as_ref().map(|scheme| scheme.named(path)).transpose()?.flatten() {
        Some(Named::Dense) => return Ok(None),
        Some(Named::Packed(format)) => return Ok(Some(format)),
        None => {}
    }
    if !weights.contains(&format!("{path}.scales")) {
        return Ok(None);
    }
    if scheme.is_none() {
        return Err(refusal(format!("`{path}` is packed, but the config has no `quantization`")));
    }
    inferred(weights, path, inputs).map(Some)
}

/// What the shapes of values and scales tell, and the scales' type: only affine ones are floats.
fn inferred(weights: &Weights, path: &str, inputs: i32) -> Result<PackedFormat> {
    let columns = |part: &str| {
        let array = weights.get(&format!("{path}.{part}"))?;
        Ok::<_, Error>((array.shape().last().copied().unwrap_or(0).max(1), array.dtype()))
    };
    let ((words, _), (groups, dtype)) = (columns("weight")?, columns("scales")?);
    let (group_size, bits) = (inputs / groups, words * 32 / inputs.max(1));
    let fits = |mode: &PackedMode| {
        let format = PackedFormat { mode: *mode, group_size, bits };
        (dtype == Dtype::Uint8) == (*mode != PackedMode::Affine) && is_known(format)
    };
    let mode = PackedMode::ALL.into_iter().find(fits);
    mode.map(|mode| PackedFormat { mode, group_size, bits }).ok_or_else(|| {
        let what = format!("{bits} bits in groups of {group_size} with {dtype:?} scales");
        refusal(format!("`{path}` is packed as {what}, which is not supported"))
    })
}

/// A checkpoint's scheme.
struct Scheme {
    fields: ModelConfig,
    general: PackedFormat,
}

/// What a scheme says of a layer that it names.
enum Named {
    Dense,
    Packed(PackedFormat),
}

/// `quantization`, else `quantization_config`, which names a method where MLX did not write it.
fn scheme(config: &ModelConfig) -> Result<Option<Scheme>> {
    if config.flag("quantize_activations", false)? {
        return Err(config.wrong("quantize_activations", &true.into()));
    }
    if let Some(fields) = config.section("quantization")? {
        let general = general_format(&fields)?;
        return Ok(Some(Scheme { fields, general }));
    }
    let Some(fields) = config.section("quantization_config")? else { return Ok(None) };
    let general = match fields.get("quant_method") {
        Some(method) => format_of_method(&fields, method)?,
        None => general_format(&fields)?,
    };
    Ok(Some(Scheme { fields, general }))
}

fn general_format(fields: &ModelConfig) -> Result<PackedFormat> {
    let (group_size, bits) = (fields.count("group_size")?, fields.count("bits")?);
    known(PackedFormat { mode: mode(fields)?, group_size, bits })
}

fn format_of_method(fields: &ModelConfig, method: &Value) -> Result<PackedFormat> {
    match method.as_str() {
        Some("mxfp4") => Ok(default_format(PackedMode::Mxfp4)),
        Some("mxfp8") => Ok(default_format(PackedMode::Mxfp8)),
        _ => Err(fields.wrong("quant_method", method).with_hint("supported: mxfp4, mxfp8")),
    }
}

impl Scheme {
    /// A layer's own entry: on or off, or a format of its own, in which what is missing is not the
    /// general format's but its mode's.
    fn named(&self, path: &str) -> Result<Option<Named>> {
        match self.fields.get(path) {
            None => Ok(None),
            Some(Value::Bool(false)) => Ok(Some(Named::Dense)),
            Some(Value::Bool(true)) => Ok(Some(Named::Packed(self.general))),
            Some(Value::Object(_)) => {
                let fields = self.fields.section(path)?;
                let format = fields.map(|fields| own_format(&fields)).transpose();
                let format = format.map_err(|error| error.while_doing(format_args!("`{path}`")))?;
                Ok(format.map(Named::Packed))
            }
            Some(other) => Err(self.fields.wrong(path, other)),
        }
    }
}

fn own_format(fields: &ModelConfig) -> Result<PackedFormat> {
    for name in ["quantize_input", "global_scale"] {
        if fields.flag(name, false)? {
            return Err(fields.wrong(name, &true.into()));
        }
    }
    let default = default_format(mode(fields)?);
    let group_size = fields.optional_count("group_size")?.unwrap_or(default.group_size);
    let bits = fields.optional_count("bits")?.unwrap_or(default.bits);
    known(PackedFormat { group_size, bits, ..default })
}

fn mode(fields: &ModelConfig) -> Result<PackedMode> {
    let Some(value) = fields.get("mode") else { return Ok(PackedMode::Affine) };
    let known = PackedMode::ALL.into_iter().find(|mode| *value == mode.name());
    known.ok_or_else(|| {
        let names = PackedMode::ALL.map(PackedMode::name).join(", ");
        fields.wrong("mode", value).with_hint(format!("supported: {names}"))
    })
}

fn default_format(mode: PackedMode) -> PackedFormat {
    let (group_size, bits) = match mode {
        PackedMode::Affine => (64, 4),
        PackedMode::Mxfp4 => (32, 4),
        PackedMode::Mxfp8 => (32, 8),
        PackedMode::Nvfp4 => (16, 4),
    };
    PackedFormat { mode, group_size, bits }
}

fn is_known(format: PackedFormat) -> bool {
    match format.mode {
        PackedMode::Affine => {
            matches!(format.group_size, 32 | 64 | 128) && matches!(format.bits, 2..=6 | 8)
        }
        mode => format == default_format(mode),
    }
}

fn known(format: PackedFormat) -> Result<PackedFormat> {
    match is_known(format) {
        true => Ok(format),
        false => Err(refusal(format!("quantization to {format} is not supported"))),
    }
}

fn refusal(message: String) -> Error {
    Error::new(Code::BadModel, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mlx::{Array, Device, ops};

    const INPUTS: i32 = 128;

    fn format(mode: PackedMode, bits: i32, group_size: i32) -> PackedFormat {
        PackedFormat { mode, group_size, bits }
    }

    fn affine(bits: i32, group_size: i32) -> PackedFormat {
        format(PackedMode::Affine, bits, group_size)
    }

    /// A layer `x` of 4 outputs packed so.
    fn packed(format: PackedFormat) -> Weights {
        let PackedFormat { mode, group_size, bits } = format;
        let array = |columns: i32, dtype| ops::zeros(&[4, columns], dtype).unwrap();
        let (words, groups) = (INPUTS * bits / 32, INPUTS / group_size);
        let values = ("x.weight".to_owned(), array(words, Dtype::Uint32));
        let of = |name: &str, dtype| (name.to_owned(), array(groups, dtype));
        match mode {
            PackedMode::Affine => Weights::of([
                values,
                of("x.scales", Dtype::Bfloat16),
                of("x.biases", Dtype::Bfloat16),
            ]),
            _ => Weights::of([values, of("x.scales", Dtype::Uint8)]),
        }
    }

    fn dense() -> Weights {
        Weights::of([("x.weight".to_owned(), Array::from_slice(&[0.0_f32; 512], &[4, INPUTS]))])
    }

    fn of(mut weights: Weights, fields: &Value) -> Result<Option<PackedFormat>> {
        let config = ModelConfig::from_fields(fields.as_object().unwrap().clone());
        let packed = load_packed(&mut weights, &config, "x", &[4, INPUTS])?;
        Ok(packed.map(|packed| packed.format))
    }

    fn every_format() -> impl Iterator<Item = PackedFormat> {
        let bits = [2, 3, 4, 5, 6, 8];
        let affine = bits.into_iter().flat_map(|bits| [32, 64, 128].map(|size| affine(bits, size)));
        let others = [PackedMode::Mxfp4, PackedMode::Mxfp8, PackedMode::Nvfp4];
        affine.chain(others.map(default_format))
    }

    #[test]
    fn a_layer_that_is_not_named_is_packed_as_its_shapes_tell() {
        Device::cpu();
        let general = json!({ "quantization": { "group_size": 64, "bits": 4 } });
        for format in every_format() {
            assert_eq!(of(packed(format), &general).unwrap(), Some(format), "{format}");
        }
        assert_eq!(of(dense(), &general).unwrap(), None);
        assert_eq!(of(dense(), &json!({})).unwrap(), None);
    }

    #[test]
    fn a_named_layer_is_packed_as_its_entry_says() {
        Device::cpu();
        let mxfp8 = default_format(PackedMode::Mxfp8);
        let cases = [
            (json!({ "group_size": 32, "bits": 6, "mode": "affine" }), affine(6, 32)),
            // What an entry leaves out is its mode's, and the mode affine.
            (json!({}), affine(4, 64)),
            (json!({ "bits": 8 }), affine(8, 64)),
            (json!({ "mode": "nvfp4" }), default_format(PackedMode::Nvfp4)),
            (json!(true), mxfp8),
        ];
        for (entry, format) in cases {
            let fields = json!({ "quantization": {
                "group_size": 32, "bits": 8, "mode": "mxfp8", "x": entry
            } });
            assert_eq!(of(packed(format), &fields).unwrap(), Some(format), "{entry}");
        }
        let off = json!({ "quantization": { "group_size": 32, "bits": 4, "x": false } });
        assert_eq!(of(dense(), &off).unwrap(), None);
        // It does not fit then, and is told of by name where it is taken.
        assert_eq!(of(packed(affine(4, 32)), &off).unwrap(), None);
    }

    #[test]
    fn quantization_config_is_read_where_quantization_is_missing() {
        Device::cpu();
        for mode in [PackedMode::Mxfp4, PackedMode::Mxfp8] {
            let fields = json!({ "quantization_config": {
                "quant_method": mode.name(), "modules_to_not_convert": ["lm_head"]
            } });
            assert_eq!(
                of(packed(default_format(mode)), &fields).unwrap(),
                Some(default_format(mode))
            );
        }
        let own =
            json!({ "quantization_config": { "group_size": 32, "bits": 4, "x": { "bits": 3 } } });
        assert_eq!(of(packed(affine(3, 64)), &own).unwrap(), Some(affine(3, 64)));
        let both = json!({
            "quantization": { "group_size": 32, "bits": 4 },
            "quantization_config": { "quant_method": "awq" },
        });
        assert_eq!(of(packed(affine(4, 32)), &both).unwrap(), Some(affine(4, 32)));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        Device::cpu();
        let general = |fields: Value| json!({ "quantization": fields });
        let named = |entry: Value| general(json!({ "group_size": 32, "bits": 4, "x": entry }));
        let cases = [
            (general(json!({ "group_size": 32, "bits": 4, "mode": "turbo" })), "turbo"),
            (general(json!({ "group_size": 32, "bits": 7 })), "7 bits"),
            (general(json!({ "group_size": 48, "bits": 4 })), "groups of 48"),
            (general(json!({ "group_size": 64, "bits": 4, "mode": "mxfp4" })), "mxfp4"),
            (general(json!({ "bits": 4 })), "group_size"),
            (general(json!("int4")), "quantization"),
            (named(json!({ "bits": 1 })), "`x`: quantization to affine with 1 bits"),
            (named(json!({ "mode": "nf4" })), "nf4"),
            (named(json!("int4")), "int4"),
            (named(json!({ "mode": "mxfp8", "quantize_input": true })), "quantize_input"),
            // The tensors are packed in 4 bits.
            (named(json!({ "bits": 8, "group_size": 32 })), "x.weight"),
            (named(json!({ "bits": 4, "group_size": 64 })), "x.scales"),
            (json!({ "quantization_config": { "quant_method": "gptq" } }), "gptq"),
            (json!({}), "`x` is packed"),
            (json!({ "quantize_activations": true }), "quantize_activations"),
        ];
        for (fields, word) in cases {
            let error = of(packed(affine(4, 32)), &fields).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(word), "{fields}: {error}");
        }
        let mut global = packed(default_format(PackedMode::Nvfp4));
        global.put("x.global_scale".to_owned(), Array::from_f32(1.0));
        let error = of(global, &named(json!(null))).unwrap_err();
        assert!(error.message().contains("x.global_scale"), "{error}");
        let missing = of(dense(), &named(json!({ "bits": 4 }))).unwrap_err();
        assert!(missing.message().contains("x.weight"), "{missing}");
        let mut odd = packed(affine(4, 32));
        odd.put("x.scales".to_owned(), ops::zeros(&[4, 5], Dtype::Bfloat16).unwrap());
        let error = of(odd, &named(json!(null))).unwrap_err();
        assert!(error.message().contains("groups of 25"), "{error}");
    }
}
