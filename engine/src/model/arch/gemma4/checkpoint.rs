//! The tensors' names: those that mlx-lm 0.32.2 gives them when it loads a checkpoint (`sanitize` in
//! `gemma4.py` and `gemma4_text.py`), whose quantization is described under these names.

use super::plan;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::outline::gemma4::{KEYS_AND_VALUES, NO_WEIGHTS, TOWERS};

/// What stands before the names of a language model that has towers beside it.
pub(super) const WRAPPED: &str = "language_model.";

/// What stands before the names of one that is alone.
pub(super) const BARE: &str = "";

/// Drops the towers and what is not used, and brings the rest under [`WRAPPED`] names.
///
/// # Errors
/// `BadModel` when a field is missing or tensors share a name.
pub fn arrange(config: &ModelConfig, weights: &mut Weights) -> Result<()> {
    weights.rename(wrapped_names(config)?)
}

/// Drops what is not used.
///
/// # Errors
/// `BadModel` when a field is missing.
pub fn arrange_text(config: &ModelConfig, weights: &mut Weights) -> Result<()> {
    weights.rename(bare_names(config)?)
}

/// The rule of [`arrange`]: the [`WRAPPED`] name of a tensor, `None` for one that is dropped.
///
/// # Errors
/// `BadModel` when a field is missing.
pub fn wrapped_names(config: &ModelConfig) -> Result<impl Fn(&str) -> Option<String>> {
    let owners = plan::owners(config)?;
    Ok(move |name: &str| language_name(name).filter(|name| is_used(name, owners)))
}

/// The rule of [`arrange_text`].
///
/// # Errors
/// `BadModel` when a field is missing.
pub fn bare_names(config: &ModelConfig) -> Result<impl Fn(&str) -> Option<String>> {
    let owners = plan::owners(config)?;
    Ok(move |name: &str| is_used(name, owners).then(|| name.to_owned()))
}

/// The [`WRAPPED`] name of a tensor in Hugging Face's layout or in MLX's; `None` for a tower's.
fn language_name(name: &str) -> Option<String> {
    let in_model = name.strip_prefix("model.");
    let own = in_model.unwrap_or(name);
    if TOWERS.iter().any(|tower| own.starts_with(tower)) {
        return None;
    }
    match in_model.and_then(|name| name.strip_prefix(WRAPPED)) {
        Some(rest) => Some(format!("{WRAPPED}model.{rest}")),
        None => Some(own.to_owned()),
    }
}

/// Whether the model takes the tensor, where the first `owners` layers have keys of their own.
fn is_used(name: &str, owners: usize) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_anothers = || layer_of(name).is_some_and(|layer| layer >= owners);
    let is_idle = has(&NO_WEIGHTS) || (has(&KEYS_AND_VALUES) && is_anothers());
    !is_idle
}

fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_either_layout_get_mlx_lms_names_and_towers_none() {
        for (name, expected) in [
            ("model.language_model.norm.weight", Some("language_model.model.norm.weight")),
            ("language_model.model.norm.weight", Some("language_model.model.norm.weight")),
            ("language_model.lm_head.scales", Some("language_model.lm_head.scales")),
            ("model.vision_tower.patch_embedder.input_proj.weight", None),
            ("vision_tower.std_bias", None),
            ("model.audio_tower.layers.0.norm_out.weight", None),
            ("embed_audio.embedding_projection.weight", None),
            ("model.embed_vision.embedding_projection.weight", None),
            ("model.vision_embedder.pos_embedding", None),
            ("model.multi_modal_projector.weight", None),
        ] {
            assert_eq!(language_name(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn what_no_layer_uses_is_dropped() {
        for (name, used) in [
            ("language_model.model.layers.3.self_attn.k_proj.weight", true),
            ("language_model.model.layers.4.self_attn.k_proj.weight", false),
            ("language_model.model.layers.14.self_attn.v_proj.scales", false),
            ("language_model.model.layers.4.self_attn.k_norm.weight", false),
            ("language_model.model.layers.4.self_attn.q_norm.weight", true),
            ("language_model.model.layers.4.mlp.up_proj.weight", true),
            ("language_model.model.layers.0.self_attn.rotary_emb.inv_freq", false),
            ("language_model.model.layers.0.self_attn.q_proj.input_max", false),
        ] {
            assert_eq!(is_used(name, 4), used, "{name}");
        }
    }
}
