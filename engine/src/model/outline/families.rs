//! What the layers of each family keep, read from the fields that its architecture file reads.

use serde_json::{Value, json};

use super::sizes::{heads, optional_size, shared_evenly, size};
use super::weights::{self, Head, Rule};
use super::{LayerOutline, layer_count};
use crate::cache::{TokenShape, Window};
use crate::error::{Code, Error, Result};
use crate::model::{ModelConfig, full_layers, layer_windows, layer_windows_or};

/// Why rows of models that write canvases are serial.
pub const ONE_CANVAS: &str = "it denoises a block of tokens at a time, which is built for one row";

/// What is known of a family without its architecture.
#[derive(Debug)]
pub(super) struct FamilyOutline {
    pub(super) model_type: &'static str,
    pub(super) serial_reason: Option<&'static str>,
    /// Whether it is proven to make vectors of texts.
    pub(super) embeds: bool,
    pub(super) layers: Layers,
    /// What makes the logits.
    pub(super) head: Head,
    /// Which tensors of a checkpoint are run, beside what `head` says of the head's.
    pub(super) uses: Rule,
    /// What a prompt's chunk has at once.
    pub(super) in_flight: InFlight,
}

/// How many arrays of a kind a prompt's chunk has at once, as measured on a processor, which lets ten operations
/// wait for each other (MLX 0.32.2, `transforms.cpp`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// Of the width of a feed-forward block.
    pub gates: u64,
    /// Of a score for each head, query and column.
    pub scores: u64,
}

/// A gate and its product, scores and their softmax.
const USUAL: InFlight = InFlight { gates: 3, scores: 2 };

/// GELU by its tanh is a chain of operations.
const GELU: InFlight = InFlight { gates: 6, scores: 2 };

/// So is a clipped SwiGLU, and sinks are put beside a copy of the scores.
const SINKS: InFlight = InFlight { gates: 6, scores: 3 };

/// Scores of an indexer, and masks of what it chose.
const CHOSEN: InFlight = InFlight { gates: 3, scores: 4 };

type Layers = fn(&ModelConfig) -> Result<Vec<LayerOutline>>;

/// Every family, in the registry's order.
pub(super) const FAMILIES: &[FamilyOutline] = &[
    FamilyOutline {
        serial_reason: Some(ONE_CANVAS),
        head: Head::Embedding,
        uses: weights::of_diffusion_gemma,
        in_flight: GELU,
        ..family("diffusion_gemma", diffusion_gemma)
    },
    FamilyOutline { head: Head::Embedding, in_flight: GELU, ..family("gemma", all_full) },
    FamilyOutline { head: Head::Embedding, in_flight: GELU, ..family("gemma2", all_full) },
    FamilyOutline { head: Head::OwnIfPresent, in_flight: GELU, ..family("gemma3_text", gemma3) },
    gemma4_called("gemma4"),
    gemma4_called("gemma4_text"),
    gemma4_called("gemma4_unified"),
    FamilyOutline { head: Head::Own, ..family("glm4", checked_full) },
    FamilyOutline {
        head: Head::Own,
        uses: weights::of_glm4_moe_lite,
        ..family("glm4_moe_lite", glm4_moe_lite)
    },
    FamilyOutline {
        head: Head::Own,
        uses: weights::of_glm_moe_dsa,
        in_flight: CHOSEN,
        ..family("glm_moe_dsa", glm_moe_dsa)
    },
    FamilyOutline { head: Head::Own, in_flight: SINKS, ..family("gpt_oss", gpt_oss) },
    family("granite", all_full),
    family("llama", windowed),
    FamilyOutline { head: Head::TiedByDefault(false), ..family("minicpm", all_full) },
    FamilyOutline { head: Head::OwnIfPresent, ..family("minicpm3", minicpm3) },
    family("ministral3", windowed),
    family("mistral", windowed),
    FamilyOutline { head: Head::TiedByDefault(false), ..family("olmo3", olmo3) },
    FamilyOutline { head: Head::TiedByDefault(false), ..family("phi3", all_full) },
    family("qwen2", checked_full),
    FamilyOutline { embeds: true, ..family("qwen3", checked_full) },
    QWEN3_5,
    FamilyOutline { model_type: "qwen3_5_moe", ..QWEN3_5 },
    family("qwen3_moe", checked_full),
    family("smollm3", checked_full),
];

const fn gemma4_called(model_type: &'static str) -> FamilyOutline {
    FamilyOutline { uses: weights::of_gemma4, in_flight: GELU, ..family(model_type, gemma4) }
}

