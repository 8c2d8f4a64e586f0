//! Token columns: tensors `[B, H, S, D]` whose third axis is time, in whatever form they are stored.
//!
//! All surgery (slice, write, pad, join, pick rows) is the same for every form, because groups of
//! quantized values lie along the head dimension and never across tokens: what belongs together
//! moves together here, once.

use std::ops::Range;

use super::scheme::Packing;
use crate::error::Result;
use crate::mlx::Array;
use crate::mlx::ops::{self, TIME_AXIS};

/// Columns of one tensor.
#[derive(Debug, Clone)]
pub enum Columns {
    /// Values as they are.
    Plain(Array),
    /// Values packed by MLX's affine scheme, groups along the head dimension.
    Affine(AffineColumns),
}

/// Packed values `[B, H, S, D * bits / 32]` with a scale and a bias per group `[B, H, S, D / group]`.
#[derive(Debug, Clone)]
pub struct AffineColumns {
    /// The packed values.
    pub packed: Array,
    /// One scale per group.
    pub scales: Array,
    /// One bias per group.
    pub biases: Array,
    /// How they are packed.
    pub packing: Packing,
}

impl Columns {
    /// How many columns there are, written or not.
    pub fn count(&self) -> i32 {
        self.first().dim(2)
    }

    /// How many rows there are.
    pub fn rows(&self) -> i32 {
        self.first().dim(0)
    }

    /// The columns `range`.
    ///
    /// # Errors
    /// As all of this type: `EngineFailed` with MLX's text.
    pub fn slice(&self, range: Range<i32>) -> Result<Self> {
        self.map(|array| ops::slice_axis(array, TIME_AXIS, range.start, range.end))
    }

