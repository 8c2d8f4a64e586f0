//! Qwen3.5: recurrent layers beside layers of attention.

use safetensors::SafeTensors;
use serde_json::{Value, json};
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, Tower};

use super::dense::check_refused;
use super::replay::{Tolerance, check};

#[test]
fn qwen3_5_equals_mlx_lm_bit_for_bit_through_joins_and_leaves() {
    check("qwen3_5-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn qwen3_5_in_f16_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5-tiny", ".float16", Dtype::Float16, Tolerance::Bits);
}

#[test]
fn qwen3_5_in_f32_equals_mlx_lm_up_to_the_blas() {
    check("qwen3_5-tiny", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn qwen3_5_in_the_layout_of_its_makers_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5-tiny-hub", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn qwen3_5_quantized_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Experts that are not quantized run in f32 only on a processor.
#[test]
fn qwen3_5_moe_in_the_layout_of_its_makers_equals_mlx_lm_up_to_the_blas() {
    check("qwen3_5_moe-tiny-hub", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn qwen3_5_moe_quantized_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5_moe-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn what_is_not_run_is_declared_and_takes_no_memory() {
    let directory = super::directory().join("qwen3_5-tiny-hub");
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
    let loaded = model::load(&directory, options).unwrap();
    assert_eq!(loaded.family.towers, [Tower::Vision]);
    let file = std::fs::read(directory.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let (beside, run): (Vec<_>, Vec<_>) = tensors
        .tensors()
        .into_iter()
        .partition(|(name, _)| name.starts_with("model.visual.") || name.starts_with("mtp."));
    assert_eq!(beside.len(), 3);
    let bytes: usize = run.iter().map(|(_, view)| view.data().len()).sum();
    assert_eq!(loaded.weights_bytes, bytes as u64);
}

/// The config of `checkpoint` with `fields` in its text part; null takes a field out.
fn with_text(checkpoint: &str, fields: &Value) -> Value {
    let config: Value = super::read_json(&super::directory().join(checkpoint).join("config.json"));
    let mut text = config["text_config"].clone();
    for (name, value) in fields.as_object().unwrap() {
        text[name] = value.clone();
    }
    json!({ "text_config": text })
}

#[test]
fn a_config_without_a_field_that_qwen3_5_needs_is_refused_by_the_fields_name() {
    let shared = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_parameters",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ];
    let experts =
        ["num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"];
    let own: [(&str, &[&str]); 2] =
        [("qwen3_5-tiny", &["intermediate_size"]), ("qwen3_5_moe-tiny-4bit", &experts)];
    for (checkpoint, own) in own {
        for field in shared.iter().chain(own) {
            check_refused(checkpoint, &with_text(checkpoint, &json!({ *field: null })), field);
        }
    }
}

#[test]
fn qwen3_5_layouts_that_are_not_proven_are_refused_by_name() {
    let rope = |fields: Value| json!({ "rope_parameters": fields });
    let cases = [
        (json!({ "full_attention_interval": 3 }), "layer_types"),
        (json!({ "layer_types": ["linear_attention"] }), "layer_types"),
        (json!({ "full_attention_interval": 3, "layer_types": null }), "layers.1.linear_attn"),
        (json!({ "attn_output_gate": false }), "attn_output_gate"),
        (json!({ "hidden_act": "gelu" }), "hidden_act"),
        (json!({ "linear_num_value_heads": 3 }), "3 linear value heads"),
        (json!({ "linear_conv_kernel_dim": 3 }), "conv1d.weight"),
        (json!({ "linear_key_head_dim": 8 }), "in_proj_qkv"),
        (json!({ "num_key_value_heads": 2 }), "k_proj"),
        (json!({ "num_experts": 4, "num_experts_per_tok": 2 }), "moe_intermediate_size"),
        (rope(json!({ "partial_rotary_factor": 0.25 })), "rope_theta"),
        (rope(json!({ "rope_theta": 1e4, "rope_type": "spiral" })), "spiral"),
        (rope(json!({ "rope_theta": 1e4, "partial_rotary_factor": 0.1 })), "3 dimensions"),
    ];
    for (fields, named) in cases {
        check_refused("qwen3_5-tiny", &with_text("qwen3_5-tiny", &fields), named);
    }
}
