//! Sliding-window attention: the last columns of a window, in a ring (see [`Ring`]).

use std::ops::Range;

use super::columns::{self, Columns, KeyValues};
use super::frame::{self, Side};
use super::ring::{Held, Join, Placing, Ring, Update};
use super::scheme::Packing;
use super::window::Window;
use crate::error::Result;
use crate::mlx::Array;
use crate::mlx::ops;

/// Keys and values of one layer, where the set's ring for its window says.
#[derive(Debug)]
pub struct RotatingCache {
    window: Window,
    buffers: Option<KeyValues>,
}

impl RotatingCache {
    /// An empty cache.
    pub fn new(window: Window) -> Self {
        Self { window, buffers: None }
    }

    /// A cache of these columns.
    pub(super) fn of(window: Window, buffers: Option<KeyValues>) -> Self {
        Self { window, buffers }
    }

    /// The same columns under new handles: whoever writes first copies.
    pub(super) fn share(&self) -> Self {
        Self { window: self.window, buffers: self.buffers.clone() }
    }

    /// What it holds, if it was ever written.
    pub(super) fn buffers(&self) -> Option<&KeyValues> {
        self.buffers.as_ref()
    }

    /// Its window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Writes new columns, in the form of those before them, and returns all that may be seen.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn update(&mut self, ring: &Ring, new: &KeyValues) -> Result<KeyValues> {
        let Update { held, placing } = ring.update(new.count());
        let new = &new.in_form_of(self.buffers.as_ref())?;
        let held = self.buffers.take().map(|buffers| arrange(buffers, &held)).transpose()?;
        match placing {
            Placing::Append => {
                let all = match held {
                    Some(held) => held.zip(new, Columns::then)?,
                    None => new.clone(),
                };
                Ok(self.buffers.insert(all).clone())
            }
            Placing::Overwrite { fresh, index, visible } => {
                let room = with_room(held, fresh, new)?;
                let written = room.zip(new, |columns, new| columns.write(new, index))?;
                // The old handles end here, so that MLX may write in place.
                drop(room);
                let written = self.buffers.insert(written);
                if visible == written.count() {
                    return Ok(written.clone());
                }
                written.map(|columns| columns.slice(0..visible))
            }
        }
    }

    /// The columns `ranges`, one range after the other, if it was ever written.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn columns(&self, ranges: &[Range<i32>]) -> Result<Option<KeyValues>> {
        let pick = |buffers: &KeyValues| buffers.map(|columns| columns.pick_columns(ranges));
        self.buffers.as_ref().map(pick).transpose()
    }

    /// Packs plain buffers as `packing` says. Says whether there were any.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn convert(&mut self, packing: Packing) -> Result<bool> {
        columns::convert(&mut self.buffers, packing)
    }

    /// Adds the rows of `other` as `join` says; `rows` are the two sets'.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn extend(&mut self, other: Self, join: &Join, rows: (i32, i32)) -> Result<()> {
        let side = |buffers: Option<KeyValues>, (held, width): &(Held, i32), rows| -> Result<_> {
            let buffers = buffers.map(|buffers| arrange(buffers, held)).transpose()?;
            Ok(Side { buffers, width: *width, rows })
        };
        let own = side(self.buffers.take(), &join.own, rows.0)?;
        let other = side(other.buffers, &join.joiner, rows.1)?;
        self.buffers = frame::stack(own, other)?;
        Ok(())
    }

    /// One cache of several lone rows with the columns `parts` of each; there is at least one.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub(super) fn merge(solos: &[Self], parts: &[Vec<Range<i32>>]) -> Result<Self> {
        let written = |(solo, part): (&Self, &Vec<Range<i32>>)| {
            let cut = |buffers: &KeyValues| buffers.map(|columns| columns.pick_columns(part));
            solo.buffers.as_ref().map(cut).transpose()
        };
        let rows = solos.iter().zip(parts).map(written).collect::<Result<Vec<_>>>()?;
        Ok(Self { window: solos[0].window, buffers: frame::pile(&rows)? })
    }

    /// Keeps `rows`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn filter(&mut self, rows: &[i32]) -> Result<()> {
        let Some(buffers) = self.buffers.take() else { return Ok(()) };
        self.buffers = Some(buffers.map(|columns| columns.pick_rows(rows))?);
        Ok(())
    }

    /// Copies the columns `ranges` of `row` into buffers of their own.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extract(&self, row: usize, ranges: &[Range<i32>]) -> Result<Self> {
        let row = ops::axis_index(row);
        let copy = |buffers: &KeyValues| buffers.map(|columns| columns.copy_row(row, ranges));
        let buffers = self.buffers.as_ref().map(copy).transpose()?;
        Ok(Self { window: self.window, buffers })
    }

    /// Its buffers, if it was ever written.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffers.iter().flat_map(KeyValues::arrays)
    }
}

fn arrange(buffers: KeyValues, held: &Held) -> Result<KeyValues> {
    match held {
        Held::AsTheyLie => Ok(buffers),
        Held::Ranges(ranges) => buffers.map(|columns| columns.pick_columns(ranges)),
    }
}

/// The buffers with `fresh` more columns; `new` shows the form of the first.
fn with_room(held: Option<KeyValues>, fresh: i32, new: &KeyValues) -> Result<KeyValues> {
    match held {
        Some(held) if fresh == 0 => Ok(held),
        Some(held) => held.zip(&new.map(|new| new.zeros(fresh))?, Columns::then),
        None => new.map(|new| new.zeros(fresh)),
    }
}
