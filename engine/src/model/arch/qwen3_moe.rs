//! Qwen3, mixture of experts: Qwen3 in which most layers choose experts by a softmax over all of them.
//! mlx-lm 0.32.2, `qwen3_moe.py`.

use serde_json::Value;

use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    Activation, AttentionShape, Decoder, DecoderSpec, LayerSpec, MixtureSpec, NormSpan, Rope,
    RopeOptions, Routing, rope_kind,
};
use crate::model::{ModelConfig, full_layers};

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    for name in ["num_key_value_heads", "head_dim"] {
        config.count(name)?;
    }
    let tied = required_flag(config, "tie_word_embeddings")?;
    let (rope, mixture) = (rope(config)?, mixture(config)?);
    let layer = |chooses: bool| LayerSpec {
        head_norms: Some(NormSpan::EachHead),
        mixture: chooses.then_some(mixture),
        ..LayerSpec::full(rope.clone())
    };
    let layers = choosing(config, full_layers(config)?)?.into_iter().map(layer).collect();
    DecoderSpec::of_config(config, layers, tied)?.load(config, weights)
}

/// The oracle turns by `rope_theta` alone, whatever `rope_scaling` says.
fn rope(config: &ModelConfig) -> Result<Rope> {
    let shape = AttentionShape::of_config(config)?;
    let options = RopeOptions::of_config(config, shape.head_dimension, None)?;
    match &options.scaling {
        Some(scaling) if rope_kind(scaling)? != "default" => {
            let kind = rope_kind(scaling)?;
            let hint = "this family is proven without a stretched rope only";
            Err(config.wrong("rope_scaling", &kind.into()).with_hint(hint))
        }
        _ => Rope::new(&RopeOptions { traditional: false, ..options }),
    }
}

fn mixture(config: &ModelConfig) -> Result<MixtureSpec> {
    Ok(MixtureSpec {
        experts: config.count("num_experts")?,
        chosen: config.count("num_experts_per_tok")?,
        intermediate: config.count("moe_intermediate_size")?,
        activation: Activation::Silu,
        routing: Routing::TopOfSoftmax { normalized: required_flag(config, "norm_topk_prob")? },
        router_name: "gate",
        experts_name: "switch_mlp",
        shared: None,
    })
}

/// Which layers choose experts: every `decoder_sparse_step`-th, but for those in `mlp_only_layers`.
fn choosing(config: &ModelConfig, layers: usize) -> Result<Vec<bool>> {
    let step = config.count("decoder_sparse_step")?.unsigned_abs() as usize;
    let listed = config.get("mlp_only_layers").ok_or_else(|| config.missing("mlp_only_layers"))?;
    let dense = listed.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
    let dense: Vec<u64> = dense.ok_or_else(|| config.wrong("mlp_only_layers", listed))?;
    let chooses =
        |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as u64));
    Ok((0..layers).map(chooses).collect())
}

fn required_flag(config: &ModelConfig, name: &str) -> Result<bool> {
    config.get(name).ok_or_else(|| config.missing(name))?;
    config.flag(name, false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn layers_choose_experts_where_the_config_says_so() {
        let of = |step: i32, dense: &Value| {
            let fields = json!({ "decoder_sparse_step": step, "mlp_only_layers": dense });
            choosing(&ModelConfig::from_fields(fields.as_object().unwrap().clone()), 4)
        };
        assert_eq!(of(1, &json!([])).unwrap(), [true; 4]);
        assert_eq!(of(2, &json!([])).unwrap(), [false, true, false, true]);
        assert_eq!(of(1, &json!([0, 2])).unwrap(), [false, true, false, true]);
        for bad in [json!(null), json!(3), json!(["0"]), json!([-1])] {
            assert!(of(1, &bad).unwrap_err().message().contains("mlp_only_layers"));
        }
        assert!(of(0, &json!([])).unwrap_err().message().contains("decoder_sparse_step"));
    }
}
