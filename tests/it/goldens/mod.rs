//! What mlx-lm 0.32.2 makes of the same weights, held bit for bit (goldens/README.md has the
//! formats; `cargo xtask goldens` writes them).

mod continuation;
mod continued;
mod converted;
mod dense;
mod diffusion;
mod embeddings;
mod gemma;
mod gemma4;
mod glm;
mod llama;
mod mixture;
mod qwen3_5;
mod real;
mod replay;
mod rotating;
mod sampling;
mod smollm2;

use std::path::Path;

use slipstream_engine::cache::CacheSet;
use slipstream_engine::mlx::ops;
use slipstream_engine::model::Model;
pub(crate) use slipstream_tests::goldens::directory;

/// The tiny checkpoints among them, by name.
pub(crate) fn checkpoints() -> Vec<String> {
    let entries = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap());
    let held = entries.filter(|entry| entry.path().join("model.safetensors").is_file());
    let mut names: Vec<String> =
        held.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// One forward of the rows' tokens, row after row: each row's logits after its last one.
fn forward(model: &dyn Model, caches: &mut CacheSet, tokens: &[u32]) -> Vec<Vec<f32>> {
    let rows = caches.rows();
    let hidden = model.hidden(&ops::token_matrix(tokens, rows), caches).unwrap();
    let last = ops::slice_axis(&hidden, 1, hidden.dim(1) - 1, hidden.dim(1)).unwrap();
    let logits = ops::read_f32(&model.logits(&last).unwrap()).unwrap();
    logits.chunks(logits.len() / rows).map(<[f32]>::to_vec).collect()
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
