use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn config(fields: &Value) -> ModelConfig {
    ModelConfig::from_fields(fields.as_object().unwrap().clone())
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 288,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "max_position_embeddings": 4096,
    })
}

fn gemma4() -> Value {
    json!({
        "model_type": "gemma4_text", "hidden_size": 32, "num_hidden_layers": 6, "vocab_size": 288,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16,
        "sliding_window": 8, "sliding_window_pattern": 3, "num_kv_shared_layers": 2,
        "max_position_embeddings": 64, "intermediate_size": 96,
    })
}

#[test]
fn layers_keep_what_their_family_keeps() {
    let token =
        |dimension| TokenShape { heads: 2, key_dimension: dimension, value_dimension: dimension };
    let outline = Outline::of_config(&config(&llama())).unwrap();
    assert_eq!(outline.layers, [LayerOutline::Full(token(16)); 3]);
    let outline = Outline::of_config(&config(&gemma4())).unwrap();
    let sliding = LayerOutline::Sliding { token: token(8), window_tokens: 8 };
    let full = LayerOutline::Full(token(16));
    let shared = LayerOutline::Shared;
    assert_eq!(outline.layers, [sliding, sliding, full, sliding, shared, shared]);
    assert_eq!(outline.cache_kinds(), ["sliding", "full"]);
    assert_eq!(outline.kv_profile(&KvScheme::Plain, 2).layers.len(), 4);
}

#[test]
fn fields_that_cannot_be_are_refused_by_name() {
    for (name, value) in [
        ("num_hidden_layers", json!(2_000_000_000)),
        ("num_hidden_layers", json!(null)),
        ("hidden_size", json!(1 << 30)),
        ("vocab_size", json!(-1)),
        ("num_attention_heads", json!("4")),
        ("max_position_embeddings", json!(1.5)),
        ("text_config", json!(3)),
        ("quantization", json!({ "bits": 4 })),
        ("quantization_config", json!({ "quant_method": "gptq" })),
    ] {
        let mut fields = llama();
        fields[name] = value;
        let error = Outline::of_config(&config(&fields)).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        let named = ["group_size", "quant_method", name];
        assert!(named.iter().any(|name| error.message().contains(name)), "{name}: {error}");
    }
    let mut fields = llama();
    fields["model_type"] = json!("mamba9");
    let error = Outline::of_config(&config(&fields)).unwrap_err();
    assert!(error.message().contains("`mamba9`"), "{error}");
}

#[test]
fn caches_that_no_model_has_are_refused() {
    let mut fields = llama();
    for name in ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"] {
        fields[name] = json!(1 << 20);
    }
    fields["num_hidden_layers"] = json!(4096);
    let error = Outline::of_config(&config(&fields)).unwrap_err();
    assert!(error.message().contains("bytes in the caches"), "{error}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        Just(json!(0)),
        Just(json!(1)),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..1 << 33).prop_map(Value::from),
    ];
    let kinds = ["full_attention", "sliding_attention", "full", "FS", "affine", "", "é\u{0}"];
    prop_oneof![
        3 => numbers.clone(),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => prop::sample::select(kinds.to_vec()).prop_map(Value::from),
        1 => prop::collection::vec(numbers, 0..6).prop_map(Value::from),
        1 => Just(json!({ "bits": 0, "group_size": i64::MAX, "factor": -1e300, "type": "dynamic" })),
    ]
}

/// A config of any family with some fields replaced.
fn any_config() -> impl Strategy<Value = Map<String, Value>> {
    let types: Vec<_> = Outline::model_types().collect();
    let mut names: Vec<String> = [
        "layer_types",
        "quantization",
        "quantization_config",
        "text_config",
        "rope_scaling",
        "canvas_length",
        "index_topk_freq",
        "index_skip_topk_offset",
        "indexer_types",
        "index_topk_pattern",
        "index_head_dim",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "full_attention_interval",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ]
    .map(str::to_owned)
    .into();
    let known = [llama(), gemma4()].map(|fields| fields.as_object().unwrap().clone());
    names.extend(known.iter().flat_map(|fields| fields.keys().cloned()));
    let changes = prop::collection::vec((prop::sample::select(names), any_value()), 0..12);
    (prop::sample::select(types), prop::sample::select(known.to_vec()), changes).prop_map(
        |(model_type, mut fields, changes)| {
            fields.insert("model_type".to_owned(), model_type.into());
            fields.extend(changes);
            fields
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whatever a config says, it is an outline within bounds or an error: sums over it cannot overflow.
    #[test]
    fn any_config_is_an_outline_within_bounds_or_an_error(fields in any_config()) {
        match Outline::of_config(&ModelConfig::from_fields(fields)) {
            Err(error) => prop_assert_eq!(error.code(), Code::BadModel),
            Ok(outline) => {
                prop_assert!(outline.layers.len() <= MODEL_LAYERS_MAX);
                for tokens in [1, outline.context_tokens, i32::MAX as usize] {
                    let profile = outline.kv_profile(&KvScheme::Plain, 4);
                    prop_assert!(profile.batch_bytes(4, tokens) >= profile.row_bytes(1));
                }
            }
        }
    }
}
