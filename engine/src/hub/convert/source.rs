//! What there is to convert: a checkpoint's config and the headers of its files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};
use crate::mlx::shards::{TensorHeader, shard_files, stored_tensors};

/// A checkpoint of which no number has been read.
#[derive(Debug)]
pub(super) struct Source {
    /// `config.json`.
    pub(super) config: Map<String, Value>,
    /// Its files of weights.
    pub(super) files: Vec<PathBuf>,
    /// What they hold, file by file and in the order of the bytes.
    pub(super) tensors: Vec<SourceTensor>,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceTensor {
    /// Which of the files holds it.
    pub(super) file: usize,
    /// The rest.
    pub(super) stored: TensorHeader,
}

impl Source {
    /// Reads the headers of the checkpoint in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        if !directory.is_dir() {
            let message = format!("no model directory at `{}`", directory.display());
            return Err(Error::new(Code::BadModel, message));
        }
        let config = read_config(directory)?;
        let files = shard_files(directory)?;
        let mut tensors = Vec::new();
        for (file, path) in files.iter().enumerate() {
            let stored = stored_tensors(path)?;
            tensors.extend(stored.into_iter().map(|stored| SourceTensor { file, stored }));
        }
        check_names(&tensors)?;
        Ok(Self { config, files, tensors })
    }
}

/// The fields of `config.json`, with the tokens that end an answer from `generation_config.json` where that
/// names some, as mlx-lm 0.32.2 has it (`utils.load_config`).
fn read_config(directory: &Path) -> Result<Map<String, Value>> {
    let mut config = read_object(&directory.join("config.json"))?;
    let generation = directory.join("generation_config.json");
    if generation.is_file() {
        let ends = read_object(&generation)?.remove("eos_token_id");
        let named = ends.filter(|ends| !ends.is_null() && *ends != 0);
        config.extend(named.map(|ends| ("eos_token_id".to_owned(), ends)));
    }
    // Where NVIDIA's tools tell of packing.
    let beside = directory.join("hf_quant_config.json");
    if beside.is_file() && !config.contains_key("quantization_config") {
        config.insert("quantization_config".to_owned(), Value::Object(read_object(&beside)?));
    }
    Ok(config)
}

fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let bad = |what: String| {
        Error::new(Code::BadModel, format!("failed to read `{}`: {what}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| bad(error.to_string()))
}

fn check_names(tensors: &[SourceTensor]) -> Result<()> {
    let mut names = BTreeSet::new();
    match tensors.iter().find(|tensor| !names.insert(&tensor.stored.name)) {
        None => Ok(()),
        Some(twice) => {
            let message = format!("two files have a tensor `{}`", twice.stored.name);
            Err(Error::new(Code::BadModel, message))
        }
    }
}

/// Bytes of one number of the types that are converted.
pub(super) fn value_bytes(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}
