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
        self.map(|array| {
            let mut shape = array.shape().to_vec();
            shape[TIME_AXIS] = count;
            ops::zeros(&shape, array.dtype())
        })
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

    /// Columns `range` of row `row` in buffers of their own.
    ///
    /// # Errors
    /// See [`Columns::slice`].
    pub fn copy_row(&self, row: i32, range: Range<i32>) -> Result<Self> {
        self.map(|array| {
            let lone = ops::slice_axis(array, 0, row, row + 1)?;
            let own = ops::slice_axis(&lone, TIME_AXIS, range.start, range.end)?;
            Ok(own.contiguous()?)
        })
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

    /// Plain keys and values in the form of `stored` ones, to be written among them.
    ///
    /// # Errors
    /// See [`Columns::pack`].
    pub fn in_form_of(&self, stored: Option<&Self>) -> Result<Self> {
        match stored.and_then(Self::packing) {
            Some(packing) => self.pack(packing),
            None => Ok(self.clone()),
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

fn mixed_forms() -> crate::error::Error {
    let message = "columns of different forms meet in one layer";
    crate::error::Error::new(crate::error::Code::Internal, message)
}
