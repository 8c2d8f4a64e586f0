//! GLM-5, 5.1 and 5.2: latent attention over the columns that an indexer chooses, experts, and a layer
//! that drafts. mlx-lm 0.32.2, `glm_moe_dsa.py`; for layers that share another's choice, which it does
//! not load, and for the drafts: transformers 5.24.0 and mlx-vlm 0.7.10.

use serde_json::{Value, json};

use super::glm4_moe_lite::{check_proven, mixture, mixtures, split_all};
use crate::error::{Code, Error, Result};
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    IndexerSpec, LatentAttentionSpec, LatentDecoder, LatentDecoderSpec, LatentLayerSpec,
    LatentShape, Rope, RopeOptions, latent_scale,
};

/// What norms of latents add under the root, whatever the config says of the others.
const LATENT_EPSILON: f32 = 1e-6;

/// Layers after which the first one may share, where the config does not say.
const OFFSET: i32 = 2;

/// Splits the joined matrices of latent attention, also those of the prediction layer, and drops the
/// copies of embedding and head that some checkpoints have in that layer: the model's own serve it.
///
/// # Errors
/// `BadModel` when a field is missing or a tensor does not fit.
pub fn arrange(config: &ModelConfig, weights: &mut Weights) -> Result<()> {
    let layers = config.count("num_hidden_layers")?;
    let copies = ["embed_tokens.", "shared_head.head."];
    let copies = copies.map(|name| format!("model.layers.{layers}.{name}"));
    weights.discard(|name| copies.iter().any(|prefix| name.starts_with(prefix)));
    split_all(config, weights, layers + 1)
}

/// Builds the model from its tensors, which [`arrange`] has seen.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<LatentDecoder> {
    check_proven(config)?;
    // transformers turns neighbours whatever this says, mlx-lm does as it says.
    config.check_only("indexer_rope_interleave", &json!(true))?;
    let shape = LatentShape::of_config(config)?;
    shape.query_latent.ok_or_else(|| config.missing("q_lora_rank"))?;
    let rope = rope(config, shape.turned)?;
    let indexer = indexer(config, &rope)?;
    let mixtures = mixtures(config, config.whole("first_k_dense_replace")?)?;
    let layer = |(chooses, mixture): (bool, _)| {
        let indexer = chooses.then(|| indexer.clone());
        LatentLayerSpec { indexer, mixture }
    };
    let spec = LatentDecoderSpec {
        attention: LatentAttentionSpec {
            shape,
            epsilon: LATENT_EPSILON,
            scale: latent_scale(rope.scaling.as_ref(), shape.query())?,
            rope: Rope::new(&rope)?,
        },
        layers: choosing_layers(config)?.into_iter().zip(mixtures).map(layer).collect(),
        prediction: Some(layer((true, mixture(config)?))),
        intermediate: config.count("intermediate_size")?,
        vocabulary: config.count("vocab_size")?,
        epsilon: config.number("rms_norm_eps")?,
    };
    spec.load(config, weights)
}

/// Of attention and of indexers alike: pairs are neighbours.
fn rope(config: &ModelConfig, dimensions: i32) -> Result<RopeOptions> {
    let parameters = config.section("rope_parameters")?;
    let parameters = parameters.ok_or_else(|| config.missing("rope_parameters"))?;
    Ok(RopeOptions {
        dimensions,
        base: parameters.precise_number("rope_theta")?,
        traditional: true,
        scaling: Some(parameters),
        context_tokens: config.count("max_position_embeddings")?,
    })
}

fn indexer(config: &ModelConfig, rope: &RopeOptions) -> Result<IndexerSpec> {
    let spec = IndexerSpec {
        heads: config.count("index_n_heads")?,
        dimension: config.count("index_head_dim")?,
        chosen: config.count("index_topk")?,
        rope: Rope::new(rope)?,
    };
    if spec.dimension < rope.dimensions {
        let (heads, turned) = (spec.dimension, rope.dimensions);
        let message = format!("`index_head_dim` {heads} is less than `qk_rope_head_dim` {turned}");
        return Err(Error::new(Code::BadModel, message));
    }
    Ok(spec)
}

