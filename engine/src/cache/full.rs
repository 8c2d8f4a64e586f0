//! Full attention: keys and values of every token, in buffers that grow by granules.

use std::ops::Range;

use crate::error::Result;
use crate::limits::KV_GRANULE_TOKENS;
use crate::mlx::Array;
use crate::mlx::ops;

const TIME_AXIS: usize = 2;

/// Keys and values `[B, H, capacity, D]` of one layer; the capacity is at least the set's width.
#[derive(Debug, Default)]
pub struct FullCache {
    buffers: Option<Buffers>,
}

#[derive(Debug)]
struct Buffers {
    keys: Array,
    values: Array,
}

impl FullCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes `[B, H, L, D]` at `width` and returns columns `0..width + L`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn update(&mut self, width: i32, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let stop = width + keys.dim(2);
        let buffers = Buffers::with_room(self.buffers.take(), width, keys, values)?;
        let written = Buffers {
            keys: ops::slice_update_axis(&buffers.keys, keys, TIME_AXIS, width, stop)?,
            values: ops::slice_update_axis(&buffers.values, values, TIME_AXIS, width, stop)?,
        };
        // The old handles end here, so that MLX may write in place.
        drop(buffers);
        let written = self.buffers.insert(written);
        Ok((written.keys_until(stop)?, written.values_until(stop)?))
    }

    /// Adds the rows of `other`; `widths` are the two sets' widths.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extend(&mut self, other: Self, widths: (i32, i32)) -> Result<()> {
        let (Some(own), Some(other)) = (self.buffers.take(), other.buffers) else {
            return Ok(());
        };
        let frame =
            Frame { width: widths.0.max(widths.1), capacity: own.capacity().max(other.capacity()) };
        let join = |own: &Array, other: &Array| {
            let parts = [frame.place(own, widths.0)?, frame.place(other, widths.1)?];
            ops::concatenate_axis(&parts, 0)
        };
        self.buffers = Some(Buffers {
            keys: join(&own.keys, &other.keys)?,
            values: join(&own.values, &other.values)?,
        });
        Ok(())
    }

    /// Keeps `rows` and drops `shift` columns from the left.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn filter(&mut self, rows: &[i32], shift: i32) -> Result<()> {
        let Some(buffers) = self.buffers.take() else {
            return Ok(());
        };
        let pick = |array: &Array| -> Result<Array> {
            let kept = ops::take_rows(array, rows)?;
            if shift == 0 {
                return Ok(kept);
            }
            ops::slice_axis(&kept, TIME_AXIS, shift, kept.dim(2))
        };
        self.buffers = Some(Buffers { keys: pick(&buffers.keys)?, values: pick(&buffers.values)? });
        Ok(())
    }

    /// Copies `columns` of `row` into buffers of their own.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn extract(&self, row: usize, columns: Range<i32>) -> Result<Self> {
        let Some(buffers) = &self.buffers else {
            return Ok(Self::new());
        };
        let row = ops::axis_index(row);
        let copy = |array: &Array| -> Result<Array> {
            let lone = ops::slice_axis(array, 0, row, row + 1)?;
            let own = ops::slice_axis(&lone, TIME_AXIS, columns.start, columns.end)?;
            Ok(own.contiguous()?)
        };
        let copied = Buffers { keys: copy(&buffers.keys)?, values: copy(&buffers.values)? };
        Ok(Self { buffers: Some(copied) })
    }

    /// Its buffers, if it was ever written.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffers.iter().flat_map(|buffers| [&buffers.keys, &buffers.values])
    }
}

impl Buffers {
    /// The buffers with room for `keys` and `values` at `width`, as mlx-lm 0.32.2's `KVCache` grows
    /// them: by whole granules, cutting what the last one left over.
    fn with_room(old: Option<Self>, width: i32, keys: &Array, values: &Array) -> Result<Self> {
        let grow = |old: Option<&Array>, like: &Array| -> Result<Array> {
            let fresh = zeros_like_granules(like)?;
            match old {
                None => Ok(fresh),
                Some(old) => {
                    let written = ops::slice_axis(old, TIME_AXIS, 0, width)?;
                    ops::concatenate_axis(&[written, fresh], TIME_AXIS)
                }
            }
        };
        match old {
            Some(old) if width + keys.dim(2) <= old.capacity() => Ok(old),
            old => Ok(Self {
                keys: grow(old.as_ref().map(|old| &old.keys), keys)?,
                values: grow(old.as_ref().map(|old| &old.values), values)?,
            }),
        }
    }

    fn capacity(&self) -> i32 {
        self.keys.dim(2)
    }

    fn keys_until(&self, stop: i32) -> Result<Array> {
        ops::slice_axis(&self.keys, TIME_AXIS, 0, stop)
    }

    fn values_until(&self, stop: i32) -> Result<Array> {
        ops::slice_axis(&self.values, TIME_AXIS, 0, stop)
    }
}

fn zeros_like_granules(like: &Array) -> Result<Array> {
    let granule = ops::axis_index(KV_GRANULE_TOKENS);
    let mut shape = like.shape().to_vec();
    shape[TIME_AXIS] = (shape[TIME_AXIS] + granule - 1) / granule * granule;
    ops::zeros(&shape, like.dtype())
}

/// The columns that two sides of an `extend` are placed into.
#[derive(Clone, Copy)]
struct Frame {
    width: i32,
    capacity: i32,
}

impl Frame {
    /// Right-aligns the `width` written columns of `array` on the frame's width and gives the
    /// buffer the frame's capacity.
    fn place(self, array: &Array, width: i32) -> Result<Array> {
        let left = self.width - width;
        let right = self.capacity - left - array.dim(2);
        let cut = if right < 0 {
            ops::slice_axis(array, TIME_AXIS, 0, array.dim(2) + right)?
        } else {
            ops::share(array)
        };
        ops::pad_axis(&cut, TIME_AXIS, left, right.max(0))
    }
}
