//! The `llama` architecture: Llama, SmolLM2, Mistral and what else llama.cpp files under that name.
//!
//! Query and key rows are stored for rotation of adjacent pairs and are put back in half-split
//! order. RoPE scaling is linear, or Llama 3's: llama.cpp keeps the latter as a tensor of divisors,
//! from which the parameters are recovered and checked.

use std::f64::consts::TAU;

use serde_json::{Value, json};

use super::plan::{Claims, Dimensions, Keys, LayerTensor, ModelPlan, ROPE_FACTORS};
use super::{Header, bad_import};
use crate::error::Result;

pub(super) const ARCHITECTURE: &str = "llama";

/// What llama.cpp assumes when the file does not say.
const ROPE_THETA_DEFAULT: f64 = 10_000.0;

pub(super) fn plan(header: &Header, rope_factors: Option<&[f32]>) -> Result<ModelPlan> {
    let keys = Keys { metadata: &header.metadata, architecture: ARCHITECTURE };
    if let Some(experts) =
        keys.metadata.count(&keys.key("expert_count"))?.filter(|count| *count > 0)
    {
        return Err(bad_import(format!("a llama model with {experts} experts is not supported")));
    }
    let dimensions = Dimensions::read(header, ARCHITECTURE, ROPE_THETA_DEFAULT)?;
    let scaling = rope_scaling(&keys, &dimensions, rope_factors)?;
    let mut claims = Claims::new(header);
    let attention_bias = claims.has("blk.0.attn_q.bias");
    let mlp_bias = claims.has("blk.0.ffn_gate.bias");
    let tied = claims.claim_ends(&dimensions, 0.0)?;
    claims.claim_layers(dimensions.layers, &weights(&dimensions))?;
    if attention_bias {
        claims.claim_layers(dimensions.layers, &attention_biases(&dimensions))?;
    }
    if mlp_bias {
        claims.claim_layers(dimensions.layers, &mlp_biases(&dimensions))?;
    }
    claims.consume(ROPE_FACTORS);
    let tensors = claims.finish(ARCHITECTURE)?;

    let mut config = dimensions.config("LlamaForCausalLM", ARCHITECTURE, ("hidden_act", "silu"));
    config.insert("rope_scaling".to_owned(), scaling.unwrap_or(Value::Null));
    config.insert("attention_bias".to_owned(), attention_bias.into());
    config.insert("mlp_bias".to_owned(), mlp_bias.into());
    config.insert("tie_word_embeddings".to_owned(), tied.into());
    Ok(ModelPlan { model_type: ARCHITECTURE, config, tensors })
}

fn weights(dimensions: &Dimensions) -> Vec<LayerTensor> {
    let Dimensions { hidden, intermediate, heads, kv_heads, .. } = *dimensions;
    let (query, kv) = (dimensions.query_rows(), dimensions.kv_rows());
    vec![
        LayerTensor::new("attn_norm.weight", "input_layernorm.weight", &[hidden]),
        LayerTensor::new("attn_q.weight", "self_attn.q_proj.weight", &[query, hidden])
            .half_split(heads),
        LayerTensor::new("attn_k.weight", "self_attn.k_proj.weight", &[kv, hidden])
            .half_split(kv_heads),
        LayerTensor::new("attn_v.weight", "self_attn.v_proj.weight", &[kv, hidden]),
        LayerTensor::new("attn_output.weight", "self_attn.o_proj.weight", &[hidden, query]),
        LayerTensor::new("ffn_norm.weight", "post_attention_layernorm.weight", &[hidden]),
        LayerTensor::new("ffn_gate.weight", "mlp.gate_proj.weight", &[intermediate, hidden]),
        LayerTensor::new("ffn_up.weight", "mlp.up_proj.weight", &[intermediate, hidden]),
        LayerTensor::new("ffn_down.weight", "mlp.down_proj.weight", &[hidden, intermediate]),
    ]
}