/// Which layers choose for themselves; the others attend to what the last of these chose.
/// `indexer_types` says so, else `index_topk_pattern`, else one in `index_topk_freq` layers does, after
/// the first ones (transformers 5.24.0, `GlmMoeDsaConfig`).
fn choosing_layers(config: &ModelConfig) -> Result<Vec<bool>> {
    let layers = config.count("num_hidden_layers")?;
    for (field, read) in [
        ("indexer_types", listed as fn(&Value) -> Option<Vec<bool>>),
        ("index_topk_pattern", |kinds| listed(kinds).or_else(|| spelled(kinds))),
    ] {
        if let Some(kinds) = config.get(field) {
            let chooses = read(kinds)
                .filter(|chooses| chooses.len() == layers.unsigned_abs() as usize && chooses[0]);
            let hint = format!("{layers} layers need as many entries, and the first one chooses");
            return chooses.ok_or_else(|| config.wrong(field, kinds).with_hint(hint));
        }
    }
    let every = config.optional_count("index_topk_freq")?.unwrap_or(1);
    let offset = config.optional_count("index_skip_topk_offset")?.unwrap_or(OFFSET);
    Ok((0..layers).map(|index| (index - offset + 1).max(0) % every == 0).collect())
}

/// Whether each entry of a list is `full` or `shared`.
fn listed(kinds: &Value) -> Option<Vec<bool>> {
    let chooses = |entry: &Value| match entry.as_str() {
        Some("full") => Some(true),
        Some("shared") => Some(false),
        _ => None,
    };
    kinds.as_array()?.iter().map(chooses).collect()
}

/// The same in letters.
fn spelled(kinds: &Value) -> Option<Vec<bool>> {
    let chooses = |letter| match letter {
        'F' => Some(true),
        'S' => Some(false),
        _ => None,
    };
    kinds.as_str()?.chars().map(chooses).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(fields: &Value) -> Result<Vec<bool>> {
        choosing_layers(&ModelConfig::from_fields(fields.as_object().unwrap().clone()))
    }

    fn letters(chooses: &[bool]) -> String {
        chooses.iter().map(|chooses| if *chooses { 'F' } else { 'S' }).collect()
    }

    #[test]
    fn layers_choose_where_the_config_says_so() {
        let cases = [
            (json!({}), "FFFFFF"),
            (json!({ "index_topk_freq": 1, "index_skip_topk_offset": 3 }), "FFFFFF"),
            (json!({ "index_topk_freq": 3 }), "FFSSFS"),
            (json!({ "index_topk_freq": 3, "index_skip_topk_offset": 2 }), "FFSSFS"),
            (json!({ "index_topk_freq": 2, "index_skip_topk_offset": 3 }), "FFFSFS"),
            (json!({ "index_topk_freq": 9, "index_skip_topk_offset": 1 }), "FSSSSS"),
            (json!({ "index_topk_pattern": "FSFSSS", "index_topk_freq": 3 }), "FSFSSS"),
            (
                json!({
                    "index_topk_pattern": ["full", "shared", "shared", "shared", "shared", "full"]
                }),
                "FSSSSF",
            ),
            (
                json!({
                    "indexer_types": ["full", "shared", "shared", "full", "shared", "full"],
                    "index_topk_pattern": "FFFFFF",
                }),
                "FSSFSF",
            ),
        ];
        for (mut fields, expected) in cases {
            fields["num_hidden_layers"] = json!(6);
            assert_eq!(letters(&of(&fields).unwrap()), expected, "{fields}");
        }
        // GLM-5.2.
        let fields = json!({
            "num_hidden_layers": 78, "index_topk_freq": 4, "index_skip_topk_offset": 3
        });
        let expected: Vec<usize> = (0..3).chain((6..78).step_by(4)).collect();
        let chooses = of(&fields).unwrap();
        let full: Vec<usize> = (0..78).filter(|index| chooses[*index]).collect();
        assert_eq!((&full, full.len()), (&expected, 21));
    }

    #[test]
    fn choices_that_do_not_fit_are_refused_by_name() {
        let cases = [
            (json!({ "indexer_types": ["full", "shared"] }), "indexer_types"),
            (json!({ "indexer_types": ["shared", "full", "full"] }), "indexer_types"),
            (json!({ "indexer_types": ["full", "full", "half"] }), "indexer_types"),
            (json!({ "indexer_types": 3 }), "indexer_types"),
            (json!({ "indexer_types": "FFF" }), "indexer_types"),
            (json!({ "indexer_types": [] }), "indexer_types"),
            (json!({ "index_topk_pattern": "FSX" }), "index_topk_pattern"),
            (json!({ "index_topk_pattern": "SFF" }), "index_topk_pattern"),
            (json!({ "index_topk_pattern": "FFFF" }), "index_topk_pattern"),
            (json!({ "index_topk_freq": 0 }), "index_topk_freq"),
        ];
        for (mut fields, named) in cases {
            fields["num_hidden_layers"] = json!(3);
            let error = of(&fields).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(named), "{error}");
        }
    }
}
