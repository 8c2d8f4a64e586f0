use proptest::prelude::*;
use serde_json::Value as Json;

use super::plan::plan;
use super::testing::{GgufFile, tiny_gemma, tiny_llama};
use super::{Array, Header, ModelPlan, RowOrder, TensorType, Value, read_header};
use crate::error::{Code, Result};

fn read(bytes: &[u8]) -> Result<Header> {
    read_header(bytes, bytes.len() as u64)
}

fn plan_of(file: &GgufFile) -> Result<ModelPlan> {
    plan(&read(&file.build()).unwrap(), None)
}

/// The header must be refused, for the reason that `fragment` is part of.
fn check_unreadable(bytes: &[u8], fragment: &str) {
    let error = read(bytes).unwrap_err();
    assert_eq!(error.code(), Code::BadImport);
    assert!(error.to_string().contains(fragment), "{error}");
}

/// The header is well-formed, but no plan can be made of it.
fn check_unplanned(file: &GgufFile, fragment: &str) {
    let error = plan_of(file).unwrap_err();
    assert_eq!(error.code(), Code::BadImport);
    assert!(error.to_string().contains(fragment), "{error}");
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

#[test]
fn every_block_type_unpacks_to_the_bits_of_the_reference() {
    let fixture: Json = serde_json::from_str(include_str!("fixtures/blocks.json")).unwrap();
    for kind in TensorType::ALL {
        let case = &fixture[kind.to_string()];
        let packed = hex(case["packed"].as_str().unwrap());
        let expected = hex(case["values"].as_str().unwrap());
        let mut values = Vec::new();
        kind.dequantize(&packed, &mut values);
        assert_eq!(
            values.len() as u64,
            packed.len() as u64 / kind.block_bytes() * kind.block_values()
        );
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(bytes == expected, "{kind}");
    }
}

#[test]
fn a_header_keeps_values_names_shapes_and_places() {
    for (version, alignment) in [(2, 32), (3, 64)] {
        let mut file = GgufFile::new()
            .u32("general.alignment", alignment)
            .string("text", "grüße")
            .f32("float", 1e-5)
            .boolean("flag", true)
            .raw("signed", 11, &(-3i64).to_le_bytes())
            .strings("list", &["a", "b"])
            .i32s("kinds", &[1, -1])
            .floats("first", &[1], &[1.0])
            .tensor("second", &[2, 32], TensorType::Q8_0, &[0; 68]);
        file.version = version;
        file.alignment = alignment as usize;
        let bytes = file.build();
        let header = read(&bytes).unwrap();
        assert_eq!(header.metadata.string("text").unwrap(), Some("grüße"));
        assert_eq!(header.metadata.get("float"), Some(&Value::Float(1e-5)));
        assert_eq!(header.metadata.boolean("flag").unwrap(), Some(true));
        assert_eq!(header.metadata.get("signed"), Some(&Value::Integer(-3)));
        assert_eq!(header.metadata.strings("list").unwrap().unwrap(), ["a", "b"]);
        assert_eq!(header.metadata.get("kinds"), Some(&Value::Array(Array::Integers(vec![1, -1]))));
        let [first, second] = header.tensors.as_slice() else { panic!("two tensors") };
        assert_eq!((first.name.as_str(), first.bytes), ("first", 4));
        assert_eq!((second.shape.as_slice(), second.bytes), (&[2, 32][..], 68));
        assert_eq!(second.offset, first.offset + u64::from(alignment));
        assert_eq!(second.offset + second.bytes, bytes.len() as u64);
    }
}

#[test]
fn a_value_of_another_type_is_an_error_that_names_key_and_value() {
    let bytes = GgufFile::new().f32("n", 0.5).boolean("b", true).raw("big", 10, &[0xff; 8]).build();
    let metadata = read(&bytes).unwrap().metadata;
    let message = metadata.count("n").unwrap_err().to_string();
    assert!(message.contains("`n`") && message.contains("0.5"), "{message}");
    let message = metadata.count("big").unwrap_err().to_string();
    assert!(message.contains("18446744073709551615"), "{message}");
    assert!(metadata.string("b").is_err());
    assert_eq!(metadata.count("absent").unwrap(), None);
}

#[test]
fn a_file_of_another_format_or_version_is_refused() {
    check_unreadable(b"", "magic");
    check_unreadable(b"PK\x03\x04 a zip archive", "not a GGUF file");
    check_unreadable(b"GGUF\x01\0\0\0", "version 1");
    check_unreadable(b"GGUF\0\0\0\x03", "big-endian");
}

#[test]
fn a_count_or_length_beyond_the_file_is_refused() {
    let counts = |tensors: u64, pairs: u64| {
        [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &pairs.to_le_bytes(), &[0; 64]].concat()
    };
    check_unreadable(&counts(u64::MAX, 0), "the tensor count");
    check_unreadable(&counts(0, u64::MAX), "the metadata count");
    check_unreadable(&counts(3, 0), "claims 3 items");
    let pair = |kind, value: &[u8]| GgufFile::new().raw("k", kind, value).build();
    check_unreadable(&pair(8, &u64::MAX.to_le_bytes()), "claims 18446744073709551615 bytes");
    for item_kind in [0u32, 5, 6, 8, 9, 12] {
        let array = [&item_kind.to_le_bytes()[..], &(u64::MAX / 2).to_le_bytes()].concat();
        check_unreadable(&pair(9, &array), "metadata `k`");
    }
}

#[test]
fn a_malformed_value_is_refused() {
    let pair = |kind, value: &[u8]| GgufFile::new().raw("k", kind, value).build();
    check_unreadable(&pair(7, &[2]), "boolean");
    check_unreadable(&pair(13, &[0; 8]), "unknown value type 13");
    check_unreadable(&pair(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]), "not UTF-8");
    let nested: Vec<u8> = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat().repeat(40);
    check_unreadable(&pair(9, &nested), "too deeply");
    check_unreadable(&GgufFile::new().u32("k", 1).u32("k", 2).build(), "`k` occurs twice");
    for alignment in [0, 3, 1 << 30] {
        let file = GgufFile::new().u32("general.alignment", alignment);
        check_unreadable(&file.build(), "general.alignment");
    }
}

