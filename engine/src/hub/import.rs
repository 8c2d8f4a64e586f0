//! Importing a GGUF file: from one file to a model directory that our loader and mlx-lm read.
//!
//! The directory is written beside its final place as `<out>.partial`, flushed to disk and renamed,
//! so `<out>` is either absent, what it was before, or complete. [`MARKER_FILE`] marks it as ours:
//! only a directory with that mark, and nothing else in it than an import writes, is ever replaced.
//!
//! Weights are converted one tensor at a time: memory peaks at the largest tensor in its target
//! dtype, next to the header.

mod replace;
#[cfg(test)]
mod tests;
mod weights;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use self::replace::check_replaceable;
use crate::error::{Error, Result};
use crate::hub::gguf::plan::{ROPE_FACTORS, plan};
use crate::hub::gguf::tokenizer::{ConvertedTokenizer, convert};
use crate::hub::gguf::{Header, ModelPlan, bad_import, read_header};
use crate::hub::staging::Staging;

/// The file that marks a directory as an import and says of what.
pub const MARKER_FILE: &str = "slipstream_import.json";

/// The version of [`MARKER_FILE`]'s format.
const MARKER_VERSION: u32 = 1;
/// Values of [`ROPE_FACTORS`]: half a head.
const ROPE_FACTORS_MAX: u64 = 1 << 16;

/// The dtype that weights are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightDtype {
    /// 32-bit floats: exact for every packing.
    F32,
    /// bfloat16, rounded to nearest even.
    Bf16,
    /// 16-bit floats, rounded to nearest even; values beyond their range are an error.
    F16,
}

impl WeightDtype {
    /// Bytes per value.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// As safetensors files say it.
    pub(super) fn stored(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
        }
    }

    /// The name that `config.json` uses.
    fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }
}

impl FromStr for WeightDtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            other => Err(Error::invalid("dtype", format!("unknown weight dtype `{other}`"))
                .with_hint("known dtypes: f32, bf16, f16")),
        }
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportProgress {
    /// The header is being read and the tokenizer converted.
    Reading,
    /// Weights are being written.
    Weights {
        /// Bytes of weights written.
        done_bytes: u64,
        /// Bytes of weights to write in all.
        total_bytes: u64,
    },
    /// Everything is written and is being flushed to disk.
    Flushing,
}

/// What an import made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The model directory.
    pub directory: PathBuf,
    /// The `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// Weights written.
    pub tensors: usize,
    /// Their bytes.
    pub weight_bytes: u64,
    /// Their dtype.
    pub dtype: WeightDtype,
    /// Tokens in the vocabulary.
    pub vocabulary_tokens: usize,
    /// Whether the file had a chat template.
    pub has_chat_template: bool,
}

/// Imports the GGUF file `file` as the model directory `out`, with weights in `dtype`.
///
/// # Errors
/// `BadImport` if the file is truncated, foreign, hostile or of a kind that we do not know;
/// `InvalidRequest` (field `out`) if `out` is taken by something that is not an import of ours; `Io`
/// if reading or writing fails. In all cases `out` is left as it was.
pub fn import(
    file: &Path,
    out: &Path,
    dtype: WeightDtype,
    progress: &mut dyn FnMut(ImportProgress),
) -> Result<Imported> {
    import_file(file, out, dtype, progress)
        .map_err(|error| error.while_doing(format_args!("failed to import `{}`", file.display())))
}

fn import_file(
    path: &Path,
    out: &Path,
    dtype: WeightDtype,
    progress: &mut dyn FnMut(ImportProgress),
) -> Result<Imported> {
    check_replaceable(out)?;
    progress(ImportProgress::Reading);
    let mut file = File::open(path)?;
    let header = read_header(&file, file.metadata()?.len())?;
    let rope_factors = read_rope_factors(&mut file, &header)?;
    let plan = plan(&header, rope_factors.as_deref())?;
    let tokenizer = convert(&header.metadata)?;
    check_vocabulary(&plan, &tokenizer)?;

    let staging = Staging::create(out, check_replaceable)?;
    write_descriptions(&staging, path, &plan, &tokenizer, dtype)?;
    let weight_bytes = weights::write(&staging, &mut file, &plan.tensors, dtype, progress)?;
    progress(ImportProgress::Flushing);
    staging.commit()?;
    Ok(Imported {
        directory: out.to_owned(),
        model_type: plan.model_type,
        tensors: plan.tensors.len(),
        weight_bytes,
        dtype,
        vocabulary_tokens: tokenizer.tokens,
        has_chat_template: tokenizer.config.contains_key("chat_template"),
    })
}

fn read_rope_factors(file: &mut File, header: &Header) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = header.tensors.iter().find(|tensor| tensor.name == ROPE_FACTORS) else {
        return Ok(None);
    };
    let values = tensor.rows().saturating_mul(tensor.row_values());
    if values > ROPE_FACTORS_MAX {
        return Err(bad_import(format!(
            "tensor `{ROPE_FACTORS}` has {values} values; at most {ROPE_FACTORS_MAX} make sense"
        )));
    }
    weights::read_values(file, tensor).map(Some)
}

fn check_vocabulary(plan: &ModelPlan, tokenizer: &ConvertedTokenizer) -> Result<()> {
    let rows = plan.config.get("vocab_size").and_then(Value::as_u64);
    if rows == Some(tokenizer.tokens as u64) {
        return Ok(());
    }
    Err(bad_import(format!(
        "the vocabulary has {} tokens, but the embedding has {} rows",
        tokenizer.tokens,
        rows.unwrap_or(0)
    )))
}

fn write_descriptions(
    staging: &Staging,
    source: &Path,
    plan: &ModelPlan,
    tokenizer: &ConvertedTokenizer,
    dtype: WeightDtype,
) -> Result<()> {
    let mut config = plan.config.clone();
    config.insert("torch_dtype".to_owned(), dtype.torch_name().into());
    config.extend(token_ids(tokenizer));
    let mut tokenizer_config = tokenizer.config.clone();
    let context = plan.config.get("max_position_embeddings").cloned().unwrap_or_default();
    tokenizer_config.insert("model_max_length".to_owned(), context);
    let marker = json!({
        "version": MARKER_VERSION,
        "source": source.file_name().map(|name| name.to_string_lossy()),
        "dtype": dtype.to_string(),
    });
    staging.write_json("config.json", &Value::Object(config))?;
    staging.write_json("generation_config.json", &Value::Object(token_ids(tokenizer)))?;
    staging.write_json("tokenizer_config.json", &Value::Object(tokenizer_config))?;
    staging.write_json(MARKER_FILE, &marker)?;
    staging.write("tokenizer.json", &tokenizer.tokenizer_json)
}

/// The ids that both `config.json` and `generation_config.json` state.
fn token_ids(tokenizer: &ConvertedTokenizer) -> Map<String, Value> {
    let special = &tokenizer.special;
    let eos = match special.eos.as_slice() {
        [only] => (*only).into(),
        several => json!(several),
    };
    [
        ("bos_token_id", special.bos.into()),
        ("eos_token_id", eos),
        ("pad_token_id", special.pad.into()),
    ]
    .into_iter()
    .filter(|(_, id): &(&str, Value)| !id.is_null())
    .map(|(key, id)| (key.to_owned(), id))
    .collect()
}
