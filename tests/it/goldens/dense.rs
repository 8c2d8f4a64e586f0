//! Each dense family beside mlx-lm, alone and through joins and leaves, past its window where it has
//! one; and what its config must hold.

use std::path::Path;

use serde_json::{Value, json};
use slipstream_engine::error::{Code, Error};
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions};

use super::replay::{self, Tolerance};

fn check(checkpoint: &str) {
    replay::check(checkpoint, "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn mistral_with_linear_rope_equals_mlx_lm_bit_for_bit() {
    check("mistral-tiny");
}

#[test]
fn ministral3_with_its_query_scale_and_sliding_layers_equals_mlx_lm_bit_for_bit() {
    check("ministral3-tiny");
}

#[test]
fn qwen2_with_yarn_equals_mlx_lm_bit_for_bit() {
    check("qwen2-tiny");
}

#[test]
fn qwen3_with_deepseeks_yarn_equals_mlx_lm_bit_for_bit() {
    check("qwen3-tiny");
}

#[test]
fn smollm3_with_a_layer_without_positions_equals_mlx_lm_bit_for_bit() {
    check("smollm3-tiny");
}

#[test]
fn phi3_with_longrope_on_a_part_of_each_head_equals_mlx_lm_bit_for_bit() {
    check("phi3-tiny");
}

#[test]
fn granite_equals_mlx_lm_bit_for_bit() {
    check("granite-tiny");
}

#[test]
fn minicpm_with_longrope_equals_mlx_lm_bit_for_bit() {
    check("minicpm-tiny");
}

#[test]
fn olmo3_with_yarn_in_its_full_layers_equals_mlx_lm_bit_for_bit() {
    check("olmo3-tiny");
}

/// Heads turn in part, neighbours with each other; norms on both sides of each block.
#[test]
fn glm4_equals_mlx_lm_bit_for_bit() {
    for checkpoint in ["glm4-tiny", "glm4-tiny-4bit"] {
        check(checkpoint);
    }
}

/// Keys and values made from latents and kept head by head, with biases and a head of its own, and
/// without.
#[test]
fn minicpm3_equals_mlx_lm_bit_for_bit() {
    for checkpoint in ["minicpm3-tiny", "minicpm3-tiny-4bit"] {
        check(checkpoint);
    }
}

#[test]
fn llama_with_proportional_rope_and_with_that_of_images_equals_mlx_lm_bit_for_bit() {
    for checkpoint in ["llama-tiny-proportional", "llama-tiny-mrope"] {
        check(checkpoint);
    }
}

/// mlx-lm fails on such batches: a row is to be what it is alone, past the tokens of training too.
#[test]
fn dynamic_rope_in_a_batch_equals_each_row_alone_in_mlx_lm_bit_for_bit() {
    check("llama-tiny-dynamic");
}

#[test]
fn families_in_4_bits_equal_mlx_lm_bit_for_bit() {
    for family in [
        "gemma",
        "gemma2",
        "gemma3",
        "granite",
        "minicpm",
        "ministral3",
        "mistral",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    ] {
        check(&format!("{family}-tiny-4bit"));
    }
}

/// What loading the checkpoint says with `fields` in its config; null takes a field out.
fn refusal(checkpoint: &str, fields: &Value) -> Error {
    let source = super::directory().join(checkpoint);
    let directory = tempfile::tempdir().unwrap();
    let mut config: Value = super::read_json(&source.join("config.json"));
    for (name, value) in fields.as_object().unwrap() {
        config[name] = value.clone();
    }
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let weights = Path::new("model.safetensors");
    std::fs::copy(source.join(weights), directory.path().join(weights)).unwrap();
    let options = LoadOptions { dtype: None, back_end: Device::cpu().back_end() };
    let loaded = model::load(directory.path(), options).map(|loaded| loaded.family);
    loaded.expect_err(&format!("{checkpoint} with {fields}"))
}

/// The checkpoint with `fields` in its config is refused by a message that holds `named`.
#[track_caller]
pub(super) fn check_refused(checkpoint: &str, fields: &Value, named: &str) {
    let error = refusal(checkpoint, fields);
    assert_eq!(error.code(), Code::BadModel);
    assert!(error.message().contains(named), "{checkpoint} with {fields}: {error}");
}

#[test]
fn a_config_without_a_field_that_its_family_needs_is_refused_by_the_fields_name() {
    let shared = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
    ];
    let own: [(&str, &[&str]); 12] = [
        ("mistral-tiny", &[]),
        ("llama-tiny-dynamic", &[]),
        ("ministral3-tiny", &["rope_parameters", "sliding_window"]),
        ("qwen2-tiny", &["num_key_value_heads"]),
        ("qwen3-tiny", &["num_key_value_heads", "head_dim", "rope_theta"]),
        ("smollm3-tiny", &[]),
        ("phi3-tiny", &[]),
        (
            "granite-tiny",
            &[
                "num_key_value_heads",
                "rope_theta",
                "attention_multiplier",
                "embedding_multiplier",
                "residual_multiplier",
                "logits_scaling",
            ],
        ),
        ("minicpm-tiny", &["num_key_value_heads", "dim_model_base", "scale_depth", "scale_emb"]),
        ("olmo3-tiny", &["rope_theta", "sliding_window"]),
        (
            "glm4-tiny",
            &[
                "num_key_value_heads",
                "head_dim",
                "rope_theta",
                "attention_bias",
                "partial_rotary_factor",
            ],
        ),
        (
            "minicpm3-tiny",
            &[
                "q_lora_rank",
                "kv_lora_rank",
                "qk_nope_head_dim",
                "qk_rope_head_dim",
                "dim_model_base",
                "scale_depth",
                "scale_emb",
                "rope_scaling",
            ],
        ),
    ];
    for (checkpoint, own) in own {
        for field in shared.iter().chain(own) {
            check_refused(checkpoint, &json!({ *field: null }), field);
        }
    }
}