#[test]
fn a_malformed_tensor_is_refused() {
    let tensor = |shape: &[u64], code, offset| {
        GgufFile::new().raw_tensor("t", shape, code, offset, &[0; 64]).build()
    };
    check_unreadable(&tensor(&[], 0, None), "0 dimensions");
    check_unreadable(&tensor(&[1; 5], 0, None), "5 dimensions");
    check_unreadable(&tensor(&[4, 0], 0, None), "empty dimension");
    check_unreadable(&tensor(&[u64::MAX, 2], 0, None), "too large");
    check_unreadable(&tensor(&[1 << 62], 0, None), "too large");
    check_unreadable(&tensor(&[33], 2, None), "rows of 33 values");
    check_unreadable(&tensor(&[256], 10, None), "Q2_K");
    check_unreadable(&tensor(&[4], 4_000_000_000, None), "number 4000000000");
    check_unreadable(&tensor(&[4], 0, Some(8)), "not a multiple of 32");
    check_unreadable(&tensor(&[4], 0, Some(u64::MAX - 31)), "past the end");
    check_unreadable(&tensor(&[17], 0, None), "past the end");
    let twice = GgufFile::new().floats("t", &[1], &[0.0]).floats("t", &[1], &[0.0]);
    check_unreadable(&twice.build(), "`t` occurs twice");
    let overlapping = GgufFile::new().raw_tensor("first", &[16], 0, Some(0), &[0; 64]).raw_tensor(
        "second",
        &[8],
        0,
        Some(32),
        &[],
    );
    check_unreadable(&overlapping.build(), "overlap");
}

