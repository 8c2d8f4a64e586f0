//! The published checkpoint of GLM-5's kind with another config, or with other tensors.

use std::path::PathBuf;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;
use slipstream_engine::error::Result;
use slipstream_engine::mlx::{Array, Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions, Loaded, Model};

/// What becomes of a tensor.
pub(super) enum Change {
    Keep,
    Drop,
    /// It stays, and is there under another name too.
    CopyAs(String),
}

/// Drops the tensors whose names begin so.
pub(super) fn without(prefixes: &[String]) -> impl Fn(&str) -> Change + '_ {
    |name| match prefixes.iter().any(|prefix| name.starts_with(prefix)) {
        true => Change::Drop,
        false => Change::Keep,
    }
}

/// What the names of an indexer's tensors begin with, for each of `layers`.
pub(super) fn indexers(layers: &[usize]) -> Vec<String> {
    layers.iter().map(|layer| format!("model.layers.{layer}.self_attn.indexer.")).collect()
}

pub(super) fn checkpoint() -> PathBuf {
    super::super::directory().join("glm_moe_dsa-tiny")
}

/// The checkpoint in f32, with `fields` in its config (null takes one out) and its tensors changed.
pub(super) fn load(fields: &Value, change: impl Fn(&str) -> Change) -> Result<Loaded> {
    let directory = tempfile::tempdir().unwrap();
    let mut config: Value = super::super::read_json(&checkpoint().join("config.json"));
    for (name, value) in fields.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let file = std::fs::read(checkpoint().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let changed = tensors.iter().flat_map(|(name, tensor)| {
        let names = match change(name) {
            Change::Keep => vec![name.to_owned()],
            Change::CopyAs(copy) => vec![name.to_owned(), copy],
            Change::Drop => Vec::new(),
        };
        names.into_iter().map(move |name| (name, tensor.clone()))
    });
    let changed: Vec<(String, TensorView<'_>)> = changed.collect();
    let path = directory.path().join("model.safetensors");
    safetensors::serialize_to_file(changed, None, &path).unwrap();
    let back_end = Device::cpu().back_end();
    model::load(directory.path(), LoadOptions { dtype: Some(Dtype::Float32), back_end })
}

/// Logits of the last of hidden states `[1, L, hidden]`.
pub(super) fn last_logits(model: &dyn Model, hidden: &Array) -> Vec<f32> {
    let last = ops::slice_axis(hidden, 1, hidden.dim(1) - 1, hidden.dim(1)).unwrap();
    ops::read_f32(&model.logits(&last).unwrap()).unwrap()
}

pub(super) fn argmax(logits: &[f32]) -> usize {
    let pairs = logits.iter().enumerate();
    pairs.max_by(|left, right| left.1.total_cmp(right.1)).unwrap().0
}
