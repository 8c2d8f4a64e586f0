//! Reading weights: what a cast holds beside its result is a part, not a second copy.

use std::fs::File;
use std::io::Write;

use serde_json::{Map, json};
use slipstream_engine::mlx::{Device, Dtype, Weights};

use crate::watch;

const TENSORS: usize = 16;
const TENSOR_VALUES: usize = 4 << 20;

/// A checkpoint of zeros in f16.
fn checkpoint() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let tensor_bytes = 2 * TENSOR_VALUES;
    let entries: Map<_, _> = (0..TENSORS)
        .map(|index| {
            let range = [index * tensor_bytes, (index + 1) * tensor_bytes];
            let entry = json!({ "dtype": "F16", "shape": [TENSOR_VALUES], "data_offsets": range });
            (index.to_string(), entry)
        })
        .collect();
    let header = serde_json::to_vec(&entries).unwrap();
    let mut file = File::create(directory.path().join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len((8 + header.len() + TENSORS * tensor_bytes) as u64).unwrap();
    directory
}

#[test]
fn reading_and_casting_takes_little_more_than_the_weights() {
    Device::cpu();
    let directory = checkpoint();
    let mut weights = Weights::load(directory.path()).unwrap();
    weights.cast(Dtype::Float32).unwrap();
    let taken: Vec<_> =
        (0..TENSORS).map(|index| weights.take(&index.to_string()).unwrap()).collect();
    let watched = watch();
    let weights_bytes = weights.read(&mut |_| ()).unwrap();
    let peak_bytes = watched.peak_bytes();
    assert_eq!(weights_bytes, (4 * TENSORS * TENSOR_VALUES) as u64);
    let beside_bytes = peak_bytes - weights_bytes;
    assert!(beside_bytes < weights_bytes / 4, "{beside_bytes} beside {weights_bytes}");
    drop(taken);
}
