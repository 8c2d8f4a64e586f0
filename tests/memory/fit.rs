//! What is reckoned of a model before it is loaded, beside what MLX's allocator holds at most while it is loaded,
//! reads a prompt and says some tokens.

use std::path::Path;

use slipstream_engine::cache::CacheSet;
use slipstream_engine::hub::fit::{self, Machine, Processing, Subject, Wish};
use slipstream_engine::hub::library;
use slipstream_engine::mlx::{Device, memory, ops};
use slipstream_engine::model::{self, LoadOptions, Model};
use slipstream_tests::{demo, goldens};

use crate::watch;

const CHUNK_TOKENS: usize = 256;
/// How far what is reckoned may lie from what is measured, of the latter.
const ENVELOPE: f64 = 0.10;

/// Reads `prompt_tokens` tokens as the executor does, chunk by chunk, and says three.
fn run(model: &dyn Model, caches: &mut CacheSet, prompt_tokens: usize) {
    let ids: Vec<u32> = (0..prompt_tokens as u32).map(|place| place % 200).collect();
    for chunk in ids.chunks(CHUNK_TOKENS) {
        model.hidden(&ops::token_matrix(chunk, 1), caches).unwrap();
        ops::evaluate(caches.arrays()).unwrap();
        memory::clear_cache().unwrap();
    }
    for id in 0..3 {
        let hidden = model.hidden(&ops::token_matrix(&[id], 1), caches).unwrap();
        let logits = model.logits(&hidden).unwrap();
        ops::evaluate(caches.arrays().chain([&logits])).unwrap();
    }
}

/// Bytes at most of loading the model in `directory` and running one row of `tokens` tokens, three of them said.
fn measured_bytes(directory: &Path, tokens: usize) -> u64 {
    let device = Device::cpu();
    let watched = watch();
    let options = LoadOptions { dtype: None, back_end: device.back_end() };
    let loaded = model::load(directory, options).unwrap();
    let mut caches = loaded.model.new_caches();
    run(loaded.model.as_ref(), &mut caches, tokens - 3);
    watched.peak_bytes()
}

fn reckoned_bytes(directory: &Path, tokens: usize) -> u64 {
    let facts = library::inspect(directory).unwrap().facts.unwrap();
    let machine = Machine {
        name: "the processor".to_owned(),
        processing: Processing::Processor,
        memory_bytes: 64 << 30,
        available_bytes: None,
        bandwidth: None,
    };
    let wish = Wish { chunk_tokens: Some(CHUNK_TOKENS), ..Wish::default() };
    let subject = Subject { outline: &facts.outline, weights: &facts.weights };
    fit::peak_bytes(subject, &machine, &wish, tokens)
}

#[track_caller]
fn check(directory: &Path, tokens: usize, runs: usize) {
    // How many operations wait for each other differs from run to run.
    let measured = (0..runs).map(|_| measured_bytes(directory, tokens)).max();
    let measured = measured.unwrap() as f64;
    let reckoned = reckoned_bytes(directory, tokens) as f64;
    let name = directory.file_name().unwrap().to_string_lossy();
    assert!(
        (reckoned / measured - 1.0).abs() < ENVELOPE,
        "{name} with {tokens} tokens: reckoned {reckoned}, measured {measured}"
    );
}

#[test]
fn smollm2_takes_what_is_reckoned() {
    check(&demo::model_directory(), 64, 1);
    check(&demo::model_directory(), 1100, 1);
}

#[test]
fn gemma_3_takes_what_is_reckoned() {
    check(&demo::gemma_directory(), 300, 1);
}

#[test]
fn tiny_checkpoints_take_what_is_reckoned() {
    let names = [
        "gemma3-tiny",
        "gemma4-e4b-tiny",
        "glm_moe_dsa-tiny",
        "llama-tiny",
        "llama-tiny-4bit",
        "qwen2-tiny-4bit",
        "qwen3_5-tiny",
    ];
    for name in names {
        check(&goldens::checkpoint(name), 64, 5);
    }
}
