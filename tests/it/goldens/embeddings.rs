//! Vectors of texts beside the hidden states of mlx-lm's model.

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use slipstream_engine::error::Code;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, EmbedOptions, Loaded, embed};

use super::replay;

const CHECKPOINT: &str = "qwen3-tiny";
/// A bit of a hidden state in bf16 is worth 1e-3.
const SAME_BITS: f32 = 1e-7;
/// Sums of f32 numbers in the order of another BLAS.
const OTHER_ORDER: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    cut: usize,
    texts: Vec<Vec<u32>>,
}

fn golden() -> (Golden, Vec<u8>) {
    let directory = super::directory().join(CHECKPOINT);
    let vectors = std::fs::read(directory.join("embeddings.safetensors")).unwrap();
    (super::read_json(&directory.join("embeddings.json")), vectors)
}

fn load(directory: &Path, dtype: Dtype) -> Loaded {
    let back_end = Device::cpu().back_end();
    model::load(directory, model::LoadOptions { dtype: Some(dtype), back_end }).unwrap()
}

fn assert_near(got: &[f32], wanted: &[f32], bound: f32, place: &str) {
    assert_eq!(got.len(), wanted.len(), "{place}");
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!((got - wanted).abs() <= bound, "{place}: number {index} is {got}, not {wanted}");
    }
}

fn check(directory: &Path, dtype: Dtype, name: &str, bound: f32) {
    let (golden, vectors) = golden();
    let vectors = SafeTensors::deserialize(&vectors).unwrap();
    let loaded = load(directory, dtype);
    for (index, text) in golden.texts.iter().enumerate() {
        for (kind, dimensions) in [("whole", None), ("cut", Some(golden.cut))] {
            let options = EmbedOptions { dimensions, ..EmbedOptions::default() };
            let vector = embed(loaded.model.as_ref(), text, options).unwrap();
            let place = format!("{name}.{index}.{kind}");
            assert_near(&vector, &replay::stored(&vectors, &place)[0], bound, &place);
        }
    }
}

#[test]
fn the_vectors_of_texts_are_mlx_lms_last_hidden_states() {
    let directory = super::directory().join(CHECKPOINT);
    check(&directory, Dtype::Bfloat16, "bfloat16", SAME_BITS);
    check(&directory, Dtype::Float32, "float32", OTHER_ORDER);
}

/// As embedding models are published.
#[test]
fn tensors_without_the_models_prefix_are_found() {
    let source = super::directory().join(CHECKPOINT);
    let directory = tempfile::tempdir().unwrap();
    let config = Path::new("config.json");
    std::fs::copy(source.join(config), directory.path().join(config)).unwrap();
    let stored = std::fs::read(source.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&stored).unwrap();
    let bare: HashMap<String, TensorView<'_>> = stored
        .tensors()
        .into_iter()
        .map(|(name, view)| (name.trim_start_matches("model.").to_owned(), view))
        .collect();
    let target = directory.path().join("model.safetensors");
    safetensors::serialize_to_file(bare, None, &target).unwrap();
    check(directory.path(), Dtype::Bfloat16, "bfloat16", SAME_BITS);
}

#[test]
fn a_text_in_chunks_has_the_vector_of_the_whole() {
    let (golden, _) = golden();
    let loaded = load(&super::directory().join(CHECKPOINT), Dtype::Float32);
    let text = golden.texts.last().unwrap();
    let vector = |chunk_tokens| {
        let options = EmbedOptions { chunk_tokens, ..EmbedOptions::default() };
        embed(loaded.model.as_ref(), text, options).unwrap()
    };
    for chunk_tokens in [1, 7, 40, 41, 99] {
        let place = format!("chunks of {chunk_tokens}");
        assert_near(&vector(Some(chunk_tokens)), &vector(None), OTHER_ORDER, &place);
    }
}

#[test]
fn texts_and_dimensions_that_have_no_vector_are_refused() {
    let loaded = load(&super::directory().join(CHECKPOINT), Dtype::Bfloat16);
    let refused = |tokens: &[u32], dimensions| {
        let options = EmbedOptions { dimensions, ..EmbedOptions::default() };
        embed(loaded.model.as_ref(), tokens, options).unwrap_err()
    };
    for (error, named) in [
        (refused(&[], None), "empty"),
        (refused(&[1], Some(0)), "0 dimensions"),
        (refused(&[1], Some(33)), "33 dimensions of a vector that has 32"),
    ] {
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.message().contains(named), "{error}");
    }
}
