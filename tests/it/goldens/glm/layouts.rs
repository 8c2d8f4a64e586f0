//! What checkpoints of these families must hold, and how they may be laid out.

use serde_json::{Value, json};
use slipstream_engine::error::Code;
use slipstream_engine::mlx::ops;

use super::super::dense::refusal;
use super::variant::{self, Change};

const LITE: &str = "glm4_moe_lite-tiny-4bit";
const DSA: &str = "glm_moe_dsa-tiny-4bit";

#[test]
fn a_config_without_a_field_that_is_needed_is_refused_by_the_fields_name() {
    let shared = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "moe_intermediate_size",
        "num_experts_per_tok",
        "routed_scaling_factor",
    ];
    let own: [(&str, &[&str]); 2] = [
        (LITE, &[]),
        (
            DSA,
            &[
                "q_lora_rank",
                "first_k_dense_replace",
                "rope_parameters",
                "index_n_heads",
                "index_head_dim",
                "index_topk",
            ],
        ),
    ];
    for (checkpoint, own) in own {
        for field in shared.iter().chain(own) {
            let error = refusal(checkpoint, &json!({ *field: null }));
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(field), "{checkpoint} without {field}: {error}");
        }
    }
}

#[test]
fn configs_that_ask_for_what_is_not_proven_are_refused_by_name() {
    let cases = [
        (LITE, json!({ "scoring_func": "softmax" }), "scoring_func"),
        (LITE, json!({ "topk_method": "greedy" }), "topk_method"),
        (LITE, json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor"),
        (LITE, json!({ "tie_word_embeddings": true }), "tie_word_embeddings"),
        (LITE, json!({ "n_group": 3 }), "3 groups"),
        (LITE, json!({ "q_lora_rank": null }), "q_proj"),
        (LITE, json!({ "kv_lora_rank": 64 }), "embed_q"),
        (LITE, json!({ "rope_scaling": { "type": "spiral" } }), "spiral"),
        (LITE, json!({ "mlp_layer_types": ["dense", "dense"] }), "mlp_layer_types"),
        (DSA, json!({ "indexer_rope_interleave": false }), "indexer_rope_interleave"),
        (DSA, json!({ "index_topk_pattern": "SF" }), "index_topk_pattern"),
        (DSA, json!({ "indexer_types": ["full"] }), "indexer_types"),
        (DSA, json!({ "index_head_dim": 4 }), "index_head_dim"),
        (DSA, json!({ "index_n_heads": 4 }), "indexer.wq_b"),
    ];
    for (checkpoint, fields, named) in cases {
        let error = refusal(checkpoint, &fields);
        assert_eq!(error.code(), Code::BadModel, "{checkpoint} with {fields}: {error}");
        assert!(error.message().contains(named), "{checkpoint} with {fields}: {error}");
    }
}

#[test]
fn a_layer_that_is_to_choose_needs_an_indexer() {
    let gone = "model.layers.2.self_attn.indexer.";
    let change = |name: &str| match name.starts_with(gone) {
        true => Change::Drop,
        false => Change::Keep,
    };
    let error = variant::load(&Value::Null, change).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), Code::BadModel);
    assert!(error.message().contains(gone), "{error}");
    let shares = json!({ "index_topk_pattern": "FFSFS" });
    assert!(variant::load(&shares, change).is_ok());
}

/// mlx-lm leaves the prediction layer out when it converts a checkpoint.
#[test]
fn a_checkpoint_without_a_prediction_layer_answers_the_same_and_drafts_nothing() {
    let whole = variant::load(&Value::Null, |_| Change::Keep).unwrap().model;
    let without = |name: &str| match name.starts_with("model.layers.5.") {
        true => Change::Drop,
        false => Change::Keep,
    };
    let converted = variant::load(&Value::Null, without).unwrap().model;
    assert!(whole.prediction_head().is_some());
    assert!(converted.prediction_head().is_none());
    let prompt = ops::token_matrix(&[(7..37).collect::<Vec<u32>>()].concat(), 1);
    let logits = [whole, converted].map(|model| {
        let hidden = model.hidden(&prompt, &mut model.new_caches()).unwrap();
        variant::last_logits(&*model, &hidden)
    });
    assert_eq!(logits[0], logits[1]);
}

#[test]
fn a_prediction_layer_without_all_of_its_tensors_is_refused() {
    for missing in ["enorm", "shared_head.norm", "self_attn.indexer.wk", "mlp.experts.3.up_proj"] {
        let missing = format!("model.layers.5.{missing}.weight");
        let change = |name: &str| match name == missing {
            true => Change::Drop,
            false => Change::Keep,
        };
        let error = variant::load(&Value::Null, change).map(|_| ()).unwrap_err();
        assert!(error.message().contains(&missing), "{error}");
    }
}

#[test]
fn weights_of_another_kind_than_floats_are_refused_by_name() {
    // As block-quantized checkpoints have them: bytes under a weight's name, beside their scales.
    let change = |name: &str| match name {
        "model.layers.1.self_attn.q_a_proj.weight" => Change::AsBytes,
        _ => Change::Keep,
    };
    let error = variant::load(&Value::Null, change).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), Code::BadModel);
    assert!(error.message().contains("layers.1.self_attn.q_a_proj"), "{error}");
}