#[test]
fn every_strict_prefix_of_a_file_is_refused() {
    for file in [tiny_llama(), tiny_gemma()] {
        let bytes = file.build();
        assert!(read(&bytes).is_ok());
        for length in 0..bytes.len() {
            let error = read(&bytes[..length]).unwrap_err();
            assert_eq!(error.code(), Code::BadImport, "{length} bytes: {error}");
        }
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = tiny_llama().build();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Err(error) = read(&bytes).and_then(|header| {
            super::tokenizer::convert(&header.metadata)?;
            plan(&header, None)
        }) {
            prop_assert_eq!(error.code(), Code::BadImport);
        }
    }

    #[test]
    fn random_bytes_after_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let bytes = [b"GGUF\x03\0\0\0", tail.as_slice()].concat();
        if let Err(error) = read(&bytes) {
            prop_assert_eq!(error.code(), Code::BadImport);
        }
    }

    #[test]
    fn half_split_undoes_the_converters_permutation(heads in 1u64..9, pairs in 1u64..17) {
        let rows = heads * pairs * 2;
        // The converter reshapes rows to [heads, 2, pairs] and swaps the last two axes.
        let mut stored = Vec::new();
        for head in 0..heads {
            for pair in 0..pairs {
                for half in 0..2 {
                    stored.push((head * 2 + half) * pairs + pair);
                }
            }
        }
        let order = RowOrder::HalfSplit { heads };
        for (row, original) in stored.iter().enumerate() {
            prop_assert_eq!(order.target(row as u64, rows), *original);
        }
    }
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    check_unplanned(&GgufFile::new().string("general.architecture", "rwkv6"), "`rwkv6`");
    check_unplanned(&GgufFile::new().string("general.architecture", "rwkv6"), "llama, gemma3");
    check_unplanned(&GgufFile::new(), "`general.architecture` is missing");
}

#[test]
fn a_missing_surplus_or_misshapen_tensor_is_refused_by_name() {
    for name in ["token_embd.weight", "blk.1.ffn_up.weight", "output_norm.weight"] {
        check_unplanned(&tiny_llama().without_tensor(name), name);
    }
    check_unplanned(&tiny_llama().floats("blk.0.extra", &[1], &[0.0]), "`blk.0.extra`");
    check_unplanned(
        &tiny_llama().floats("blk.2.attn_norm.weight", &[1], &[0.0]),
        "`blk.2.attn_norm.weight`",
    );
    let bias = tiny_llama().floats("blk.0.attn_q.bias", &[8], &[0.0; 8]);
    check_unplanned(&bias, "`blk.0.attn_k.bias` is missing");
    let misshapen = tiny_llama().without_tensor("blk.0.attn_v.weight").floats(
        "blk.0.attn_v.weight",
        &[8, 4],
        &[0.0; 32],
    );
    check_unplanned(&misshapen, "shape [8, 4], but the metadata asks for [4, 8]");
}

#[test]
fn sizes_that_contradict_each_other_are_refused() {
    check_unplanned(&tiny_llama().u32("llama.vocab_size", 9), "`llama.vocab_size` is 9");
    check_unplanned(&tiny_llama().u32("llama.attention.value_length", 2), "value_length");
    check_unplanned(&tiny_llama().u32("llama.rope.dimension_count", 2), "dimension_count");
    check_unplanned(&tiny_llama().u32("llama.expert_count", 8), "8 experts");
    check_unplanned(&tiny_gemma().f32("gemma3.final_logit_softcapping", 30.0), "capped at 30");
    let sizes = |layers: u32, heads: u32, kv_heads: u32| {
        GgufFile::new()
            .string("general.architecture", "llama")
            .u32("llama.block_count", layers)
            .u32("llama.context_length", 64)
            .u32("llama.embedding_length", 8)
            .u32("llama.feed_forward_length", 8)
            .u32("llama.attention.head_count", heads)
            .u32("llama.attention.head_count_kv", kv_heads)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .floats("token_embd.weight", &[1, 8], &[0.0; 8])
    };
    check_unplanned(&sizes(u32::MAX, 2, 1), "only 1 tensors");
    check_unplanned(&sizes(1, 4, 3), "not a multiple");
    check_unplanned(&sizes(1, 0, 1), "at least 1");
    check_unplanned(&sizes(1, 8, 1), "head size of 1");
    check_unplanned(&sizes(1, u32::MAX, 1), "head size of 0");
}