    /// These columns with `update` written from column `start` on. MLX writes in place when no other
    /// handle to these columns is left at evaluation.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn write(&self, update: &Self, start: i32) -> Result<Self> {
        let stop = start + update.count();
        self.zip(update, |array, update| {
            ops::slice_update_axis(array, update, TIME_AXIS, start, stop)
        })
    }

    /// These columns between `left` and `right` zero columns.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn pad(&self, left: i32, right: i32) -> Result<Self> {
        self.map(|array| ops::pad_axis(array, TIME_AXIS, left, right))
    }

    /// Zero columns of this form, as many as `count`.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn zeros(&self, count: i32) -> Result<Self> {
        self.blank(self.rows(), count)
    }

    /// These columns, then `later` ones.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn then(&self, later: &Self) -> Result<Self> {
        self.zip(later, |array, later| {
            ops::concatenate_axis(&[ops::share(array), ops::share(later)], TIME_AXIS)
        })
    }

    /// The columns of `ranges`, one range after the other.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn pick_columns(&self, ranges: &[Range<i32>]) -> Result<Self> {
        self.map(|array| {
            let part =
                |range: &Range<i32>| ops::slice_axis(array, TIME_AXIS, range.start, range.end);
            match ranges {
                [] => ops::slice_axis(array, TIME_AXIS, 0, 0),
                ranges => {
                    let parts = ranges.iter().map(part).collect::<Result<Vec<_>>>()?;
                    ops::concatenate_axis(&parts, TIME_AXIS)
                }
            }
        })
    }

    /// The rows of all `parts`, one part below the other.
    ///
    /// # Errors
    /// See [`Columns::slice`]; `Internal` when there is no part.
    pub fn stack(parts: &[Self]) -> Result<Self> {
        let (first, rest) = parts.split_first().ok_or_else(nothing_to_stack)?;
        let below = |arrays: &[&Array]| {
            let arrays: Vec<_> = arrays.iter().map(|array| ops::share(array)).collect();
            ops::concatenate_axis(&arrays, 0)
        };
        match first {
            Self::Plain(array) => {
                let rest = rest.iter().map(|part| part.as_plain());
                let all: Vec<_> = std::iter::once(Ok(array)).chain(rest).collect::<Result<_>>()?;
                Ok(Self::Plain(below(&all)?))
            }
            Self::Affine(affine) => {
                let rest = rest.iter().map(|part| part.as_affine(affine.packing));
                let all: Vec<_> = std::iter::once(Ok(affine)).chain(rest).collect::<Result<_>>()?;
                let each = |pick: fn(&AffineColumns) -> &Array| {
                    below(&all.iter().map(|affine| pick(affine)).collect::<Vec<_>>())
                };
                Ok(Self::Affine(AffineColumns {
                    packed: each(|affine| &affine.packed)?,
                    scales: each(|affine| &affine.scales)?,
                    biases: each(|affine| &affine.biases)?,
                    packing: affine.packing,
                }))
            }
        }
    }

    /// Zero columns of this form, `count` in each of `rows` rows.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn blank(&self, rows: i32, count: i32) -> Result<Self> {
        self.map(|array| {
            let mut shape = array.shape().to_vec();
            (shape[0], shape[TIME_AXIS]) = (rows, count);
            ops::zeros(&shape, array.dtype())
        })
    }

    /// These rows, then the rows of `others` below them.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn above(&self, others: &Self) -> Result<Self> {
        self.zip(others, |array, others| {
            ops::concatenate_axis(&[ops::share(array), ops::share(others)], 0)
        })
    }

    /// The rows at `rows`, in that order.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn pick_rows(&self, rows: &[i32]) -> Result<Self> {
        self.map(|array| ops::take_rows(array, rows))
    }

    /// The columns of `ranges` of row `row`, one range after the other, in buffers of their own.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn copy_row(&self, row: i32, ranges: &[Range<i32>]) -> Result<Self> {
        let lone = self.map(|array| ops::slice_axis(array, 0, row, row + 1))?;
        lone.pick_columns(ranges)?.map(|array| Ok(array.contiguous()?))
    }

    /// How they are packed, if they are.
    pub fn packing(&self) -> Option<Packing> {
        match self {
            Self::Plain(_) => None,
            Self::Affine(affine) => Some(affine.packing),
        }
    }

    /// Plain columns, packed as `packing` says: all of them, written or not, as mlx-lm 0.32.2's
    /// `KVCache.to_quantized` does.
    ///
    /// # Errors
    /// See [`Columns::slice`]; `Internal` when they are packed already.
    pub fn pack(&self, packing: Packing) -> Result<Self> {
        let Self::Plain(array) = self else {
            return Err(mixed_forms());
        };
        let (packed, scales, biases) = ops::quantize(array, (packing.group_size, packing.bits))?;
        Ok(Self::Affine(AffineColumns { packed, scales, biases, packing }))
    }

    /// Applies `change` to each array.
    fn map(&self, change: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        match self {
            Self::Plain(array) => Ok(Self::Plain(change(array)?)),
            Self::Affine(affine) => Ok(Self::Affine(AffineColumns {
                packed: change(&affine.packed)?,
                scales: change(&affine.scales)?,
                biases: change(&affine.biases)?,
                packing: affine.packing,
            })),
        }
    }

    /// Applies `change` to each array and its counterpart in `other`, which must be of this form.
    fn zip(&self, other: &Self, change: impl Fn(&Array, &Array) -> Result<Array>) -> Result<Self> {
        match (self, other) {
            (Self::Plain(array), Self::Plain(other)) => Ok(Self::Plain(change(array, other)?)),
            (Self::Affine(affine), Self::Affine(other)) if affine.packing == other.packing => {
                Ok(Self::Affine(AffineColumns {
                    packed: change(&affine.packed, &other.packed)?,
                    scales: change(&affine.scales, &other.scales)?,
                    biases: change(&affine.biases, &other.biases)?,
                    packing: affine.packing,
                }))
            }
            (Self::Plain(_) | Self::Affine(_), _) => Err(mixed_forms()),
        }
    }

    /// Its arrays, to evaluate or to weigh them.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (first, rest) = match self {
            Self::Plain(array) => (array, None),
            Self::Affine(affine) => (&affine.packed, Some([&affine.scales, &affine.biases])),
        };
        std::iter::once(first).chain(rest.into_iter().flatten())
    }

    /// The values as they are.
    ///
    /// # Errors
    /// `Internal` when they are packed.
    pub fn as_plain(&self) -> Result<&Array> {
        match self {
            Self::Plain(array) => Ok(array),
            Self::Affine(_) => Err(mixed_forms()),
        }
    }

    fn as_affine(&self, packing: Packing) -> Result<&AffineColumns> {
        match self {
            Self::Affine(affine) if affine.packing == packing => Ok(affine),
            Self::Plain(_) | Self::Affine(_) => Err(mixed_forms()),
        }
    }

    fn first(&self) -> &Array {
        match self {
            Self::Plain(array) => array,
            Self::Affine(affine) => &affine.packed,
        }
    }
}

