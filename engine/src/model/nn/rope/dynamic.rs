//! Dynamic NTK scaling: the base grows with the row.

use super::{RopeOptions, positive};
use crate::cache::Offset;
use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops::{self, RopeFrequencies, RopeSpec};
use crate::model::ModelConfig;

/// The base of a forward that ends at token `n` is `base (f n / m - (f - 1))^(d / (d - 2))` once `n`
/// is past the `m` tokens of training; what is cached keeps the turn it got (mlx-lm 0.32.2,
/// `rope_utils.DynamicNTKScalingRoPE`, which fails on batches). Each row has its own `n`, so that it
/// answers as when alone.
#[derive(Debug, Clone)]
pub(super) struct Dynamic {
    dimensions: i32,
    traditional: bool,
    base: f64,
    factor: f64,
    trained_tokens: i32,
}

impl Dynamic {
    pub(super) fn of_config(scaling: &ModelConfig, options: &RopeOptions) -> Result<Self> {
        let RopeOptions { dimensions, base, traditional, context_tokens, .. } = *options;
        if dimensions <= 2 {
            let message = format!("a dynamic rope cannot stretch {dimensions} dimensions");
            return Err(Error::new(Code::BadModel, message));
        }
        let factor = positive(scaling, "factor")?;
        Ok(Self { dimensions, traditional, base, factor, trained_tokens: context_tokens })
    }

    pub(super) fn turn(&self, x: &Array, offset: &Offset) -> Result<Array> {
        let tokens = x.dim(2);
        let (numbers, array) = match offset {
            Offset::Shared(offset) => return ops::rope(x, &self.spec(offset + tokens), *offset),
            Offset::PerRow { numbers, array } => (numbers, array),
        };
        if numbers.iter().all(|offset| offset + tokens <= self.trained_tokens) {
            return ops::rope_per_row(x, &self.spec(self.trained_tokens), array);
        }
        let turn_row = |(row, offset): (usize, &i32)| {
            let row = ops::axis_index(row);
            ops::rope(&ops::slice_axis(x, 0, row, row + 1)?, &self.spec(offset + tokens), *offset)
        };
        let rows: Vec<_> = numbers.iter().enumerate().map(turn_row).collect::<Result<_>>()?;
        ops::concatenate_axis(&rows, 0)
    }

    fn spec(&self, end: i32) -> RopeSpec {
        RopeSpec {
            dimensions: self.dimensions,
            traditional: self.traditional,
            scale: 1.0,
            frequencies: RopeFrequencies::Base(self.base_at(end) as f32),
        }
    }

    fn base_at(&self, end: i32) -> f64 {
        let trained = f64::from(self.trained_tokens);
        let seen = f64::from(end).max(trained);
        let stretch = self.factor * seen / trained - (self.factor - 1.0);
        let dimensions = f64::from(self.dimensions);
        self.base * stretch.powf(dimensions / (dimensions - 2.0))
    }
}
