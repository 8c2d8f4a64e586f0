//! Which tensors of a checkpoint a model runs, and what they take in memory.

use safetensors::Dtype;

use super::gemma4::{KEYS_AND_VALUES, NO_WEIGHTS, TOWERS};
use super::{Outline, families};
use crate::mlx::shards::{COMPUTED, KEPT_TYPES, READ_BYTES, TensorHeader};
use crate::model::ModelConfig;

/// A floating-point type that a model may compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    /// 32 bits.
    F32,
    /// bfloat16.
    Bf16,
    /// 16 bits.
    F16,
}

impl FloatType {
    /// Bytes of a number.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The name that the command line has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// Tensors together: bytes that stay whatever the model computes in, and numbers that are cast to that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weighed {
    /// Of packed matrices, and of the few tensors that keep their type.
    pub fixed_bytes: u64,
    /// Floating-point numbers that are cast.
    pub float_values: u64,
}

impl Weighed {
    /// Bytes where a number that is computed takes `value_bytes`.
    pub fn bytes(&self, value_bytes: u64) -> u64 {
        self.fixed_bytes.saturating_add(self.float_values.saturating_mul(value_bytes))
    }

    fn add(&mut self, tensor: &TensorHeader) {
        match is_cast(tensor) {
            true => self.float_values = self.float_values.saturating_add(tensor.values()),
            false => self.fixed_bytes = self.fixed_bytes.saturating_add(tensor.bytes()),
        }
    }
}

/// What the tensors that a model runs come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightTally {
    /// All of them.
    pub all: Weighed,
    /// Those of which a step reads a few rows: tables that are not the head too.
    pub gathered: Weighed,
    /// Those of experts, of which a token goes through a few.
    pub experts: Weighed,
    /// Numbers that were trained.
    pub parameters: u64,
    /// The type of the largest floating-point tensor.
    pub float_type: Option<FloatType>,
    /// Numbers of the largest floating-point tensor.
    pub largest_values: u64,
}

impl WeightTally {
    /// What the tensors of a checkpoint come to that the model of `outline` runs.
    pub fn of<'a>(outline: &Outline, tensors: impl Iterator<Item = &'a TensorHeader>) -> Self {
        let mut tally = Self::default();
        let (mut table, mut own_head) = (Weighed::default(), false);
        for tensor in tensors.filter(|tensor| outline.uses(&tensor.name)) {
            tally.all.add(tensor);
            tally.parameters = tally.parameters.saturating_add(trained(outline, tensor));
            match part_of(&tensor.name) {
                Part::Experts => tally.experts.add(tensor),
                Part::LayerTable => tally.gathered.add(tensor),
                Part::Table => table.add(tensor),
                Part::Head => own_head = true,
                Part::Other => {}
            }
            let larger = tensor.values() > tally.largest_values;
            if let Some(float_type) = float_type(tensor.dtype).filter(|_| larger) {
                (tally.float_type, tally.largest_values) = (Some(float_type), tensor.values());
            }
        }
        if own_head {
            tally.gathered.fixed_bytes += table.fixed_bytes;
            tally.gathered.float_values += table.float_values;
        }
        tally
    }

    /// What is known of a checkpoint by its types alone: how many numbers it holds of each, as the hub tells it
    /// (`U32` are the words of packed matrices).
    pub fn of_counts<'a>(outline: &Outline, counts: impl Iterator<Item = (&'a str, u64)>) -> Self {
        let mut tally = Self::default();
        for (dtype, values) in counts {
            match float_type_named(dtype) {
                Some(float_type) => tally.count_floats(outline, float_type, values),
                None => tally.count_words(outline, values.saturating_mul(word_bytes(dtype))),
            }
        }
        // The largest tensor that a model must have.
        let table = outline.vocabulary.saturating_mul(outline.hidden);
        tally.largest_values = tally.largest_values.min(table);
        tally
    }

    fn count_floats(&mut self, outline: &Outline, float_type: FloatType, values: u64) {
        self.all.float_values = self.all.float_values.saturating_add(values);
        if outline.packing.is_none() {
            self.parameters = self.parameters.saturating_add(values);
        }
        if values > self.largest_values {
            (self.largest_values, self.float_type) = (values, Some(float_type));
        }
    }

    fn count_words(&mut self, outline: &Outline, bytes: u64) {
        self.all.fixed_bytes = self.all.fixed_bytes.saturating_add(bytes);
        let bits = outline.packing.as_ref().map_or(8, |packing| packing.bits.max(1));
        self.parameters = self.parameters.saturating_add(bytes.saturating_mul(8) / bits);
    }

    /// What is known of a checkpoint by the bytes of its files alone: packed matrices where the config says that
    /// there are any, else numbers of two bytes.
    pub fn of_bytes(outline: &Outline, bytes: u64) -> Self {
        match outline.packing {
            Some(_) => Self::of_counts(outline, [("U8", bytes)].into_iter()),
            None => Self::of_counts(outline, [("BF16", bytes / 2)].into_iter()),
        }
    }

    /// Bytes that reading the weights takes beside them, when a number that is computed takes `value_bytes`: the
    /// source of what is cast, a part at a time, or a mark for each number of the largest tensor when it is held
    /// against NaN.
    pub fn beside_bytes(&self, value_bytes: u64) -> u64 {
        let stored = self.float_type.map_or(value_bytes, FloatType::bytes);
        let of_source = |target_bytes: u64| target_bytes / value_bytes.max(1) * stored;
        let cast = match stored == value_bytes {
            true => 0,
            false => {
                let part = READ_BYTES.min(self.all.float_values.saturating_mul(value_bytes));
                of_source(part).max(self.largest_values.saturating_mul(stored))
            }
        };
        cast.max(self.largest_values)
    }
}

