//! Stretches that are a table of `base^(2i/d)`, each in its own way.

use std::f64::consts::PI;

use serde_json::Value;

use super::positive;
use crate::error::Result;
use crate::mlx::Array;
use crate::mlx::ops;
use crate::model::ModelConfig;

/// `base^(2i/d)`: wavelengths over 2 pi.
fn plain(base: f64, dimensions: i32) -> Result<Array> {
    let even = (0..dimensions).step_by(2).map(|index| index as f32);
    let exponents = ops::divide(&Array::from_iter(even, &[dimensions / 2]), dimensions as f32)?;
    ops::power_of(base as f32, &exponents)
}

fn optional(scaling: &ModelConfig, name: &str, default: f64) -> Result<f64> {
    Ok(scaling.optional_precise_number(name)?.unwrap_or(default))
}

/// Llama 3.1's stretch: long wavelengths by `factor`, short ones not at all, a smooth passage
/// between (mlx-lm 0.32.2, `rope_utils.Llama3RoPE`).
#[derive(Debug)]
pub(super) struct Llama3 {
    factor: f64,
    low_frequency_factor: f64,
    high_frequency_factor: f64,
    trained_tokens: f64,
}

impl Llama3 {
    pub(super) fn of_config(scaling: &ModelConfig) -> Result<Self> {
        Ok(Self {
            factor: positive(scaling, "factor")?,
            low_frequency_factor: optional(scaling, "low_freq_factor", 1.0)?,
            high_frequency_factor: optional(scaling, "high_freq_factor", 4.0)?,
            trained_tokens: optional(scaling, "original_max_position_embeddings", 8192.0)?,
        })
    }

    pub(super) fn table(&self, base: f64, dimensions: i32) -> Result<Array> {
        let (factor, trained) = (self.factor as f32, self.trained_tokens);
        let (low_factor, high_factor) = (self.low_frequency_factor, self.high_frequency_factor);
        let (longest, shortest) = ((trained / low_factor) as f32, (trained / high_factor) as f32);
        let plain = plain(base, dimensions)?;
        let wavelengths = ops::scale(&plain, (2.0 * PI) as f32)?;
        let long = ops::above(&wavelengths, longest)?;
        let stretched = ops::choose(&long, &ops::scale(&plain, factor)?, &plain)?;
        let turns = ops::divide_by(trained as f32, &wavelengths)?;
        let distance = ops::shift(&turns, -(low_factor as f32))?;
        let smooth = ops::divide(&distance, (high_factor - low_factor) as f32)?;
        let blend = ops::divide(&ops::one_minus(&smooth)?, factor)?.add(&smooth)?;
        let medium = ops::between(&wavelengths, shortest, longest)?;
        ops::choose(&medium, &stretched.divide(blend)?, &stretched)
    }
}

/// YaRN (Peng et al. 2023): dimensions that turn often keep their frequency, those that turn seldom
/// are stretched by `factor`, a ramp between (mlx-lm 0.32.2, `rope_utils.YarnRoPE`).
#[derive(Debug)]
pub(super) struct Yarn {
    factor: f64,
    trained_tokens: f64,
    beta_fast: f64,
    beta_slow: f64,
    magnitude_scale: f64,
    magnitude_scale_of_all: f64,
}

impl Yarn {
    pub(super) fn of_config(scaling: &ModelConfig) -> Result<Self> {
        Ok(Self {
            factor: positive(scaling, "factor")?,
            trained_tokens: optional(scaling, "original_max_position_embeddings", 4096.0)?,
            beta_fast: optional(scaling, "beta_fast", 32.0)?,
            beta_slow: optional(scaling, "beta_slow", 1.0)?,
            magnitude_scale: optional(scaling, "mscale", 1.0)?,
            magnitude_scale_of_all: optional(scaling, "mscale_all_dim", 0.0)?,
        })
    }

    pub(super) fn magnitude(&self) -> f64 {
        let of = |scale: f64| match self.factor <= 1.0 {
            true => 1.0,
            false => 0.1 * scale * self.factor.ln() + 1.0,
        };
        of(self.magnitude_scale) / of(self.magnitude_scale_of_all)
    }

