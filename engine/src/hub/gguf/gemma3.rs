//! The `gemma3` architecture: the text part of Gemma 3.
//!
//! llama.cpp stores norm weights with the 1 that Gemma adds to them already in; it is taken out
//! again. Five of six layers slide over a window and rotate with their own base frequency.

use serde_json::{Value, json};

use super::Header;
use super::bad_import;
use super::plan::{Claims, Dimensions, Keys, LayerTensor, ModelPlan};
use crate::error::Result;

pub(super) const ARCHITECTURE: &str = "gemma3";

const MODEL_TYPE: &str = "gemma3_text";
/// Takes out the 1 that llama.cpp's converter has added to norm weights.
const NORM_SHIFT: f32 = -1.0;
/// What llama.cpp assumes when the file does not say (`llama-model.cpp`, `LLM_ARCH_GEMMA3`).
const ROPE_THETA_DEFAULT: f64 = 1_000_000.0;
const ROPE_THETA_SLIDING_DEFAULT: f64 = 10_000.0;
const SLIDING_WINDOW_PATTERN_DEFAULT: u64 = 6;
/// The 27B model alone scales attention by its hidden size per head instead of by its head size,
/// and llama.cpp, too, tells it by its layers.
const LAYERS_OF_27B: u64 = 62;

pub(super) fn plan(header: &Header) -> Result<ModelPlan> {
    let keys = Keys { metadata: &header.metadata, architecture: ARCHITECTURE };
    if let Some(cap) = keys.positive("final_logit_softcapping")? {
        return Err(bad_import(format!(
            "a gemma3 model with its logits capped at {cap} is not supported"
        )));
    }
    let dimensions = Dimensions::read(header, ARCHITECTURE, ROPE_THETA_DEFAULT)?;
    let mut claims = Claims::new(header);
    let tied = claims.claim_ends(&dimensions, NORM_SHIFT)?;
    claims.claim_layers(dimensions.layers, &weights(&dimensions))?;
    let tensors = claims.finish(ARCHITECTURE)?;

    let pattern = keys
        .optional_size("attention.sliding_window_pattern")?
        .unwrap_or(SLIDING_WINDOW_PATTERN_DEFAULT);
    let activation = ("hidden_activation", "gelu_pytorch_tanh");
    let mut config = dimensions.config("Gemma3ForCausalLM", MODEL_TYPE, activation);
    let mut put = |key: &str, value: Value| config.insert(key.to_owned(), value);
    put("rope_local_base_freq", sliding_theta(&keys)?.into());
    put("rope_scaling", keys.linear_scaling()?.unwrap_or(Value::Null));
    put("query_pre_attn_scalar", attention_scalar(&dimensions).into());
    put("sliding_window", keys.size("attention.sliding_window")?.into());
    put("sliding_window_pattern", pattern.into());
    put("layer_types", layer_types(dimensions.layers, pattern));
    put("attention_bias", false.into());
    put("tie_word_embeddings", tied.into());
    Ok(ModelPlan { model_type: MODEL_TYPE, config, tensors })
}

fn sliding_theta(keys: &Keys<'_>) -> Result<f64> {
    Ok(keys.positive("rope.freq_base_swa")?.unwrap_or(ROPE_THETA_SLIDING_DEFAULT))
}

fn attention_scalar(dimensions: &Dimensions) -> u64 {
    match dimensions.layers {
        LAYERS_OF_27B => dimensions.hidden / dimensions.heads,
        _ => dimensions.head,
    }
}

fn layer_types(layers: u64, pattern: u64) -> Value {
    let kinds = (1..=layers).map(|layer| match layer.is_multiple_of(pattern) {
        true => "full_attention",
        false => "sliding_attention",
    });
    json!(kinds.collect::<Vec<_>>())
}

fn weights(dimensions: &Dimensions) -> Vec<LayerTensor> {
    let Dimensions { hidden, intermediate, head, .. } = *dimensions;
    let (query, kv) = (dimensions.query_rows(), dimensions.kv_rows());
    let norm = |source, target, size| LayerTensor::new(source, target, &[size]).shifted(NORM_SHIFT);
    vec![
        norm("attn_norm.weight", "input_layernorm.weight", hidden),
        LayerTensor::new("attn_q.weight", "self_attn.q_proj.weight", &[query, hidden]),
        LayerTensor::new("attn_k.weight", "self_attn.k_proj.weight", &[kv, hidden]),
        LayerTensor::new("attn_v.weight", "self_attn.v_proj.weight", &[kv, hidden]),
        LayerTensor::new("attn_output.weight", "self_attn.o_proj.weight", &[hidden, query]),
        norm("attn_q_norm.weight", "self_attn.q_norm.weight", head),
        norm("attn_k_norm.weight", "self_attn.k_norm.weight", head),
        norm("post_attention_norm.weight", "post_attention_layernorm.weight", hidden),
        norm("ffn_norm.weight", "pre_feedforward_layernorm.weight", hidden),
        LayerTensor::new("ffn_gate.weight", "mlp.gate_proj.weight", &[intermediate, hidden]),
        LayerTensor::new("ffn_up.weight", "mlp.up_proj.weight", &[intermediate, hidden]),
        LayerTensor::new("ffn_down.weight", "mlp.down_proj.weight", &[hidden, intermediate]),
        norm("post_ffw_norm.weight", "post_feedforward_layernorm.weight", hidden),
    ]
}
