//! Recurrent layers (convolution tails, state-space states): fixed-size slots without a time axis.
//!
//! Rows prefill alone, so a state never sees padding, and a batch of states is a stack of them
//! (mlx-lm 0.32.2, `ArraysCache`). A state cannot be taken back by a token.

use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops;

/// The slots of one layer, each `[B, ...]` once the model has written it.
#[derive(Debug)]
pub struct RecurrentCache {
    slots: Vec<Option<Array>>,
    row_bytes: u64,
}

impl RecurrentCache {
    /// `slots` empty slots that will take `row_bytes` a row.
    pub fn new(slots: usize, row_bytes: u64) -> Self {
        Self { slots: vec![None; slots], row_bytes }
    }

    /// The same states under new handles; a state is never written in place.
    pub(super) fn share(&self) -> Self {
        Self { slots: self.slots.clone(), row_bytes: self.row_bytes }
    }

    /// Its slots.
    pub(super) fn slots(&self) -> &[Option<Array>] {
        &self.slots
    }

    /// A cache of these states.
    pub(super) fn of(slots: Vec<Option<Array>>, row_bytes: u64) -> Self {
        Self { slots, row_bytes }
    }

    /// What slot `index` holds, if it was ever written.
    pub fn state(&self, index: usize) -> Option<&Array> {
        self.slots[index].as_ref()
    }

    /// Writes slot `index`, one entry of the first axis per row.
    pub fn set_state(&mut self, index: usize, state: Array) {
        self.slots[index] = Some(state);
    }

    /// Bytes of a row, by projection.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Adds the rows of `other`; `rows` are the two sets'. A slot that one side never wrote is zeros
    /// there.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extend(&mut self, other: Self, rows: (i32, i32)) -> Result<()> {
        for (own, other) in self.slots.iter_mut().zip(other.slots) {
            *own = stack(&[(own.take(), rows.0), (other, rows.1)])?;
        }
        Ok(())
    }

    /// One cache of several lone rows.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; `Internal` when there is no row.
    pub fn merge(solos: Vec<Self>) -> Result<Self> {
        let no_row = || Error::new(Code::Internal, "no rows to merge");
        let (count, row_bytes) =
            solos.first().map(|solo| (solo.slots.len(), solo.row_bytes)).ok_or_else(no_row)?;
        let mut rows: Vec<_> = solos.into_iter().map(|solo| solo.slots.into_iter()).collect();
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            let states: Vec<_> = rows.iter_mut().map(|row| (row.next().flatten(), 1)).collect();
            slots.push(stack(&states)?);
        }
        Ok(Self { slots, row_bytes })
    }

    /// Keeps `rows`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn filter(&mut self, rows: &[i32]) -> Result<()> {
        for slot in self.slots.iter_mut().flatten() {
            *slot = ops::take_rows(slot, rows)?;
        }
        Ok(())
    }

    /// Copies the states of `row`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extract(&self, row: usize) -> Result<Self> {
        let row = ops::axis_index(row);
        let copy = |state: &Array| Ok(ops::slice_axis(state, 0, row, row + 1)?.contiguous()?);
        let slots = self.slots.iter().map(|slot| slot.as_ref().map(copy).transpose());
        Ok(Self { slots: slots.collect::<Result<_>>()?, row_bytes: self.row_bytes })
    }

    /// Its states.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.slots.iter().flatten()
    }
}

/// One slot of several caches with their row counts, below one another.
fn stack(states: &[(Option<Array>, i32)]) -> Result<Option<Array>> {
    let Some(like) = states.iter().find_map(|(state, _)| state.as_ref()) else {
        return Ok(None);
    };
    let filled = states.iter().map(|(state, rows)| match state {
        Some(state) => Ok(ops::share(state)),
        None => {
            let mut shape = like.shape().to_vec();
            shape[0] = *rows;
            ops::zeros(&shape, like.dtype())
        }
    });
    ops::concatenate_axis(&filled.collect::<Result<Vec<_>>>()?, 0).map(Some)
}
