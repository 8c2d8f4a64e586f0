//! The fields of a request that say how tokens are picked, and what is told of them.
//!
//! They are OpenAI's and mlx-lm's together (mlx-lm 0.32.2, `server.py`), in OpenAI's ranges where both
//! have the field.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::ReplyKind;
use crate::error::{Error, Result};
use crate::limits::TOP_LOGPROBS_MAX;
use crate::sampling::{PenaltyOverrides, SamplingOverrides, SamplingParams};
use crate::wire::Fields;
use crate::wire::fields::{mismatch, shortened};

const FINITE_F32: f64 = f32::MAX as f64;
/// Digits of a token id at most.
const ID_DIGITS_MAX: usize = 10;

/// Reads how tokens are picked over `defaults`. What is told of them is each dialect's own to ask.
pub(in crate::wire) fn sampling(
    fields: &Fields<'_>,
    defaults: &SamplingParams,
) -> Result<SamplingParams> {
    let single = |name, range| Ok::<_, Error>(fields.number(name, range)?.map(single));
    let top_k = fields.integer("top_k", 0..=i64::from(u32::MAX))?;
    let overrides = SamplingOverrides {
        temperature: single("temperature", 0.0..=2.0)?,
        top_p: single("top_p", 0.0..=1.0)?,
        min_p: single("min_p", 0.0..=1.0)?,
        top_k: top_k.map(|top_k| u32::try_from(top_k).unwrap_or(u32::MAX)),
        xtc_probability: single("xtc_probability", 0.0..=1.0)?,
        xtc_threshold: single("xtc_threshold", 0.0..=1.0)?,
        repetition: PenaltyOverrides {
            amount: single("repetition_penalty", 0.0..=FINITE_F32)?,
            context_tokens: context_tokens(fields, "repetition_context_size")?,
        },
        presence: PenaltyOverrides {
            amount: single("presence_penalty", -2.0..=2.0)?,
            context_tokens: context_tokens(fields, "presence_context_size")?,
        },
        frequency: PenaltyOverrides {
            amount: single("frequency_penalty", -2.0..=2.0)?,
            context_tokens: context_tokens(fields, "frequency_context_size")?,
        },
    };
    Ok(SamplingParams {
        seed: seed(fields)?.or(defaults.seed),
        logit_bias: logit_bias(fields)?,
        logprobs: None,
        ..overrides.over(defaults)
    })
}

/// The nearest f32, but 0 for 0 alone: a `top_p` of 0 is off, and the smallest ones are not.
fn single(number: f64) -> f32 {
    match number as f32 {
        0.0 if number > 0.0 => f32::MIN_POSITIVE,
        single => single,
    }
}

fn context_tokens(fields: &Fields<'_>, name: &str) -> Result<Option<usize>> {
    let size = fields.integer(name, 0..=i64::MAX)?;
    Ok(size.map(|size| usize::try_from(size).unwrap_or(usize::MAX)))
}

/// A seed is any 64-bit pattern: clients send signed and unsigned ones.
fn seed(fields: &Fields<'_>) -> Result<Option<u64>> {
    let unsigned = fields.get("seed").and_then(Value::as_u64);
    match unsigned {
        Some(seed) => Ok(Some(seed)),
        None => Ok(fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned)),
    }
}

/// Token ids, as JSON's keys are strings, to what is added to their logits.
fn logit_bias(fields: &Fields<'_>) -> Result<Arc<[(u32, f32)]>> {
    let Some(bias) = fields.nested("logit_bias")? else {
        return Ok(Arc::default());
    };
    let mut terms = BTreeMap::new();
    for (key, value) in bias.object() {
        let id =
            Some(key).filter(|key| key.len() <= ID_DIGITS_MAX).and_then(|key| key.parse().ok());
        let id: u32 = id.ok_or_else(|| {
            let message =
                format!("`logit_bias` must have token ids as keys, got `{}`", shortened(key));
            Error::invalid("logit_bias", message)
        })?;
        let term = bias.number(key, -100.0..=100.0)?;
        let term = term.ok_or_else(|| mismatch(&bias.path_of(key), "a number", value))?;
        terms.insert(id, term as f32);
    }
    Ok(terms.into_iter().collect())
}

/// How many alternatives are told beside each token, if anything is. OpenAI's chats say it by a boolean and
/// `top_logprobs`, its completions by one number; mlx-lm's requests of both kinds say it as chats do, and
/// -1 where they do not.
pub(super) fn logprobs(kind: ReplyKind, fields: &Fields<'_>) -> Result<Option<u32>> {
    let most = TOP_LOGPROBS_MAX as i64;
    let top = fields.integer("top_logprobs", -1..=most)?.unwrap_or(-1);
    match (kind, fields.get("logprobs")) {
        (ReplyKind::Completion, Some(Value::Number(_))) => {
            let top = fields.integer("logprobs", 0..=most)?;
            return Ok(top.and_then(|top| u32::try_from(top).ok()));
        }
        (ReplyKind::Completion, Some(other)) if !other.is_boolean() => {
            return Err(mismatch("logprobs", "an integer or a boolean", other));
        }
        _ => {}
    }
    let wanted = fields.boolean("logprobs")?;
    match (wanted, u32::try_from(top)) {
        (Some(false), Ok(1..)) => {
            let message = "`top_logprobs` is only allowed when `logprobs` is true";
            Err(Error::invalid("top_logprobs", message))
        }
        (Some(true), top) => Ok(Some(top.unwrap_or(0))),
        (None, Ok(top @ 1..)) => Ok(Some(top)),
        (None | Some(false), _) => Ok(None),
    }
}
