//! GLM-4.7-Flash: latent attention over everything, experts from the second layer on. mlx-lm 0.32.2,
//! `glm4_moe_lite.py`. Its prediction layer is left aside, as there.

use serde_json::{Value, json};

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    Activation, LatentAttentionSpec, LatentDecoder, LatentDecoderSpec, LatentLayerSpec,
    LatentShape, MixtureSpec, Rope, RopeOptions, Routing, SharedSpec, SigmoidRouting, latent_scale,
    split_joined,
};

/// Theta, where the config names none.
const BASE: f64 = 1_000_000.0;

/// Layers without experts, where the config does not say.
const DENSE_LAYERS: i32 = 1;

/// Splits the joined matrices of latent attention, and drops the prediction layer.
///
/// # Errors
/// `BadModel` when a field is missing or a tensor does not fit.
pub fn arrange(config: &ModelConfig, weights: &mut Weights) -> Result<()> {
    let layers = config.count("num_hidden_layers")?;
    weights.discard(|name| layer_of(name).is_some_and(|layer| layer >= layers));
    split_all(config, weights, layers)
}

/// Splits the joined matrices of the first `layers` layers.
pub(super) fn split_all(config: &ModelConfig, weights: &mut Weights, layers: i32) -> Result<()> {
    let shape = LatentShape::of_config(config)?;
    let path = |layer| format!("model.layers.{layer}.self_attn");
    (0..layers).try_for_each(|layer| split_joined(weights, &path(layer), &shape))
}

/// The layer that a tensor is of.
fn layer_of(name: &str) -> Option<i32> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

/// Builds the model from its tensors, which [`arrange`] has seen.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<LatentDecoder> {
    check_proven(config)?;
    let shape = LatentShape::of_config(config)?;
    let epsilon = config.number("rms_norm_eps")?;
    let rope = RopeOptions::of_config(config, shape.turned, Some(BASE))?;
    let dense = config.optional_whole("first_k_dense_replace")?.unwrap_or(DENSE_LAYERS);
    let layer = |mixture| LatentLayerSpec { indexer: None, mixture };
    let spec = LatentDecoderSpec {
        attention: LatentAttentionSpec {
            shape,
            epsilon,
            scale: latent_scale(rope.scaling.as_ref(), shape.query())?,
            rope: Rope::new(&RopeOptions { traditional: true, ..rope })?,
        },
        layers: mixtures(config, dense)?.into_iter().map(layer).collect(),
        prediction: None,
        intermediate: config.count("intermediate_size")?,
        vocabulary: config.count("vocab_size")?,
        epsilon,
    };
    spec.load(config, weights)
}

/// Refuses what the GLM families with latent attention are not proven with.
pub(super) fn check_proven(config: &ModelConfig) -> Result<()> {
    let proven = [
        ("hidden_act", json!("silu")),
        ("mlp_bias", json!(false)),
        ("partial_rotary_factor", json!(1)),
        ("rope_interleave", json!(true)),
        ("scoring_func", json!("sigmoid")),
        ("tie_word_embeddings", json!(false)),
        ("topk_method", json!("noaux_tc")),
    ];
    proven.iter().try_for_each(|(name, value)| config.check_only(name, value))
}

/// What stands in for each layer's feed-forward block: experts from layer `dense` on, in each
/// `moe_layer_freq`th layer; `mlp_layer_types` says the same in newer configs.
pub(super) fn mixtures(config: &ModelConfig, dense: i32) -> Result<Vec<Option<MixtureSpec>>> {
    let layers = 0..config.count("num_hidden_layers")?;
    let Some(mixture) = mixture(config)? else { return Ok(layers.map(|_| None).collect()) };
    let every = config.optional_count("moe_layer_freq")?.unwrap_or(1);
    let sparse: Vec<bool> = layers.map(|index| index >= dense && index % every == 0).collect();
    if let Some(types) = config.get("mlp_layer_types") {
        let name = |sparse: &bool| json!(if *sparse { "sparse" } else { "dense" });
        let expected = Value::Array(sparse.iter().map(name).collect());
        if *types != expected {
            let hint = format!("the other fields say {expected}");
            return Err(config.wrong("mlp_layer_types", types).with_hint(hint));
        }
    }
    Ok(sparse.into_iter().map(|sparse| sparse.then_some(mixture)).collect())
}

