//! What is reckoned of a model before it is loaded, beside what MLX's allocator holds at most when it is.

use std::path::{Path, PathBuf};

use slipstream_engine::cache::KvScheme;
use slipstream_engine::hub::library;
use slipstream_engine::mlx::{Device, memory, ops};
use slipstream_engine::model::{self, LoadOptions};

use crate::watch;

fn probe(directory: &Path, tokens: usize, chunk: usize) {
    let device = Device::cpu();
    let facts = library::read_facts(directory).unwrap();
    let watched = watch();
    let loaded =
        model::load(directory, LoadOptions { dtype: None, back_end: device.back_end() }).unwrap();
    let load_peak = watched.peak_bytes();
    let after = memory::snapshot().active_bytes;
    memory::clear_cache().unwrap();
    memory::forget_peak().unwrap();
    let mut caches = loaded.model.new_caches();
    let mut done = 0;
    while done + 1 < tokens {
        let count = chunk.min(tokens - 1 - done);
        let ids: Vec<u32> = (0..count as u32).map(|id| id % 200).collect();
        loaded.model.hidden(&ops::token_matrix(&ids, 1), &mut caches).unwrap();
        ops::evaluate(caches.arrays()).unwrap();
        memory::clear_cache().unwrap();
        done += count;
    }
    let prefill_peak = memory::snapshot().peak_bytes;
    memory::forget_peak().unwrap();
    for id in 0..3u32 {
        let hidden = loaded.model.hidden(&ops::token_matrix(&[id], 1), &mut caches).unwrap();
        let logits = loaded.model.logits(&hidden).unwrap();
        ops::evaluate(caches.arrays().chain([&logits])).unwrap();
    }
    let decode_peak = memory::snapshot().peak_bytes;
    let profile = facts.outline.kv_profile(&KvScheme::Plain, 4);
    let weights = facts.weights.all.bytes(4);
    let o = &facts.outline;
    println!(
        "{} tokens {tokens} chunk {chunk}: weights {weights} (active {after}, load peak {load_peak}), kv {} prefill kv {} caches {} | prefill transient {} decode transient {} | hidden {} ff {} heads {} vocab {} layers {}",
        directory.file_name().unwrap().to_string_lossy(),
        profile.row_bytes(tokens),
        profile.prefill_bytes(tokens, chunk),
        caches.bytes(),
        prefill_peak as i64 - after as i64 - profile.prefill_bytes(tokens, chunk) as i64,
        decode_peak as i64 - after as i64 - caches.bytes() as i64,
        o.hidden,
        o.feed_forward,
        o.query_heads,
        o.vocabulary,
        o.layers.len()
    );
}

#[test]
fn probe_all() {
    let root = slipstream_tests::sources::repository();
    for name in ["SmolLM2-135M-Instruct", "gemma-3-270m"] {
        for (tokens, chunk) in
            [(64, 256), (300, 256), (513, 256), (1025, 256), (1025, 512), (1025, 64)]
        {
            probe(&root.join(".models").join(name), tokens, chunk);
        }
    }
    for name in [
        "llama-tiny",
        "llama-tiny-4bit",
        "gemma3-tiny",
        "qwen3_5-tiny",
        "glm_moe_dsa-tiny",
        "gpt_oss-tiny",
        "gemma4-e4b-tiny",
    ] {
        for (tokens, chunk) in [(64, 256), (513, 256)] {
            probe(&PathBuf::from(slipstream_tests::goldens::checkpoint(name)), tokens, chunk);
        }
    }
}