/// Keys and values of one layer, in the same columns.
#[derive(Debug, Clone)]
pub struct KeyValues {
    /// The keys.
    pub keys: Columns,
    /// The values.
    pub values: Columns,
}

impl KeyValues {
    /// Plain keys and values `[B, H, S, D]`.
    pub fn plain(keys: Array, values: Array) -> Self {
        Self { keys: Columns::Plain(keys), values: Columns::Plain(values) }
    }

    /// How many columns there are, written or not.
    pub fn count(&self) -> i32 {
        self.keys.count()
    }

    /// How many rows there are.
    pub fn rows(&self) -> i32 {
        self.keys.rows()
    }

    /// The rows of all `parts`, one part below the other.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; `Internal` when there is no part.
    pub fn stack(parts: &[Self]) -> Result<Self> {
        let keys: Vec<_> = parts.iter().map(|part| part.keys.clone()).collect();
        let values: Vec<_> = parts.iter().map(|part| part.values.clone()).collect();
        Ok(Self { keys: Columns::stack(&keys)?, values: Columns::stack(&values)? })
    }

    /// How they are packed, if they are.
    pub fn packing(&self) -> Option<Packing> {
        self.keys.packing()
    }

    /// Plain keys and values, packed as `packing` says.
    ///
    /// # Errors
    /// See [`Columns::pack`].
    pub fn pack(&self, packing: Packing) -> Result<Self> {
        self.map(|columns| columns.pack(packing))
    }

    /// These in the form of `stored` ones, to be written among them: plain ones are packed as those are.
    ///
    /// # Errors
    /// See [`Columns::pack`].
    pub fn in_form_of(&self, stored: Option<&Self>) -> Result<Self> {
        match stored.and_then(Self::packing) {
            Some(packing) if self.packing().is_none() => self.pack(packing),
            Some(_) | None => Ok(self.clone()),
        }
    }

    /// Applies `change` to the keys and to the values.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn map(&self, change: impl Fn(&Columns) -> Result<Columns>) -> Result<Self> {
        Ok(Self { keys: change(&self.keys)?, values: change(&self.values)? })
    }

    /// Applies `change` to both keys and to both values.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn zip(
        &self,
        other: &Self,
        change: impl Fn(&Columns, &Columns) -> Result<Columns>,
    ) -> Result<Self> {
        Ok(Self {
            keys: change(&self.keys, &other.keys)?,
            values: change(&self.values, &other.values)?,
        })
    }

    /// Its arrays, to evaluate or to weigh them.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.keys.arrays().chain(self.values.arrays())
    }
}

/// Packs plain `buffers` as `packing` says. Says whether there were any.
///
/// # Errors
/// `EngineFailed` with MLX's text; the buffers are then lost.
pub(super) fn convert(buffers: &mut Option<KeyValues>, packing: Packing) -> Result<bool> {
    let Some(plain) = buffers.take_if(|buffers| buffers.packing().is_none()) else {
        return Ok(false);
    };
    *buffers = Some(plain.pack(packing)?);
    Ok(true)
}

fn nothing_to_stack() -> crate::error::Error {
    crate::error::Error::new(crate::error::Code::Internal, "no rows to stack")
}

fn mixed_forms() -> crate::error::Error {
    let message = "columns of different forms meet in one layer";
    crate::error::Error::new(crate::error::Code::Internal, message)
}
