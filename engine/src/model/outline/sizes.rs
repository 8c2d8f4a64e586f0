//! Sizes that most configs state under the same names, each within its bound.

use crate::cache::TokenShape;
use crate::error::{Code, Error, Result};
use crate::limits::MODEL_SIZE_MAX;
use crate::model::ModelConfig;

/// A size that must be there.
///
/// # Errors
/// `BadModel` when it is missing, no count, or above [`MODEL_SIZE_MAX`].
pub(super) fn size(config: &ModelConfig, name: &str) -> Result<u64> {
    optional_size(config, name)?.ok_or_else(|| config.missing(name))
}

/// A size that may be absent.
///
/// # Errors
/// `BadModel` when it is there and no count, or above [`MODEL_SIZE_MAX`].
pub(super) fn optional_size(config: &ModelConfig, name: &str) -> Result<Option<u64>> {
    let Some(count) = config.optional_count(name)? else { return Ok(None) };
    let size = u64::from(count.unsigned_abs());
    match size <= MODEL_SIZE_MAX {
        true => Ok(Some(size)),
        false => {
            let hint = format!("at most {MODEL_SIZE_MAX} makes sense");
            Err(config.wrong(name, &size.into()).with_hint(hint))
        }
    }
}

/// What attention keeps of a token under the names that most checkpoints use: `head_dim`, where it is absent
/// the heads' part of the hidden size; `num_key_value_heads`, where it is absent as many as query heads.
///
/// # Errors
/// `BadModel` when a field is missing or the heads do not divide.
pub(super) fn heads(config: &ModelConfig) -> Result<TokenShape> {
    let query_heads = size(config, "num_attention_heads")?;
    let heads = optional_size(config, "num_key_value_heads")?.unwrap_or(query_heads);
    let dimension = match optional_size(config, "head_dim")? {
        Some(dimension) => dimension,
        None => head_part(size(config, "hidden_size")?, query_heads)?,
    };
    shared_evenly(query_heads, heads)?;
    Ok(TokenShape { heads, key_dimension: dimension, value_dimension: dimension })
}

/// # Errors
/// `BadModel` unless `query_heads` is a multiple of `heads`.
pub(super) fn shared_evenly(query_heads: u64, heads: u64) -> Result<()> {
    if query_heads.is_multiple_of(heads) {
        return Ok(());
    }
    let message = format!("{query_heads} query heads cannot share {heads} key heads evenly");
    Err(Error::new(Code::BadModel, message))
}

fn head_part(hidden: u64, heads: u64) -> Result<u64> {
    if hidden.is_multiple_of(heads) {
        return Ok(hidden / heads);
    }
    let message = format!("a hidden size of {hidden} does not divide into {heads} heads");
    Err(Error::new(Code::BadModel, message))
}

/// How many of so many experts a token goes through, where the config knows experts.
///
/// # Errors
/// `BadModel` when a field is no size.
pub(super) fn experts(config: &ModelConfig) -> Result<Option<(u64, u64)>> {
    let all = first_size(config, &["num_experts", "num_local_experts", "n_routed_experts"])?;
    let chosen = first_size(config, &["num_experts_per_tok", "top_k_experts"])?;
    Ok(all.zip(chosen).map(|(all, chosen)| (chosen.min(all), all)))
}

/// Numbers that a feed-forward block makes of a token inside: of the dense block, or of all experts that the
/// token goes through, whichever is more.
///
/// # Errors
/// `BadModel` when a field is no size.
pub(super) fn feed_forward(config: &ModelConfig) -> Result<u64> {
    let dense = optional_size(config, "intermediate_size")?.unwrap_or(0);
    let Some((chosen, _)) = experts(config)? else { return Ok(dense) };
    let expert = optional_size(config, "moe_intermediate_size")?.unwrap_or(dense);
    let shared = optional_size(config, "shared_expert_intermediate_size")?.unwrap_or(0);
    Ok(dense.max(expert * chosen + shared))
}

/// The first of `names` that is there; 0 counts as absent, as configs of dense models of a family say it.
fn first_size(config: &ModelConfig, names: &[&str]) -> Result<Option<u64>> {
    for name in names {
        if config.optional_whole(name)?.is_some_and(|count| count > 0) {
            return optional_size(config, name);
        }
    }
    Ok(None)
}