/// What a tensor is part of, as far as it matters for what a step reads.
enum Part {
    Experts,
    Table,
    /// The table of inputs that every layer has of its own.
    LayerTable,
    Head,
    Other,
}

fn part_of(name: &str) -> Part {
    if name.contains("embed_tokens_per_layer") {
        Part::LayerTable
    } else if name.contains("embed_tokens.") {
        Part::Table
    } else if name.contains("lm_head.") {
        Part::Head
    } else if name.contains(".experts.") || name.contains("switch_mlp.") {
        Part::Experts
    } else {
        Part::Other
    }
}

fn is_cast(tensor: &TensorHeader) -> bool {
    let float = matches!(tensor.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16);
    float && !KEPT_TYPES.iter().any(|end| tensor.name.ends_with(end))
}

fn float_type(dtype: Dtype) -> Option<FloatType> {
    match dtype {
        Dtype::F32 | Dtype::F64 => Some(FloatType::F32),
        Dtype::BF16 => Some(FloatType::Bf16),
        Dtype::F16 => Some(FloatType::F16),
        _ => None,
    }
}

/// The same by the name that headers and the hub have for a type.
fn float_type_named(dtype: &str) -> Option<FloatType> {
    match dtype {
        "F64" | "F32" => Some(FloatType::F32),
        "BF16" => Some(FloatType::Bf16),
        "F16" => Some(FloatType::F16),
        _ => None,
    }
}

/// Bytes of a number of a type that is none of these.
fn word_bytes(dtype: &str) -> u64 {
    match dtype {
        "I64" | "U64" => 8,
        "U32" | "I32" => 4,
        "U16" | "I16" => 2,
        _ => 1,
    }
}

/// Numbers that a tensor stands for: packed ones are counted, their scales are not.
fn trained(outline: &Outline, tensor: &TensorHeader) -> u64 {
    const SCALES: [&str; 3] = [".scales", ".biases", "_scales"];
    if SCALES.iter().any(|end| tensor.name.ends_with(end)) {
        return 0;
    }
    match (&outline.packing, tensor.name.strip_suffix(".weight"), tensor.dtype) {
        (Some(packing), Some(path), Dtype::U32) => {
            tensor.bytes().saturating_mul(8) / packing.bits_of(&outline.config, path).max(1)
        }
        (Some(packing), _, Dtype::U8) => tensor.bytes().saturating_mul(8) / packing.bits.max(1),
        _ => tensor.values(),
    }
}

/// What makes the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// The embedding's table, whatever else the checkpoint holds.
    Embedding,
    /// `lm_head`.
    Own,
    /// `lm_head` where there is one.
    OwnIfPresent,
    /// As `tie_word_embeddings` says, else as this does.
    TiedByDefault(bool),
}

/// Whether a family runs a tensor of that name, given the text part of the config.
pub(super) type Rule = fn(&ModelConfig, &str) -> bool;

pub(super) fn is_used(outline: &Outline, name: &str) -> bool {
    let is_head = name.starts_with("lm_head.") || name.starts_with("language_model.lm_head.");
    let dropped = name.ends_with(COMPUTED) || (is_head && drops_head(outline));
    !dropped && (outline.family.uses)(&outline.config, name)
}

fn drops_head(outline: &Outline) -> bool {
    match outline.family.head {
        Head::Embedding => true,
        Head::Own | Head::OwnIfPresent => false,
        Head::TiedByDefault(default) => {
            outline.config.flag("tie_word_embeddings", default).unwrap_or(default)
        }
    }
}

/// Every tensor.
pub(super) fn all(_: &ModelConfig, _: &str) -> bool {
    true
}

/// No towers, no tables and ranges, no keys and values of layers that attend to another's.
pub(super) fn of_gemma4(config: &ModelConfig, name: &str) -> bool {
    let own = name.strip_prefix("model.").unwrap_or(name);
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_anothers = || {
        let owners = families::owners(config).unwrap_or(usize::MAX);
        layer_of(name).is_some_and(|layer| layer >= owners)
    };
    let tower = TOWERS.iter().any(|tower| own.starts_with(tower));
    let idle = tower || has(&NO_WEIGHTS) || (has(&KEYS_AND_VALUES) && is_anothers());
    !idle
}

/// Of the encoder its scalars; no tower, no tables, no head.
pub(super) fn of_diffusion_gemma(_: &ModelConfig, name: &str) -> bool {
    const ENCODER: &str = "model.encoder.language_model";
    const IDLE: [&str; 4] =
        ["model.encoder.vision_tower.", "model.encoder.embed_vision.", "rotary_emb", "lm_head."];
    let idle = IDLE.iter().any(|part| name.contains(part));
    !idle && (!name.starts_with(ENCODER) || name.ends_with(".layer_scalar"))
}

/// No prediction layer.
pub(super) fn of_glm4_moe_lite(config: &ModelConfig, name: &str) -> bool {
    let layers = config.count("num_hidden_layers").map_or(usize::MAX, |count| count as usize);
    layer_of(name).is_none_or(|layer| layer < layers)
}

/// No copies of embedding and head in the prediction layer.
pub(super) fn of_glm_moe_dsa(config: &ModelConfig, name: &str) -> bool {
    let layers = config.count("num_hidden_layers").map_or(usize::MAX, |count| count as usize);
    let copy = ["embed_tokens.", "shared_head.head."].iter().any(|part| name.contains(part));
    !(copy && layer_of(name) == Some(layers))
}

/// No tower and no layers that predict.
pub(super) fn of_qwen3_5(_: &ModelConfig, name: &str) -> bool {
    let tower = ["vision_tower", "model.visual"].iter().any(|tower| name.starts_with(tower));
    !tower && !name.contains("mtp.")
}

/// The layer that a tensor is of.
fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}
