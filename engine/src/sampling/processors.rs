//! Logits before they become log-probabilities: bias and penalties, as mlx-lm 0.32.2 applies them
//! (`sample_utils.make_logits_processors`).
//!
//! All rows are served by the same few operations, however many they are: the logits `[B, V]` are seen as
//! one vector, and each processor changes it at *places*, one for every token of every row that asks for
//! it. Rows that do not ask have no places, so their bits stay. The token in flight is known to the device
//! alone; its place is computed there, and the host need not wait for it.

use super::history::History;
use super::{Penalty, Sampler, SamplingParams};
use crate::error::Result;
use crate::mlx::{Array, Dtype, ops};

/// The logits `[B, V]` as the processors of each row leave them. `in_flight` `[B]` are the tokens that
/// were sampled and not read, if there are such.
pub(super) fn process(
    samplers: &[&mut Sampler],
    logits: &Array,
    in_flight: Option<&Array>,
) -> Result<Array> {
    if !samplers.iter().any(|sampler| sampler.params.processes()) {
        return Ok(ops::share(logits));
    }
    let rows = Rows { samplers, in_flight, vocabulary: logits.dim(-1), dtype: logits.dtype() };
    let mut flat = logits.reshape(&[-1])?;
    if let Some(places) = rows.biased()? {
        flat = places.add(&flat)?;
    }
    if let Some(places) = rows.penalized(SamplingParams::active_repetition, History::distinct)? {
        flat = places.push_down(&flat)?;
    }
    if let Some(places) = rows.penalized(SamplingParams::active_presence, History::distinct)? {
        flat = places.subtract_once(&flat)?;
    }
    if let Some(places) = rows.penalized(SamplingParams::active_frequency, History::context)? {
        flat = Places { amounts: places.amounts.negative()?, ..places }.add(&flat)?;
    }
    Ok(flat.reshape(logits.shape())?)
}

struct Rows<'a> {
    samplers: &'a [&'a mut Sampler],
    in_flight: Option<&'a Array>,
    vocabulary: i32,
    dtype: Dtype,
}

impl Rows<'_> {
    /// Where logits are biased, and by how much.
    fn biased(&self) -> Result<Option<Places>> {
        let mut wanted = Wanted::default();
        for (row, sampler) in self.samplers.iter().enumerate() {
            for (token, bias) in sampler.params.logit_bias.iter() {
                self.want(&mut wanted, row, *token, *bias);
            }
        }
        self.places(wanted)
    }

    /// Where logits are penalized: at the tokens that `tokens` finds in the context of each row that has
    /// this `penalty`.
    fn penalized(
        &self,
        penalty: fn(&SamplingParams) -> Option<Penalty>,
        tokens: fn(&History, usize, bool) -> &[u32],
    ) -> Result<Option<Places>> {
        let mut wanted = Wanted::default();
        for (row, sampler) in self.samplers.iter().enumerate() {
            let Some(Penalty { amount, context_tokens }) = penalty(&sampler.params) else {
                continue;
            };
            let seen = tokens(&sampler.history, context_tokens, self.in_flight.is_some());
            seen.iter().for_each(|token| self.want(&mut wanted, row, *token, amount));
            if self.in_flight.is_some() {
                wanted.rows_in_flight.push(ops::axis_index(row));
                wanted.amounts_in_flight.push(amount);
            }
        }
        self.places(wanted)
    }

    /// A token that has no logit has no place either.
    fn want(&self, wanted: &mut Wanted, row: usize, token: u32, amount: f32) {
        if token < self.vocabulary.unsigned_abs() {
            wanted.known.push(self.place(row, token));
            wanted.amounts.push(amount);
        }
    }

    /// The index of `token` of `row` in the flat logits.
    fn place(&self, row: usize, token: u32) -> u32 {
        row as u32 * self.vocabulary.unsigned_abs() + token
    }

    fn places(&self, mut wanted: Wanted) -> Result<Option<Places>> {
        wanted.amounts.append(&mut wanted.amounts_in_flight);
        if wanted.amounts.is_empty() {
            return Ok(None);
        }
        let known = ops::token_vector(&wanted.known);
        let indices = match self.in_flight {
            Some(tokens) if !wanted.rows_in_flight.is_empty() => {
                let own = ops::take_rows(tokens, &wanted.rows_in_flight)?;
                let starts = wanted.rows_in_flight.iter();
                let starts: Vec<u32> =
                    starts.map(|row| self.place(row.unsigned_abs() as usize, 0)).collect();
                let in_flight = own.add(ops::token_vector(&starts))?;
                match wanted.known.is_empty() {
                    true => in_flight,
                    false => ops::concatenate_axis(&[known, in_flight], 0)?,
                }
            }
            _ => known,
        };
        Ok(Some(Places { indices, amounts: ops::vector(&wanted.amounts, self.dtype)? }))
    }
}

/// Places as the host knows them.
#[derive(Default)]
struct Wanted {
    known: Vec<u32>,
    amounts: Vec<f32>,
    /// Rows whose token in flight is one more place.
    rows_in_flight: Vec<i32>,
    amounts_in_flight: Vec<f32>,
}

/// Indices `[N]` into flat logits, and an amount `[N]` for each. One index may occur several times, then
/// with the same amount.
struct Places {
    indices: Array,
    amounts: Array,
}

impl Places {
    /// Adds each amount, an index that occurs twice twice.
    fn add(&self, flat: &Array) -> Result<Array> {
        ops::scatter_add(flat, &self.indices, &self.amounts)
    }

    /// Subtracts each amount, once for every index.
    fn subtract_once(&self, flat: &Array) -> Result<Array> {
        let there = ops::take_axis(flat, &self.indices, 0)?;
        ops::put(flat, &self.indices, &there.subtract(&self.amounts)?)
    }

    /// Divides what is not negative and multiplies what is, once for every index.
    fn push_down(&self, flat: &Array) -> Result<Array> {
        let there = ops::take_axis(flat, &self.indices, 0)?;
        let further = there.multiply(&self.amounts)?;
        let nearer = there.divide(&self.amounts)?;
        let pushed = ops::choose(&ops::below(&there, 0.0)?, &further, &nearer)?;
        ops::put(flat, &self.indices, &pushed)
    }
}