const QWEN3_5: FamilyOutline = FamilyOutline {
    head: Head::TiedByDefault(false),
    uses: weights::of_qwen3_5,
    ..family("qwen3_5", qwen3_5)
};

/// A family whose rows share batches and whose embedding is the head too unless the config says otherwise.
const fn family(model_type: &'static str, layers: Layers) -> FamilyOutline {
    FamilyOutline {
        model_type,
        serial_reason: None,
        embeds: false,
        layers,
        head: Head::TiedByDefault(true),
        uses: weights::all,
        in_flight: USUAL,
    }
}

/// # Errors
/// `BadModel` naming the unknown type and the known ones.
pub(super) fn of_type(model_type: &str) -> Result<&'static FamilyOutline> {
    FAMILIES.iter().find(|family| family.model_type == model_type).ok_or_else(|| {
        let names: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
        Error::new(Code::BadModel, format!("model type `{model_type}` is not supported"))
            .with_hint(format!("supported: {}", names.join(", ")))
    })
}

/// Tokens of a canvas of a model that writes in blocks.
pub(super) fn canvas_tokens(family: &FamilyOutline, config: &ModelConfig) -> Result<Option<usize>> {
    match family.serial_reason {
        Some(ONE_CANVAS) => Ok(Some(size(config, "canvas_length")? as usize)),
        _ => Ok(None),
    }
}

/// Every layer alike.
fn all_full(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    Ok(vec![LayerOutline::Full(heads(config)?); layer_count(config)?])
}

/// The same, where another choice of the config is refused.
fn checked_full(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    Ok(vec![LayerOutline::Full(heads(config)?); full_layers(config)?])
}

/// Layers slide where the config says so.
fn windowed(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    let token = heads(config)?;
    Ok(layer_windows(config)?.into_iter().map(|window| attention(token, window)).collect())
}

fn gemma3(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    let token = heads(config)?;
    let windows = patterned(config, 6)?;
    Ok(windows.into_iter().map(|window| attention(token, window)).collect())
}

fn olmo3(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    let token = heads(config)?;
    let windows = layer_windows_or(config, |index| !(index + 1).is_multiple_of(4))?;
    Ok(windows.into_iter().map(|window| attention(token, window)).collect())
}

fn gpt_oss(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    let token = heads(config)?;
    let windows = layer_windows_or(config, |index| index.is_multiple_of(2))?;
    Ok(windows.into_iter().map(|window| attention(token, window)).collect())
}

/// All layers but every `sliding_window_pattern`th slide, where the config does not say which.
fn patterned(config: &ModelConfig, default: i32) -> Result<Vec<Option<Window>>> {
    let pattern = config.optional_count("sliding_window_pattern")?.unwrap_or(default);
    let pattern = pattern.unsigned_abs() as usize;
    layer_windows_or(config, |index| !(index + 1).is_multiple_of(pattern))
}

/// Full layers have heads of another width, and the last layers keep nothing.
fn gemma4(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    for name in ["head_dim", "num_key_value_heads"] {
        config.count(name)?;
    }
    let (sliding, owners) = (heads(config)?, owners(config)?);
    let full = wide_heads(config, sliding)?;
    let layer = |(index, window): (usize, Option<Window>)| match window {
        _ if index >= owners => LayerOutline::Shared,
        Some(_) => attention(sliding, window),
        None => attention(full, None),
    };
    Ok(patterned(config, 5)?.into_iter().enumerate().map(layer).collect())
}

fn wide_heads(config: &ModelConfig, sliding: TokenShape) -> Result<TokenShape> {
    let few = match config.flag("attention_k_eq_v", false)? {
        true => optional_size(config, "num_global_key_value_heads")?,
        false => None,
    };
    let dimension = optional_size(config, "global_head_dim")?.unwrap_or(sliding.key_dimension);
    let heads = few.unwrap_or(sliding.heads);
    shared_evenly(size(config, "num_attention_heads")?, heads)?;
    Ok(TokenShape { heads, key_dimension: dimension, value_dimension: dimension })
}

/// How many layers, from the first on, have keys of their own.
///
/// # Errors
/// `BadModel` when a field is missing, or none would have.
pub(super) fn owners(config: &ModelConfig) -> Result<usize> {
    const SHARED: &str = "num_kv_shared_layers";
    let shared = config.whole(SHARED)?.unsigned_abs() as usize;
    let owners = layer_count(config)?.checked_sub(shared).filter(|owners| *owners > 0);
    owners.ok_or_else(|| config.wrong(SHARED, &shared.into()))
}

