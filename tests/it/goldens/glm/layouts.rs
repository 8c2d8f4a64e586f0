//! What checkpoints of these families must hold, and how they may be laid out.

use serde_json::{Value, json};
use slipstream_engine::error::Code;
use slipstream_engine::mlx::ops;
use slipstream_engine::model::Model;

use super::super::dense::check_refused;
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
            check_refused(checkpoint, &json!({ *field: null }), field);
        }
    }
}

#[test]
fn configs_that_ask_for_what_is_not_proven_are_refused_by_name() {
    let cases = [
        (
            LITE,
            json!({ "quantization": null, "quantization_config": { "quant_method": "fp8" } }),
            "fp8",
        ),
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
        check_refused(checkpoint, &fields, named);
    }
}

#[test]
fn layers_have_indexers_just_where_they_choose() {
    let load = |fields: &Value, gone: &[usize]| {
        variant::load(fields, variant::without(&variant::indexers(gone))).map(|_| ())
    };
    let shares = json!({ "index_topk_pattern": "FFSFS" });
    assert_eq!(load(&shares, &[2, 4]), Ok(()));
    for (fields, gone, named) in [
        (&Value::Null, &[2][..], "model.layers.2.self_attn.indexer"),
        (&shares, &[2], "model.layers.4.self_attn.indexer"),
        (&shares, &[2, 3, 4], "model.layers.3.self_attn.indexer"),
    ] {
        let error = load(fields, gone).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        assert!(error.message().contains(named), "{error}");
    }
}

fn logits(model: &dyn Model) -> Vec<f32> {
    let prompt = ops::token_matrix(&(7..37).collect::<Vec<u32>>(), 1);
    let hidden = model.hidden(&prompt, &mut model.new_caches()).unwrap();
    variant::last_logits(model, &hidden)
}

/// mlx-lm leaves the prediction layer out when it converts a checkpoint.
#[test]
fn a_checkpoint_without_a_prediction_layer_answers_the_same_and_drafts_nothing() {
    let whole = variant::load(&Value::Null, |_| Change::Keep).unwrap().model;
    let layer = ["model.layers.5.".to_owned()];
    let converted = variant::load(&Value::Null, variant::without(&layer)).unwrap().model;
    assert!(whole.prediction_head().is_some());
    assert!(converted.prediction_head().is_none());
    assert_eq!(logits(&*whole), logits(&*converted));
}

#[test]
fn a_prediction_layer_may_bring_copies_of_embedding_and_head_but_no_tensor_may_be_missing() {
    let copies = |name: &str| match name {
        "model.embed_tokens.weight" => {
            Change::CopyAs("model.layers.5.embed_tokens.weight".to_owned())
        }
        "lm_head.weight" => Change::CopyAs("model.layers.5.shared_head.head.weight".to_owned()),
        _ => Change::Keep,
    };
    let with_copies = variant::load(&Value::Null, copies).unwrap();
    let without = variant::load(&Value::Null, |_| Change::Keep).unwrap();
    assert!(with_copies.model.prediction_head().is_some());
    assert_eq!(with_copies.weights_bytes, without.weights_bytes);
    for missing in ["enorm", "shared_head.norm", "self_attn.indexer.wk", "mlp.experts.3.up_proj"] {
        let missing = [format!("model.layers.5.{missing}.weight")];
        let error = variant::load(&Value::Null, variant::without(&missing)).map(|_| ());
        let error = error.unwrap_err();
        assert!(error.message().contains(&missing[0]), "{error}");
    }
}
