//! Quantizing a checkpoint: piece by piece, so that never a layer is held, let alone all.

use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Map, Value, json};
use slipstream_engine::hub::convert::{ConvertOptions, ConvertProgress, convert};
use slipstream_engine::mlx::Device;

use crate::watch;

const LAYERS: usize = 12;
const HIDDEN: usize = 1024;
const INTERMEDIATE: usize = 3 * HIDDEN;

/// The tensors of a Llama of `LAYERS` layers.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let square = vec![HIDDEN, HIDDEN];
    let mut shapes = vec![
        ("model.embed_tokens".to_owned(), square.clone()),
        ("model.norm".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        shapes.extend(
            ["input", "post_attention"]
                .map(|norm| (name(&format!("{norm}_layernorm")), vec![HIDDEN])),
        );
        shapes.extend(
            ["q", "k", "v", "o"]
                .map(|part| (name(&format!("self_attn.{part}_proj")), square.clone())),
        );
        shapes.extend(
            ["gate", "up"]
                .map(|part| (name(&format!("mlp.{part}_proj")), vec![INTERMEDIATE, HIDDEN])),
        );
        shapes.push((name("mlp.down_proj"), vec![HIDDEN, INTERMEDIATE]));
    }
    shapes
}

fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": HIDDEN, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    })
}

/// A checkpoint of zeros in f32; gives its bytes of weights.
fn checkpoint(directory: &Path) -> u64 {
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("config.json"), config().to_string()).unwrap();
    let mut offset = 0;
    let entries: Map<_, _> = shapes()
        .into_iter()
        .map(|(name, shape)| {
            let range = [offset, offset + 4 * shape.iter().product::<usize>()];
            offset = range[1];
            let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": range });
            (format!("{name}.weight"), entry)
        })
        .collect();
    let header = serde_json::to_vec(&entries).unwrap();
    let mut file = File::create(directory.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len((8 + header.len() + offset) as u64).unwrap();
    offset as u64
}

#[test]
fn quantizing_a_model_takes_less_than_one_of_its_layers() {
    Device::cpu();
    let root = tempfile::tempdir().unwrap();
    let (source, out) = (root.path().join("source"), root.path().join("out"));
    let bytes = checkpoint(&source);
    let layer_bytes = bytes / LAYERS as u64;
    let options = ConvertOptions::new(4, 64, None).unwrap();
    let mut done_bytes = 0;
    let listen = &mut |progress: ConvertProgress| {
        done_bytes = progress.done_bytes;
        ControlFlow::Continue(())
    };
    let watched = watch();
    convert(&source, &out, &options, listen).unwrap();
    let peak_bytes = watched.peak_bytes();
    assert_eq!(done_bytes, bytes);
    assert!(peak_bytes < layer_bytes, "{peak_bytes} beside layers of {layer_bytes}");
}
