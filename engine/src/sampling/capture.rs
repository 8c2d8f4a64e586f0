//! Log-probabilities on their way from the device to the rows that asked for them.

use super::logprobs::TokenLogprobs;
use crate::error::Result;
use crate::limits::TOP_LOGPROBS_MAX;
use crate::mlx::{Array, ops};

/// What all rows of a batch might tell of a step, on the device.
#[derive(Debug)]
pub(super) struct Capture {
    /// `[B, 1]`.
    chosen: Array,
    /// Ids and values, `[B, K]`, in no order. K is fixed, so that what a row tells does not depend on
    /// what others asked for, even where the last ones of several are equal.
    top: Option<(Array, Array)>,
}

impl Capture {
    /// Captures the `tokens` `[B]` that were picked from `log_probabilities` `[B, V]`, and the most likely
    /// ones if `with_top`.
    pub(super) fn new(log_probabilities: &Array, tokens: &Array, with_top: bool) -> Result<Self> {
        let chosen = log_probabilities.take_along_axis(tokens.reshape(&[-1, 1])?, -1)?;
        let top = with_top.then(|| most_likely(log_probabilities)).transpose()?;
        Ok(Self { chosen, top })
    }

    /// The arrays that have to be computed.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let top = self.top.iter().flat_map(|(ids, values)| [ids, values]);
        std::iter::once(&self.chosen).chain(top)
    }

    /// The rows `keep` of it.
    pub(super) fn rows(&self, keep: &[i32]) -> Result<Self> {
        let chosen = ops::take_rows(&self.chosen, keep)?;
        let top = self.top.as_ref().map(|(ids, values)| -> Result<_> {
            Ok((ops::take_rows(ids, keep)?, ops::take_rows(values, keep)?))
        });
        Ok(Self { chosen, top: top.transpose()? })
    }

    /// Waits for what each row might tell, with as many of the most likely tokens as were captured.
    pub(super) fn read(&self) -> Result<Vec<TokenLogprobs>> {
        let chosen = ops::read_f32(&self.chosen)?;
        let top = match &self.top {
            Some((ids, values)) => {
                ranked(ops::read_u32(ids)?, ops::read_f32(values)?, chosen.len())
            }
            None => vec![Vec::new(); chosen.len()],
        };
        let told = chosen.into_iter().zip(top);
        Ok(told.map(|(chosen, top)| TokenLogprobs { chosen, top }).collect())
    }
}

/// The most likely tokens of each row of log-probabilities `[B, V]`, in no order: ids and values.
fn most_likely(log_probabilities: &Array) -> Result<(Array, Array)> {
    let count = ops::axis_index(TOP_LOGPROBS_MAX).min(log_probabilities.dim(-1));
    let ids = ops::argpartition_last(&log_probabilities.negative()?, count - 1)?;
    let ids = ops::slice_axis(&ids, ids.ndim() - 1, 0, count)?.contiguous()?;
    let values = log_probabilities.take_along_axis(&ids, -1)?;
    Ok((ids, values))
}

/// Ids and values of `rows` rows as pairs, those of each row in order.
fn ranked(ids: Vec<u32>, values: Vec<f32>, rows: usize) -> Vec<Vec<(u32, f32)>> {
    let pairs: Vec<(u32, f32)> = ids.into_iter().zip(values).collect();
    let mut rows: Vec<_> = pairs.chunks(pairs.len() / rows.max(1)).map(<[_]>::to_vec).collect();
    for row in &mut rows {
        row.sort_unstable_by(|(id, value), (other_id, other)| {
            other.total_cmp(value).then(id.cmp(other_id))
        });
    }
    rows
}