fn attention_biases(dimensions: &Dimensions) -> Vec<LayerTensor> {
    let Dimensions { hidden, heads, kv_heads, .. } = *dimensions;
    let (query, kv) = (dimensions.query_rows(), dimensions.kv_rows());
    vec![
        LayerTensor::new("attn_q.bias", "self_attn.q_proj.bias", &[query]).half_split(heads),
        LayerTensor::new("attn_k.bias", "self_attn.k_proj.bias", &[kv]).half_split(kv_heads),
        LayerTensor::new("attn_v.bias", "self_attn.v_proj.bias", &[kv]),
        LayerTensor::new("attn_output.bias", "self_attn.o_proj.bias", &[hidden]),
    ]
}

fn mlp_biases(dimensions: &Dimensions) -> Vec<LayerTensor> {
    let Dimensions { hidden, intermediate, .. } = *dimensions;
    vec![
        LayerTensor::new("ffn_gate.bias", "mlp.gate_proj.bias", &[intermediate]),
        LayerTensor::new("ffn_up.bias", "mlp.up_proj.bias", &[intermediate]),
        LayerTensor::new("ffn_down.bias", "mlp.down_proj.bias", &[hidden]),
    ]
}

fn rope_scaling(
    keys: &Keys<'_>,
    dimensions: &Dimensions,
    rope_factors: Option<&[f32]>,
) -> Result<Option<Value>> {
    let linear = keys.linear_scaling()?;
    let divided = rope_factors.filter(|factors| factors.iter().any(|factor| *factor != 1.0));
    match (linear, divided) {
        (Some(_), Some(_)) => Err(bad_import(format!(
            "linear RoPE scaling together with `{ROPE_FACTORS}` cannot be expressed in config.json"
        ))),
        (None, Some(factors)) => llama3_scaling(keys, dimensions, factors).map(Some),
        (linear, None) => Ok(linear),
    }
}

/// Llama 3's scaling with the constants that all its releases share.
#[derive(Debug, Clone, Copy)]
struct Llama3Scaling {
    factor: f64,
    original_context: f64,
}

impl Llama3Scaling {
    const LOW_FREQUENCY_FACTOR: f64 = 1.0;
    const HIGH_FREQUENCY_FACTOR: f64 = 4.0;
    const ORIGINAL_CONTEXT_DEFAULT: u64 = 8192;

    /// The divisor of frequency `index` of `2 * frequencies` rotated values; the formula of
    /// `_compute_llama3_parameters` in transformers' `modeling_rope_utils.py`.
    fn divisor(self, index: usize, frequencies: usize, theta: f64) -> f64 {
        let wavelength = TAU * theta.powf(index as f64 / frequencies as f64);
        if wavelength < self.original_context / Self::HIGH_FREQUENCY_FACTOR {
            return 1.0;
        }
        if wavelength > self.original_context / Self::LOW_FREQUENCY_FACTOR {
            return self.factor;
        }
        let smooth = (self.original_context / wavelength - Self::LOW_FREQUENCY_FACTOR)
            / (Self::HIGH_FREQUENCY_FACTOR - Self::LOW_FREQUENCY_FACTOR);
        1.0 / ((1.0 - smooth) / self.factor + smooth)
    }
}

/// Recovers the parameters behind `factors`, and refuses factors that they do not reproduce.
fn llama3_scaling(keys: &Keys<'_>, dimensions: &Dimensions, factors: &[f32]) -> Result<Value> {
    let original_context = keys
        .optional_size("rope.scaling.original_context_length")?
        .unwrap_or(Llama3Scaling::ORIGINAL_CONTEXT_DEFAULT);
    let scaling = Llama3Scaling {
        factor: factors.iter().copied().map(f64::from).fold(0.0, f64::max),
        original_context: original_context as f64,
    };
    let reproduced = factors.len() as u64 * 2 == dimensions.head
        && factors.iter().enumerate().all(|(index, factor)| {
            let expected = scaling.divisor(index, factors.len(), dimensions.rope_theta);
            (f64::from(*factor) - expected).abs() <= 1e-4 * expected
        });
    if !reproduced {
        return Err(bad_import(format!(
            "the {} RoPE divisors of `{ROPE_FACTORS}` are not Llama 3's scaling over {original_context} \
             positions, so config.json cannot express them",
            factors.len()
        )));
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": Llama3Scaling::LOW_FREQUENCY_FACTOR,
        "high_freq_factor": Llama3Scaling::HIGH_FREQUENCY_FACTOR,
        "original_max_position_embeddings": original_context,
    }))
}
