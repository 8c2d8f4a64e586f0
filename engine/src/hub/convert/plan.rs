//! The plan of a conversion: which tensors the new checkpoint has, how each is made, and its config. Plain
//! data; no number has been read.

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::ConvertOptions;
use super::conventions::Conventions;
use super::draft::{Draft, Drafts};
use super::source::Source;
use crate::error::{Code, Error, Result};
use crate::hub::WeightDtype;
use crate::mlx::{PackedFormat, PackedMode};
use crate::model::{Family, ModelConfig};

/// Bits of the modules that are kept finer than others, and the size of their groups, whatever was asked for
/// (`quant_predicate` of mlx-lm 0.32.2's models).
const FINER: PackedFormat = PackedFormat { mode: PackedMode::Affine, group_size: 64, bits: 8 };
/// What the names of tensors end in that old checkpoints hold and every model computes itself.
const COMPUTED: &str = "rotary_emb.inv_freq";
/// Ends of the names of what only packed checkpoints hold, in MLX's form and others.
const PACKED_ENDS: [&str; 6] =
    [".scales", ".weight_scale", ".weight_scale_inv", ".weight_packed", ".qweight", ".absmax"];
const WEIGHT: &str = ".weight";

/// A conversion.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The family.
    pub(super) model_type: &'static str,
    /// The new `config.json`.
    pub(super) config: Map<String, Value>,
    /// The tensors, in the order in which they are read.
    pub(super) tensors: Vec<TensorPlan>,
}

/// How a tensor is made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorPlan {
    /// Its name.
    pub(super) name: String,
    /// What it is made of.
    pub(super) draft: Draft,
    /// What its numbers are cast to.
    pub(super) cast: Option<WeightDtype>,
    /// How it is packed then.
    pub(super) format: Option<PackedFormat>,
}

/// A tensor in the new files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

/// Plans the conversion of `source`.
///
/// # Errors
/// `BadModel` when the checkpoint is of an unknown family, packed already, or a tensor is missing or does not
/// fit; `Unsupported` when its family cannot be converted.
pub(super) fn plan(source: &Source, options: &ConvertOptions) -> Result<Plan> {
    let config = ModelConfig::from_fields(source.config.clone());
    let model_type = Family::of_config(&config)?.model_type;
    let conventions = Conventions::of(model_type)?;
    let packed_before = packed_before(&config, model_type)?;
    let text = config.text_part()?;
    text.check_bounds()?;
    let mut drafts = Drafts::of(&source.tensors);
    drafts.discard(|name| name.ends_with(COMPUTED));
    (conventions.arrange)(&text, &mut drafts)?;
    check_types(&drafts, packed_before.is_some())?;
    let choice = Choice {
        conventions,
        general: options.format(),
        dtype: options.dtype().or_else(|| dtype_of(&source.config)),
    };
    let mut tensors: Vec<_> =
        drafts.iter().map(|(name, draft)| choice.tensor(name, draft)).collect();
    // Read as they lie: disks like that, and parts of one matrix come together.
    tensors.sort_by_key(|tensor| tensor.draft.source());
    let quantization = choice.quantization(&tensors, packed_before);
    Ok(Plan { model_type, config: new_config(&source.config, &quantization), tensors })
}

/// In which form the experts of gpt-oss are published, which they keep; nothing else may be packed.
fn packed_before(config: &ModelConfig, model_type: &str) -> Result<Option<PackedFormat>> {
    let mut sections = vec![config.clone()];
    sections.extend(config.section("text_config")?);
    for section in &sections {
        for name in ["quantization", "quantization_config"] {
            let Some(fields) = section.get(name) else { continue };
            let by = fields.get("quant_method").and_then(Value::as_str);
            if (model_type, name, by) == ("gpt_oss", "quantization_config", Some("mxfp4")) {
                let format = PackedFormat { mode: PackedMode::Mxfp4, group_size: 32, bits: 4 };
                return Ok(Some(format));
            }
            return Err(quantized_already(&match by {
                Some(method) => format!("its config has a `{name}` by `{method}`"),
                None => format!("its config has a `{name}`"),
            }));
        }
    }
    Ok(None)
}

fn quantized_already(how: &str) -> Error {
    Error::new(Code::BadModel, format!("the checkpoint is quantized already: {how}"))
        .with_hint("convert the one that it was made of")
}

/// Holds that everything is floats, but for experts that were `packed` before.
fn check_types(drafts: &Drafts, packed: bool) -> Result<()> {
    for (name, draft) in drafts.iter() {
        let expert = packed && name.contains(".experts.");
        match draft.dtype {
            Dtype::U8 | Dtype::U32 if expert => {}
            _ if !expert && PACKED_ENDS.iter().any(|end| name.ends_with(end)) => {
                return Err(quantized_already(&format!("it has a tensor `{name}`")));
            }
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => {}
            other => {
                let message = format!("tensor `{name}` is stored as {other:?}, which is no float");
                return Err(Error::new(Code::BadModel, message)
                    .with_hint("only checkpoints in F32, F16 or BF16 can be converted"));
            }
        }
    }
    Ok(())
}