#[test]
fn configs_that_ask_for_what_is_not_proven_are_refused_by_name() {
    let sliding = json!(["sliding_attention", "full_attention"]);
    let cases = [
        ("qwen2-tiny", json!({ "use_sliding_window": true }), "use_sliding_window"),
        ("qwen3-tiny", json!({ "layer_types": sliding, "sliding_window": 8 }), "layer_types"),
        ("smollm3-tiny", json!({ "no_rope_layers": [1, 0] }), "no_rope_layers"),
        ("phi3-tiny", json!({ "rope_scaling": { "type": "yarn" } }), "yarn"),
        ("mistral-tiny", json!({ "rope_scaling": { "type": "spiral" } }), "spiral"),
        ("mistral-tiny", json!({ "num_key_value_heads": 3 }), "3 key heads"),
        ("mistral-tiny", json!({ "model_type": "mistral9" }), "mistral9"),
        ("mistral-tiny", json!({ "model_type": "qwen2", "rope_scaling": null }), "q_proj.bias"),
        ("granite-tiny", json!({ "num_attention_heads": 5, "num_key_value_heads": 5 }), "5 heads"),
        ("olmo3-tiny", json!({ "num_key_value_heads": 1 }), "k_norm"),
        ("glm4-tiny", json!({ "partial_rotary_factor": 1.5 }), "partial_rotary_factor"),
        ("glm4-tiny", json!({ "rope_scaling": { "type": "yarn" } }), "yarn"),
        ("glm4-tiny-4bit", json!({ "attention_bias": true }), "q_proj.bias"),
        ("minicpm3-tiny", json!({ "rope_scaling": { "type": "linear" } }), "linear"),
        ("minicpm3-tiny", json!({ "rope_scaling": { "type": "longrope" } }), "long_factor"),
        ("minicpm3-tiny", json!({ "kv_lora_rank": 8 }), "kv_a_layernorm"),
    ];
    for (checkpoint, fields, named) in cases {
        check_refused(checkpoint, &fields, named);
    }
}
