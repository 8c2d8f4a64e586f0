//! What a config says the model is: which layer sees what, from whose columns, how wide. Pure.

use serde_json::{Value, json};

use crate::cache::Window;
use crate::error::{Code, Error, Result};
use crate::model::nn::{AttentionShape, ExpertSizes, Projections, Rope, RopeOptions};
use crate::model::{ModelConfig, layer_windows_or};

/// Every so many layers one sees everything, where the config does not say.
const PATTERN_DEFAULT: i32 = 5;

/// Whether full layers' values are what their key projection makes.
const KEYS_AS_VALUES: &str = "attention_k_eq_v";

/// Where the logits are capped, where the config does not say; null there is no cap.
const LOGIT_CAP_DEFAULT: f32 = 30.0;

/// The model.
#[derive(Debug)]
pub(in crate::model::arch) struct Plan {
    pub(in crate::model::arch) hidden: i32,
    pub(in crate::model::arch) vocabulary: i32,
    pub(in crate::model::arch) epsilon: f32,
    pub(in crate::model::arch) layers: Vec<LayerPlan>,
    pub(super) per_layer: Option<PerLayerSize>,
    pub(super) experts: Option<ExpertsPlan>,
    /// Whether the embedding is the head too.
    pub(super) tied: bool,
    pub(in crate::model::arch) logit_cap: Option<f32>,
}

/// One layer.
#[derive(Debug)]
pub(in crate::model::arch) struct LayerPlan {
    /// How far it sees; `None` is everything.
    pub(super) window: Option<Window>,
    /// The layer whose columns it attends to; `None` when it has its own.
    pub(super) source: Option<usize>,
    pub(super) attention: AttentionShape,
    pub(super) projections: Projections,
    pub(super) rope: Rope,
    /// Width inside the feed-forward block.
    pub(super) intermediate: i32,
}

/// The inputs that every layer has of its own.
#[derive(Debug)]
pub(super) struct PerLayerSize {
    /// Tokens that their table knows.
    pub(super) vocabulary: i32,
    /// Width of one layer's.
    pub(super) width: i32,
}

/// The experts that every layer has beside its feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertsPlan {
    pub(super) sizes: ExpertSizes,
    /// How many of them each token goes through.
    pub(super) chosen: i32,
}

impl Plan {
    /// # Errors
    /// `BadModel` when a field is missing or does not fit.
    pub(in crate::model::arch) fn of_config(config: &ModelConfig) -> Result<Self> {
        refuse_other_kinds(config)?;
        Ok(Self {
            hidden: config.count("hidden_size")?,
            vocabulary: config.count("vocab_size")?,
            epsilon: config.number("rms_norm_eps")?,
            layers: layers(config)?,
            per_layer: match config.whole("hidden_size_per_layer_input")? {
                0 => None,
                width => {
                    let vocabulary = config.count("vocab_size_per_layer_input")?;
                    Some(PerLayerSize { vocabulary, width })
                }
            },
            experts: experts(config)?,
            tied: config.flag("tie_word_embeddings", true)?,
            logit_cap: match config.is_null("final_logit_softcapping") {
                true => None,
                false => {
                    let cap = config.optional_number("final_logit_softcapping")?;
                    Some(cap.unwrap_or(LOGIT_CAP_DEFAULT))
                }
            },
        })
    }
}

/// How many layers, from the first on, have keys of their own.
///
/// # Errors
/// `BadModel` when a field is missing, or none would have.
pub(super) fn owners(config: &ModelConfig) -> Result<usize> {
    const SHARED: &str = "num_kv_shared_layers";
    let (all, shared) = (config.count("num_hidden_layers")?, config.whole(SHARED)?);
    match all > shared {
        true => Ok((all - shared).unsigned_abs() as usize),
        false => Err(config
            .wrong(SHARED, &shared.into())
            .with_hint(format!("of {all} layers the first must have keys of its own"))),
    }
}

fn experts(config: &ModelConfig) -> Result<Option<ExpertsPlan>> {
    if !config.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let sizes = ExpertSizes {
        experts: config.count("num_experts")?,
        hidden: config.count("hidden_size")?,
        intermediate: config.count("moe_intermediate_size")?,
    };
    Ok(Some(ExpertsPlan { sizes, chosen: config.count("top_k_experts")? }))
}

fn layers(config: &ModelConfig) -> Result<Vec<LayerPlan>> {
    let pattern = config.optional_count("sliding_window_pattern")?.unwrap_or(PATTERN_DEFAULT);
    let pattern = pattern.unsigned_abs() as usize;
    let windows = layer_windows_or(config, |index| !(index + 1).is_multiple_of(pattern))?;
    let sources = sources(&windows, owners(config)?)?;
    windows.into_iter().zip(sources).map(|(window, source)| layer(config, window, source)).collect()
}