/// The type that a config names, in the places where mlx-lm 0.32.2's `convert` looks for it.
fn dtype_of(config: &Map<String, Value>) -> Option<WeightDtype> {
    let named = |value: Option<&Value>| value.filter(|value| !value.is_null()).cloned();
    let in_text = || named(config.get("text_config").and_then(|text| text.get("dtype")));
    match named(config.get("torch_dtype")).or_else(in_text)?.as_str()? {
        "float32" => Some(WeightDtype::F32),
        "float16" => Some(WeightDtype::F16),
        "bfloat16" => Some(WeightDtype::Bf16),
        _ => None,
    }
}

/// What is chosen for all tensors.
struct Choice {
    conventions: Conventions,
    general: PackedFormat,
    dtype: Option<WeightDtype>,
}

impl Choice {
    fn tensor(&self, name: &str, draft: &Draft) -> TensorPlan {
        let kept = self.conventions.kept_types.iter().any(|end| name.ends_with(end));
        let cast = self
            .dtype
            .filter(|dtype| is_float(draft.dtype) && !kept && dtype.stored() != draft.dtype);
        TensorPlan {
            name: name.to_owned(),
            draft: draft.clone(),
            cast,
            format: self.format(name, draft),
        }
    }

    /// How a tensor is packed: only the matrices of layers are, and of these only those whose rows divide into
    /// groups.
    fn format(&self, name: &str, draft: &Draft) -> Option<PackedFormat> {
        let path = name.strip_suffix(WEIGHT)?;
        let Conventions { finer, dense, .. } = self.conventions;
        let is_matrix = draft.shape.len() > 1 && is_float(draft.dtype);
        if !is_matrix || dense.iter().any(|end| name.ends_with(end)) {
            return None;
        }
        let divides = |format: &PackedFormat| {
            draft.columns().is_multiple_of(format.group_size.unsigned_abs() as usize)
        };
        let general = Some(self.general).filter(divides)?;
        match finer.iter().any(|end| path.ends_with(end)) {
            true => Some(FINER).filter(divides),
            false => Some(general),
        }
    }

    /// What the new config says of it: the general format, and the modules that have another one.
    fn quantization(
        &self,
        tensors: &[TensorPlan],
        before: Option<PackedFormat>,
    ) -> Map<String, Value> {
        let mut fields = full_entry(before.unwrap_or(self.general));
        let finer = |path: &str| self.conventions.finer.iter().any(|end| path.ends_with(end));
        for tensor in tensors {
            let (Some(path), Some(format)) = (tensor.name.strip_suffix(WEIGHT), tensor.format)
            else {
                continue;
            };
            let PackedFormat { group_size, bits, .. } = format;
            if finer(path) {
                fields.insert(path.to_owned(), json!({ "group_size": group_size, "bits": bits }));
            } else if before.is_some() {
                fields.insert(path.to_owned(), Value::Object(full_entry(format)));
            }
        }
        fields
    }
}

fn full_entry(format: PackedFormat) -> Map<String, Value> {
    let PackedFormat { mode, group_size, bits } = format;
    let fields =
        [("group_size", group_size.into()), ("bits", bits.into()), ("mode", mode.name().into())];
    fields.map(|(name, value): (_, Value)| (name.to_owned(), value)).into_iter().collect()
}

/// The fields in their order, without those of what is not converted, and with what is said of packing under
/// both names by which readers know it.
fn new_config(
    config: &Map<String, Value>,
    quantization: &Map<String, Value>,
) -> Map<String, Value> {
    let mut fields = config.clone();
    for name in ["_name_or_path", "vision_config"] {
        fields.remove(name);
    }
    for name in ["quantization", "quantization_config"] {
        fields.insert(name.to_owned(), Value::Object(quantization.clone()));
    }
    fields.sort_keys();
    fields
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

impl TensorPlan {
    /// The tensors in the new files: one, or packed values, scales and biases.
    pub(super) fn outputs(&self) -> Vec<Output> {
        let dtype = self.cast.map_or(self.draft.dtype, WeightDtype::stored);
        let shape = &self.draft.shape;
        let (Some(format), Some((columns, stack))) = (self.format, shape.split_last()) else {
            return vec![Output { name: self.name.clone(), dtype, shape: shape.clone() }];
        };
        let [group_size, bits] =
            [format.group_size, format.bits].map(|count| count.unsigned_abs() as usize);
        let path = self.name.strip_suffix(WEIGHT).unwrap_or(&self.name);
        let part = |end: &str, dtype, columns| Output {
            name: format!("{path}.{end}"),
            dtype,
            shape: [stack, &[columns]].concat(),
        };
        let groups = columns / group_size;
        vec![
            part("weight", Dtype::U32, columns * bits / 32),
            part("scales", dtype, groups),
            part("biases", dtype, groups),
        ]
    }
}

impl Output {
    /// Bytes of its numbers.
    pub(super) fn bytes(&self) -> u64 {
        let values = self.shape.iter().map(|side| *side as u64).product::<u64>();
        values * super::source::value_bytes(self.dtype) as u64
    }
}