    pub(super) fn table(&self, base: f64, dimensions: i32) -> Result<Array> {
        let kept = plain(base, dimensions)?;
        let stretched = ops::scale(&kept, self.factor as f32)?;
        let keep = ops::one_minus(&self.ramp(base, dimensions)?)?;
        let blend = stretched.multiply(&keep)?.add(kept.multiply(ops::one_minus(&keep)?)?)?;
        Ok(stretched.multiply(&kept)?.divide(blend)?)
    }

    /// 0 where dimensions turn often, 1 where they turn seldom.
    fn ramp(&self, base: f64, dimensions: i32) -> Result<Array> {
        let (low, high) = self.passage(base, f64::from(dimensions));
        let high = if low == high { high + 0.001 } else { high };
        let half = dimensions / 2;
        let indices = Array::from_iter((0..half).map(|index| index as f32), &[half]);
        let line = ops::divide(&ops::shift(&indices, -(low as f32))?, (high - low) as f32)?;
        ops::clip_to_unit(&line)
    }

    /// The dimensions between which the ramp runs.
    fn passage(&self, base: f64, dimensions: f64) -> (f64, f64) {
        let turning = |turns: f64| {
            (dimensions * (self.trained_tokens / (turns * 2.0 * PI)).ln()) / (2.0 * base.ln())
        };
        let (low, high) = (turning(self.beta_fast).floor(), turning(self.beta_slow).ceil());
        (low.max(0.0), high.min(dimensions - 1.0))
    }
}

/// LongRoPE (Ding et al. 2024): a factor of its own for each dimension, the long one whatever the
/// row's length (mlx-lm 0.32.2, `rope_utils.SuScaledRoPE`).
#[derive(Debug)]
pub(super) struct LongRope {
    /// One per pair of dimensions, or one for all.
    factors: Vec<f32>,
}

impl LongRope {
    pub(super) fn of_config(scaling: &ModelConfig, dimensions: i32) -> Result<Self> {
        const NAME: &str = "long_factor";
        let value = scaling.get(NAME).ok_or_else(|| scaling.missing(NAME))?;
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let factors: Option<Vec<f32>> = match value {
            Value::Array(factors) if factors.len() == (dimensions / 2).unsigned_abs() as usize => {
                factors.iter().map(number).collect()
            }
            value => number(value).map(|factor| vec![factor]),
        };
        Ok(Self { factors: factors.ok_or_else(|| scaling.wrong(NAME, value))? })
    }

    pub(super) fn table(&self, base: f64, dimensions: i32) -> Result<Array> {
        let factors = Array::from_slice(&self.factors, &[ops::axis_index(self.factors.len())]);
        Ok(factors.multiply(plain(base, dimensions)?)?)
    }
}

/// Only the leading part of a head turns, but with the frequencies of the whole head; the others stand
/// still, as if their wavelengths were infinite (mlx-lm 0.32.2, `rope_utils.ProportionalRoPE`).
#[derive(Debug)]
pub(super) struct Proportional {
    factor: f64,
    turning: i32,
}

impl Proportional {
    pub(super) fn of_config(scaling: &ModelConfig, dimensions: i32) -> Result<Self> {
        const PART: &str = "partial_rotary_factor";
        let part = optional(scaling, PART, 1.0)?;
        let turning = (f64::from(dimensions) * part) as i32;
        if turning < 2 || turning > dimensions || turning % 2 != 0 {
            return Err(scaling.wrong(PART, &part.into()));
        }
        let factor = scaling.get("factor").map(|_| positive(scaling, "factor")).transpose()?;
        Ok(Self { factor: factor.unwrap_or(1.0), turning })
    }

    pub(super) fn table(&self, base: f64, dimensions: i32) -> Result<Array> {
        let (turning, still) = (self.turning / 2, (dimensions - self.turning) / 2);
        let turning = ops::slice_axis(&plain(base, dimensions)?, 0, 0, turning)?;
        let turning = ops::scale(&turning, self.factor as f32)?;
        let still = Array::from_iter((0..still).map(|_| f32::INFINITY), &[still]);
        ops::concatenate_axis(&[turning, still], 0)
    }
}

/// What LongRoPE scales queries and keys by when `trained_tokens` are stretched `stretch` times.
pub(super) fn long_magnitude(stretch: f64, trained_tokens: f64) -> f64 {
    match stretch <= 1.0 {
        true => 1.0,
        false => (1.0 + stretch.ln() / trained_tokens.ln()).sqrt(),
    }
}