fn diffusion_gemma(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    if config.get("layer_types").is_none() {
        return Err(config.missing("layer_types"));
    }
    let said = [("num_kv_shared_layers", json!(0)), ("attention_k_eq_v", json!(true))];
    gemma4(&config.with_fields(said))
}

/// Latents that are not kept: keys and values are.
fn minicpm3(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    let heads = size(config, "num_attention_heads")?;
    let token = TokenShape {
        heads,
        key_dimension: size(config, "qk_nope_head_dim")? + size(config, "qk_rope_head_dim")?,
        value_dimension: size(config, "hidden_size")? / heads,
    };
    Ok(vec![LayerOutline::Full(token); layer_count(config)?])
}

fn glm4_moe_lite(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    Ok(vec![LayerOutline::Latent { values: latent(config)? }; layer_count(config)?])
}

/// Layers that choose for themselves keep an index key too.
fn glm_moe_dsa(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    let (latent, index) = (latent(config)?, size(config, "index_head_dim")?);
    let layer = |chooses| LayerOutline::Latent { values: latent + if chooses { index } else { 0 } };
    Ok(choosing_layers(config)?.into_iter().map(layer).collect())
}

fn latent(config: &ModelConfig) -> Result<u64> {
    Ok(size(config, "kv_lora_rank")? + size(config, "qk_rope_head_dim")?)
}

/// Which layers have an indexer: `indexer_types`, else `index_topk_pattern`, else one in `index_topk_freq`.
fn choosing_layers(config: &ModelConfig) -> Result<Vec<bool>> {
    let layers = layer_count(config)?;
    for field in ["indexer_types", "index_topk_pattern"] {
        if let Some(kinds) = config.get(field) {
            let chooses = listed(kinds).filter(|chooses| chooses.len() == layers && chooses[0]);
            return chooses.ok_or_else(|| config.wrong(field, kinds));
        }
    }
    let every = i64::from(config.optional_count("index_topk_freq")?.unwrap_or(1));
    let offset = i64::from(config.optional_count("index_skip_topk_offset")?.unwrap_or(2));
    Ok((0..layers as i64).map(|index| (index - offset + 1).max(0) % every == 0).collect())
}

/// Whether each entry, a word of a list or a letter of a text, says that the layer chooses.
fn listed(kinds: &Value) -> Option<Vec<bool>> {
    let chooses = |entry: &str| match entry {
        "full" | "F" => Some(true),
        "shared" | "S" => Some(false),
        _ => None,
    };
    match kinds {
        Value::String(letters) => {
            letters.split("").filter(|letter| !letter.is_empty()).map(chooses).collect()
        }
        other => other.as_array()?.iter().map(|entry| chooses(entry.as_str()?)).collect(),
    }
}

/// Every `full_attention_interval`-th layer is of attention, the others are recurrent.
fn qwen3_5(config: &ModelConfig) -> Result<Vec<LayerOutline>> {
    let interval = config.optional_count("full_attention_interval")?.unwrap_or(4);
    let interval = interval.unsigned_abs() as usize;
    let (token, state) = (heads(config)?, delta_state(config)?);
    let layer = |place: usize| match place.is_multiple_of(interval) {
        true => LayerOutline::Full(token),
        false => state,
    };
    Ok((1..=layer_count(config)?).map(layer).collect())
}

/// The last inputs of the convolution and the memory of the delta rule.
fn delta_state(config: &ModelConfig) -> Result<LayerOutline> {
    let keys = size(config, "linear_num_key_heads")? * size(config, "linear_key_head_dim")?;
    let values = size(config, "linear_num_value_heads")? * size(config, "linear_value_head_dim")?;
    let tail_tokens = size(config, "linear_conv_kernel_dim")? - 1;
    let memory_values = values.saturating_mul(size(config, "linear_key_head_dim")?);
    let channels = 2 * keys + values;
    let tail_values = tail_tokens.saturating_mul(channels);
    if memory_values.max(tail_values) > STATE_VALUES_MAX {
        return Err(config.wrong("linear_key_head_dim", &memory_values.into()));
    }
    Ok(LayerOutline::Recurrent { channels, tail_values, memory_values })
}

/// Numbers in a recurrent layer's state at most; released models have some millions.
const STATE_VALUES_MAX: u64 = 1 << 34;

fn attention(token: TokenShape, window: Option<Window>) -> LayerOutline {
    match window {
        None => LayerOutline::Full(token),
        Some(window) => {
            let window_tokens = u64::from(window.tokens().unsigned_abs());
            LayerOutline::Sliding { token, window_tokens }
        }
    }
}
