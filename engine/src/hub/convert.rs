//! Quantizing a checkpoint: from a model directory in Hugging Face's layout or MLX's to one whose matrices are
//! packed in MLX's affine mode, which our loader and mlx-lm both read.
//!
//! The result has the tensors of `mlx_lm.convert -q` in mlx-lm 0.32.2, byte for byte: the same modules are
//! packed, under the same names. What becomes of each tensor is decided from the headers alone ([`plan`]), and
//! held against the model that loads it; then the weights are read and written piece by piece.
//!
//! The directory is written beside its final place as `<out>.partial`, flushed to disk and renamed.

mod conventions;
mod draft;
mod files;
mod plan;
mod shards;
mod source;
#[cfg(test)]
mod tests;
mod writer;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value;

use self::files::Copied;
use self::plan::{Output, Plan};
use self::shards::Shard;
use self::source::Source;
use super::staging::Staging;
use super::{WeightDtype, io_error};
use crate::error::{Code, Error, Result};
use crate::limits::SHARD_BYTES_MAX;
use crate::mlx::shards::INDEX_FILE;
use crate::mlx::{Dtype, PackedFormat, PackedMode, Weights, memory, ops};
use crate::model::{self, ModelConfig};

/// How to convert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvertOptions {
    format: PackedFormat,
    dtype: Option<WeightDtype>,
}

impl ConvertOptions {
    /// Matrices packed in `bits`, in groups of `group_size` numbers; all floats that remain in `dtype`, where
    /// that is given, else in the type that the checkpoint's config names, or as they are.
    ///
    /// # Errors
    /// `InvalidRequest` naming what is out of range.
    pub fn new(bits: i32, group_size: i32, dtype: Option<WeightDtype>) -> Result<Self> {
        if !matches!(bits, 4 | 8) {
            return Err(Error::invalid("bits", format!("cannot pack in {bits} bits"))
                .with_hint("choose 4 or 8"));
        }
        if !matches!(group_size, 32 | 64 | 128) {
            let message = format!("cannot pack in groups of {group_size}");
            return Err(Error::invalid("group_size", message).with_hint("choose 32, 64 or 128"));
        }
        let mode = PackedMode::Affine;
        Ok(Self { format: PackedFormat { mode, group_size, bits }, dtype })
    }

    fn format(&self) -> PackedFormat {
        self.format
    }

    fn dtype(&self) -> Option<WeightDtype> {
        self.dtype
    }
}

/// How far a conversion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvertProgress {
    /// Bytes of the checkpoint's weights that are converted.
    pub done_bytes: u64,
    /// Bytes of all of them.
    pub total_bytes: u64,
}

/// Hears of progress, and says whether to go on.
pub type Progress<'a> = dyn FnMut(ConvertProgress) -> ControlFlow<()> + 'a;

/// What a conversion made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The model directory.
    pub directory: PathBuf,
    /// The `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// Tensors written.
    pub tensors: usize,
    /// Matrices that were packed.
    pub packed_matrices: usize,
    /// Bytes of its files of weights.
    pub weight_bytes: u64,
}

/// Converts the checkpoint in `source` to the model directory `out`.
///
/// # Errors
/// `BadModel` naming what is wrong with the checkpoint: an unknown family, a tensor that is missing or left over,
/// packed already, or not finite; `Unsupported` for a family that is not converted; `InvalidRequest` (field `out`)
/// if `out` is taken; `Io` if the disk has no room, or reading or writing fails; `ShuttingDown` if `progress`
/// stopped it. In all cases nothing is left behind.
pub fn convert(
    source: &Path,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut Progress<'_>,
) -> Result<Converted> {
    convert_in_shards(source, out, options, SHARD_BYTES_MAX, progress).map_err(|error| {
        error.while_doing(format_args!("failed to convert `{}`", source.display()))
    })
}

fn convert_in_shards(
    directory: &Path,
    out: &Path,
    options: &ConvertOptions,
    shard_bytes_max: u64,
    progress: &mut Progress<'_>,
) -> Result<Converted> {
    check_free(out)?;
    let source = Source::read(directory)?;
    let plan = plan::plan(&source, options)?;
    check_loads(&plan)?;
    let shards = shards::lay_out(&plan, shard_bytes_max)?;
    let copied = files::list(directory)?;
    let staging = Staging::create(out, check_free)?;
    check_room(&staging, &shards, &copied)?;
    staging.write_json("config.json", &Value::Object(plan.config.clone()))?;
    staging.write_json(INDEX_FILE, &shards::index(&plan, &shards))?;
    files::copy(directory, &copied, &staging)?;
    writer::write(&staging, &source, &plan, &shards, progress)?;
    memory::clear_cache()?;
    staging.commit()?;
    Ok(Converted {
        directory: out.to_owned(),
        model_type: plan.model_type,
        tensors: plan.tensors.iter().map(|tensor| tensor.outputs().len()).sum(),
        packed_matrices: plan.tensors.iter().filter(|tensor| tensor.format.is_some()).count(),
        weight_bytes: shards.iter().map(|shard| shard.bytes).sum(),
    })
}

/// Refuses `out` unless nothing is there.
fn check_free(out: &Path) -> Result<()> {
    match fs::symlink_metadata(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error(&error, format_args!("failed to look at `{}`", out.display()))),
        Ok(_) => {
            let message = format!("`{}` exists; it is not overwritten", out.display());
            Err(Error::new(Code::InvalidRequest, message)
                .with_param("out")
                .with_hint("choose another output directory, or remove this one"))
        }
    }
}

/// Holds that the model which loads the result finds every tensor and no other, with tensors of nothing in their
/// place.
fn check_loads(plan: &Plan) -> Result<()> {
    let outputs = plan.tensors.iter().flat_map(plan::TensorPlan::outputs);
    let arrays = outputs.map(|output| {
        let Output { name, dtype, shape } = output;
        let shape: Vec<i32> = shape.into_iter().map(ops::axis_index).collect();
        Ok((name, ops::zeros(&shape, array_type(dtype))?))
    });
    let weights = Weights::of(arrays.collect::<Result<Vec<_>>>()?);
    model::check(ModelConfig::from_fields(plan.config.clone()), weights)
}

fn array_type(dtype: safetensors::Dtype) -> Dtype {
    match dtype {
        safetensors::Dtype::U8 => Dtype::Uint8,
        safetensors::Dtype::U32 => Dtype::Uint32,
        safetensors::Dtype::F16 => Dtype::Float16,
        safetensors::Dtype::BF16 => Dtype::Bfloat16,
        _ => Dtype::Float32,
    }
}

/// Holds that the disk has room for everything.
fn check_room(staging: &Staging, shards: &[Shard], copied: &[Copied]) -> Result<()> {
    let shard_bytes: u64 = shards.iter().map(|shard| shard.bytes).sum();
    let copied_bytes: u64 = copied.iter().map(|file| file.bytes).sum();
    let (needed_bytes, free_bytes) = (shard_bytes + copied_bytes, staging.free_bytes()?);
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let (needed, free) = (megabytes(needed_bytes), megabytes(free_bytes));
    let message = format!("the disk has {free} of room, but the model takes {needed}");
    Err(Error::new(Code::Io, message).with_hint("make room, or choose another output directory"))
}