#[test]
fn linear_rope_scaling_is_kept_and_others_are_refused_by_name() {
    let scaled = |kind: &str| {
        tiny_gemma().string("gemma3.rope.scaling.type", kind).f32("gemma3.rope.scaling.factor", 8.0)
    };
    let config = plan_of(&scaled("linear")).unwrap().config;
    assert_eq!(config["rope_scaling"]["type"], "linear");
    assert_eq!(config["rope_scaling"]["factor"], 8.0);
    assert_eq!(plan_of(&scaled("none")).unwrap().config["rope_scaling"], Json::Null);
    check_unplanned(&scaled("yarn"), "`yarn`");
}

/// A llama header with heads of `head` values and these RoPE divisors.
fn header_with_divisors(head: u32, theta: f32, divisors: &[f32]) -> Header {
    let hidden = u64::from(head);
    let width = hidden as usize;
    let mut file = GgufFile::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", head)
        .u32("llama.feed_forward_length", 1)
        .u32("llama.attention.head_count", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", theta)
        .floats("rope_freqs.weight", &[divisors.len() as u64], divisors)
        .floats("token_embd.weight", &[1, hidden], &vec![0.0; width])
        .floats("output_norm.weight", &[hidden], &vec![0.0; width]);
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        let name = format!("blk.0.{name}.weight");
        file = file.floats(&name, &[hidden, hidden], &vec![0.0; width * width]);
    }
    for (name, shape) in
        [("ffn_gate", [1, hidden]), ("ffn_up", [1, hidden]), ("ffn_down", [hidden, 1])]
    {
        file = file.floats(&format!("blk.0.{name}.weight"), &shape, &vec![0.0; width]);
    }
    for name in ["attn_norm", "ffn_norm"] {
        file = file.floats(&format!("blk.0.{name}.weight"), &[hidden], &vec![0.0; width]);
    }
    read(&file.build()).unwrap()
}

#[test]
fn llama3_scaling_is_recovered_from_its_divisors() {
    let fixture: Json = serde_json::from_str(include_str!("fixtures/rope_factors.json")).unwrap();
    for case in fixture.as_array().unwrap() {
        let divisors: Vec<f32> = case["divisors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.as_f64().unwrap() as f32)
            .collect();
        let head = case["head"].as_u64().unwrap() as u32;
        let theta = case["theta"].as_f64().unwrap() as f32;
        let header = header_with_divisors(head, theta, &divisors);
        let scaling = &plan(&header, Some(&divisors)).unwrap().config["rope_scaling"];
        assert_eq!(scaling["rope_type"], "llama3");
        assert_eq!(scaling["factor"], case["factor"]);
        assert_eq!(scaling["original_max_position_embeddings"], 8192);

        let mut changed = divisors.clone();
        changed[head as usize / 4] *= 1.01;
        let error = plan(&header, Some(&changed)).unwrap_err();
        assert!(error.to_string().contains("rope_freqs.weight"), "{error}");
    }
}

#[test]
fn divisors_of_one_mean_no_scaling() {
    let header = header_with_divisors(8, 10_000.0, &[1.0; 4]);
    let config = plan(&header, Some(&[1.0; 4])).unwrap().config;
    assert_eq!(config["rope_scaling"], Json::Null);
}

#[test]
fn gemma_layers_alternate_as_the_pattern_says() {
    let file = tiny_gemma().u32("gemma3.attention.sliding_window_pattern", 2);
    let config = plan_of(&file).unwrap().config;
    assert_eq!(config["sliding_window_pattern"], 2);
    assert_eq!(config["layer_types"], serde_json::json!(["sliding_attention", "full_attention"]));
}