fn layer(config: &ModelConfig, window: Option<Window>, source: Option<usize>) -> Result<LayerPlan> {
    let (shape, from_keys) = match window {
        Some(_) => (sliding_shape(config)?, false),
        None => (full_shape(config)?, config.flag(KEYS_AS_VALUES, false)?),
    };
    let intermediate = config.count("intermediate_size")?;
    let doubled = source.is_some() && config.flag("use_double_wide_mlp", true)?;
    Ok(LayerPlan {
        window,
        source,
        attention: shape,
        projections: match (source, from_keys) {
            (Some(_), _) => Projections::QueriesOnly,
            (None, true) => Projections::KeysAsValues,
            (None, false) => Projections::Separate,
        },
        rope: rope(config, window.is_some(), shape.head_dimension)?,
        intermediate: if doubled { 2 * intermediate } else { intermediate },
    })
}

/// The layer whose columns each one attends to, where only the first `owners` have their own: the last
/// of these that is of its kind.
fn sources(windows: &[Option<Window>], owners: usize) -> Result<Vec<Option<usize>>> {
    let (own, others) = windows.split_at(owners);
    let shared = others.iter().enumerate().map(|(place, window)| {
        let source = own.iter().rposition(|own| own.is_some() == window.is_some());
        source.map(Some).ok_or_else(|| {
            let layer = owners + place;
            let message =
                format!("layer {layer} has no keys, and none of its kind before it has any");
            Error::new(Code::BadModel, message)
        })
    });
    own.iter().map(|_| Ok(None)).chain(shared).collect()
}

fn sliding_shape(config: &ModelConfig) -> Result<AttentionShape> {
    // Elsewhere these may be absent; what that means differs here.
    for name in ["head_dim", "num_key_value_heads"] {
        config.count(name)?;
    }
    AttentionShape::of_config(config)
}

fn full_shape(config: &ModelConfig) -> Result<AttentionShape> {
    let sliding = sliding_shape(config)?;
    let kv_heads = match config.flag(KEYS_AS_VALUES, false)? {
        true => config.optional_count("num_global_key_value_heads")?,
        false => None,
    };
    let head_dimension = config.optional_count("global_head_dim")?;
    AttentionShape {
        kv_heads: kv_heads.unwrap_or(sliding.kv_heads),
        head_dimension: head_dimension.unwrap_or(sliding.head_dimension),
        ..sliding
    }
    .checked()
}

/// How a layer's heads of `dimensions` turn: as `rope_parameters` says of its kind.
fn rope(config: &ModelConfig, slides: bool, dimensions: i32) -> Result<Rope> {
    let kind = if slides { "sliding_attention" } else { "full_attention" };
    let parameters = match config.section("rope_parameters")? {
        Some(kinds) => kinds.section(kind)?.ok_or_else(|| kinds.missing(kind))?,
        None => default_rope(slides),
    };
    Rope::new(&RopeOptions {
        dimensions,
        base: parameters.precise_number("rope_theta")?,
        traditional: config.flag("rope_traditional", false)?,
        scaling: Some(parameters),
        context_tokens: config.count("max_position_embeddings")?,
    })
}

fn default_rope(slides: bool) -> ModelConfig {
    let fields = match slides {
        true => vec![("rope_type", json!("default")), ("rope_theta", json!(10_000.0))],
        false => vec![
            ("rope_type", json!("proportional")),
            ("rope_theta", json!(1_000_000.0)),
            ("partial_rotary_factor", json!(0.25)),
        ],
    };
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
    ModelConfig::from_fields(fields.collect())
}