/// The experts of a layer that has some; `None` where the config knows no experts.
pub(super) fn mixture(config: &ModelConfig) -> Result<Option<MixtureSpec>> {
    let Some(experts) = config.optional_count("n_routed_experts")? else { return Ok(None) };
    let intermediate = config.count("moe_intermediate_size")?;
    let shared = config.optional_count("n_shared_experts")?.map(|count| SharedSpec {
        name: "shared_experts",
        intermediate: intermediate * count,
        gate_name: None,
    });
    let routing = SigmoidRouting {
        groups: config.optional_count("n_group")?.unwrap_or(1),
        groups_kept: config.optional_count("topk_group")?.unwrap_or(1),
        normalized: config.flag("norm_topk_prob", true)?,
        factor: config.number("routed_scaling_factor")?,
    };
    Ok(Some(MixtureSpec {
        experts,
        chosen: config.count("num_experts_per_tok")?,
        intermediate,
        activation: Activation::Silu,
        routing: Routing::Sigmoid(routing),
        router_name: "gate",
        experts_name: "switch_mlp",
        shared,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::mlx::{Array, Device};

    fn of(fields: &Value) -> Result<String> {
        let mut all = json!({
            "num_hidden_layers": 5, "n_routed_experts": 8, "moe_intermediate_size": 16,
            "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
        });
        for (name, value) in fields.as_object().unwrap() {
            all[name] = value.clone();
        }
        let config = ModelConfig::from_fields(all.as_object().unwrap().clone());
        let letter = |mixture: Option<MixtureSpec>| if mixture.is_some() { 'E' } else { 'd' };
        Ok(mixtures(&config, 2)?.into_iter().map(letter).collect())
    }

    #[test]
    fn what_a_prediction_layer_holds_is_dropped() {
        Device::cpu();
        let names = [
            "model.layers.1.input_layernorm.weight",
            "model.layers.2.eh_proj.weight",
            "model.layers.12.mlp.gate.weight",
            "model.norm.weight",
        ];
        let array = || Array::from_f32(1.0);
        let mut weights = Weights::of(names.map(|name| (name.to_owned(), array())));
        let fields = json!({
            "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "kv_lora_rank": 4,
            "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4,
        });
        let config = ModelConfig::from_fields(fields.as_object().unwrap().clone());
        arrange(&config, &mut weights).unwrap();
        assert_eq!(names.map(|name| weights.contains(name)), [true, false, false, true]);
    }

    #[test]
    fn layers_have_experts_where_the_config_says_so() {
        let types = json!(["dense", "dense", "sparse", "sparse", "sparse"]);
        let cases = [
            (json!({}), "ddEEE"),
            (json!({ "moe_layer_freq": 2 }), "ddEdE"),
            (json!({ "mlp_layer_types": types }), "ddEEE"),
            (json!({ "n_routed_experts": null }), "ddddd"),
        ];
        for (fields, expected) in cases {
            assert_eq!(of(&fields).unwrap(), expected, "{fields}");
        }
        let error = of(&json!({ "mlp_layer_types": types, "moe_layer_freq": 2 })).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        assert!(error.message().contains("mlp_layer_types"), "{error}");
    }

    #[test]
    fn fields_of_other_values_than_the_proven_ones_are_refused_by_name() {
        let check = |fields: &Value| {
            check_proven(&ModelConfig::from_fields(fields.as_object().unwrap().clone()))
        };
        let accepted = [
            json!({}),
            json!({ "partial_rotary_factor": 1.0, "hidden_act": "silu", "mlp_bias": null }),
        ];
        for fields in accepted {
            assert_eq!(check(&fields), Ok(()), "{fields}");
        }
        let refused = [
            json!({ "hidden_act": "gelu" }),
            json!({ "mlp_bias": true }),
            json!({ "partial_rotary_factor": 0.5 }),
            json!({ "rope_interleave": false }),
            json!({ "scoring_func": "softmax" }),
            json!({ "tie_word_embeddings": true }),
            json!({ "topk_method": "greedy" }),
        ];
        for fields in refused {
            let (name, value) = fields.as_object().unwrap().iter().next().unwrap();
            let error = check(&fields).unwrap_err();
            assert!(error.message().contains(name), "{error}");
            assert!(error.message().contains(&value.to_string()), "{error}");
        }
    }
}