/// What the released models are not, and the oracle does not look at.
fn refuse_other_kinds(config: &ModelConfig) -> Result<()> {
    let known: [(&str, &[Value]); 2] = [
        ("hidden_activation", &[json!("gelu_pytorch_tanh")]),
        // Of images, which this model does not see.
        ("use_bidirectional_attention", &[json!(false), json!("vision")]),
    ];
    for (name, values) in known {
        if let Some(value) = config.get(name).filter(|value| !values.contains(value)) {
            return Err(config.wrong(name, value).with_hint("not supported for this model type"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx::Device;

    fn of(changes: &Value) -> Result<Plan> {
        Device::cpu();
        let mut fields = json!({
            "hidden_size": 32, "vocab_size": 288, "rms_norm_eps": 1e-6, "num_hidden_layers": 6,
            "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "global_head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 3,
            "max_position_embeddings": 64, "num_kv_shared_layers": 3,
            "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 256,
        });
        for (name, value) in changes.as_object().unwrap() {
            fields[name] = value.clone();
        }
        Plan::of_config(&ModelConfig::from_fields(fields.as_object().unwrap().clone()))
    }

    #[test]
    fn the_last_layers_attend_to_the_last_one_of_their_kind_that_has_keys() {
        let sources = |changes: &Value| -> Vec<Option<usize>> {
            of(changes).unwrap().layers.iter().map(|layer| layer.source).collect()
        };
        // Two slide, one sees everything, and again.
        assert_eq!(sources(&json!({})), [None, None, None, Some(1), Some(1), Some(2)]);
        let two = json!({ "num_kv_shared_layers": 2 });
        assert_eq!(sources(&two), [None, None, None, None, Some(3), Some(2)]);
        assert_eq!(sources(&json!({ "num_kv_shared_layers": 0 })), [None; 6]);
    }

    #[test]
    fn layers_without_keys_are_twice_as_wide_inside() {
        let widths = |changes: &Value| -> Vec<i32> {
            of(changes).unwrap().layers.iter().map(|layer| layer.intermediate).collect()
        };
        assert_eq!(widths(&json!({})), [64, 64, 64, 128, 128, 128]);
        assert_eq!(widths(&json!({ "use_double_wide_mlp": false })), [64; 6]);
        assert_eq!(widths(&json!({ "num_kv_shared_layers": 0 })), [64; 6]);
    }

    #[test]
    fn full_layers_have_heads_of_their_own() {
        let shapes = |changes: &Value| -> Vec<(i32, i32, Projections)> {
            let plan = of(changes).unwrap();
            let layers = plan.layers[1..4].iter();
            layers
                .map(|layer| {
                    let AttentionShape { kv_heads, head_dimension, .. } = layer.attention;
                    (kv_heads, head_dimension, layer.projections)
                })
                .collect()
        };
        use Projections::{KeysAsValues, QueriesOnly, Separate};
        let from_keys = json!({ "attention_k_eq_v": true, "num_global_key_value_heads": 1 });
        assert_eq!(
            shapes(&from_keys),
            [(2, 8, Separate), (1, 16, KeysAsValues), (2, 8, QueriesOnly)]
        );
        // Fewer key heads come with values from keys alone.
        let apart = json!({ "num_global_key_value_heads": 1, "global_head_dim": null });
        assert_eq!(shapes(&apart), [(2, 8, Separate), (2, 8, Separate), (2, 8, QueriesOnly)]);
    }

    #[test]
    fn logits_are_capped_unless_the_config_says_null() {
        let cap = |changes: &Value| of(changes).unwrap().logit_cap;
        assert_eq!(cap(&json!({})), Some(30.0));
        assert_eq!(cap(&json!({ "final_logit_softcapping": 5 })), Some(5.0));
        assert_eq!(cap(&json!({ "final_logit_softcapping": null })), None);
    }

    #[test]
    fn experts_are_there_where_the_config_enables_them() {
        let sizes = json!({ "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16 });
        assert_eq!(of(&sizes).unwrap().experts, None);
        let mut enabled = sizes;
        enabled["enable_moe_block"] = json!(true);
        let sizes = ExpertSizes { experts: 8, hidden: 32, intermediate: 16 };
        assert_eq!(of(&enabled).unwrap().experts, Some(ExpertsPlan { sizes, chosen: 2 }));
        for name in ["num_experts", "top_k_experts", "moe_intermediate_size"] {
            let mut changes = enabled.clone();
            changes[name] = json!(null);
            assert!(of(&changes).unwrap_err().message().contains(name));
        }
    }

    #[test]
    fn configs_that_do_not_fit_are_refused_by_name() {
        let slide = "sliding_attention";
        let only_full = json!({ "full_attention": { "rope_theta": 1e6 } });
        for (changes, named) in [
            (json!({ "num_kv_shared_layers": 6 }), "num_kv_shared_layers"),
            (json!({ "num_kv_shared_layers": null }), "num_kv_shared_layers"),
            (json!({ "num_kv_shared_layers": 4 }), "layer 2"),
            (json!({ "hidden_size_per_layer_input": null }), "hidden_size_per_layer_input"),
            (json!({ "vocab_size_per_layer_input": null }), "vocab_size_per_layer_input"),
            (json!({ "head_dim": null }), "head_dim"),
            (json!({ "num_key_value_heads": null }), "num_key_value_heads"),
            (json!({ "num_key_value_heads": 3 }), "3 key heads"),
            (json!({ "attention_k_eq_v": true, "num_global_key_value_heads": 3 }), "3 key heads"),
            (json!({ "layer_types": [slide] }), "layer_types"),
            (json!({ "rope_parameters": only_full }), slide),
            (json!({ "rope_parameters": { slide: {} } }), "rope_theta"),
            (json!({ "hidden_activation": "silu" }), "hidden_activation"),
            (json!({ "use_bidirectional_attention": "all" }), "use_bidirectional_attention"),
        ] {
            let error = of(&changes).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(named), "{changes}: {error}");
        }
    }
}
