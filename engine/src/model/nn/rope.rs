//! Rotary position embeddings (Su et al. 2021) and their stretched variants.

use std::f32::consts::PI;

use serde_json::Value;

use crate::cache::Offset;
use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops::{self, RopeFrequencies, RopeSpec};
use crate::model::ModelConfig;

/// A rotary embedding, ready to turn queries and keys.
#[derive(Debug)]
pub struct Rope(RopeSpec);

impl Rope {
    /// The embedding that `rope_theta` and `rope_scaling` of `config` describe for heads of
    /// `dimensions`.
    ///
    /// # Errors
    /// `BadModel` for a kind that this engine does not run, or with a field missing.
    pub fn of_config(config: &ModelConfig, dimensions: i32) -> Result<Self> {
        let base = config.optional_number("rope_theta")?.unwrap_or(10_000.0);
        Self::with_base(config, base, dimensions)
    }

    /// The two halves of a head turned with the frequencies of `base`, nothing stretched.
    pub fn plain(base: f32, dimensions: i32) -> Self {
        let frequencies = RopeFrequencies::Base(base);
        Self(RopeSpec { dimensions, traditional: false, scale: 1.0, frequencies })
    }

    /// As [`Rope::of_config`] with another `rope_theta`.
    ///
    /// # Errors
    /// See [`Rope::of_config`].
    pub fn with_base(config: &ModelConfig, base: f32, dimensions: i32) -> Result<Self> {
        let traditional = config.flag("rope_traditional", false)?;
        let plain = |scale: f32| RopeSpec {
            dimensions,
            traditional,
            scale,
            frequencies: RopeFrequencies::Base(base),
        };
        let Some(scaling) = config.section("rope_scaling")? else {
            return Ok(Self(plain(1.0)));
        };
        match kind(&scaling) {
            "default" => Ok(Self(plain(1.0))),
            "linear" => Ok(Self(plain(1.0 / scaling.number("factor")?))),
            "llama3" => {
                let table = Llama3::of_config(&scaling)?.table(base, dimensions);
                Ok(Self(RopeSpec { frequencies: RopeFrequencies::Table(table), ..plain(1.0) }))
            }
            other => {
                Err(Error::new(Code::BadModel, format!("rope type `{other}` is not supported"))
                    .with_hint("supported: default, linear, llama3"))
            }
        }
    }

    /// Turns `x` `[B, H, L, D]`, whose first token stands at `offset`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array, offset: &Offset) -> Result<Array> {
        match offset {
            Offset::Shared(offset) => ops::rope(x, &self.0, *offset),
            Offset::PerRow(offsets) => ops::rope_per_row(x, &self.0, offsets),
        }
    }
}

fn kind(scaling: &ModelConfig) -> &str {
    let named = |name| scaling.get(name).and_then(Value::as_str);
    named("type").or_else(|| named("rope_type")).unwrap_or("default")
}

/// Llama 3.1's stretch: long wavelengths by `factor`, short ones not at all, a smooth passage
/// between (mlx-lm 0.32.2, `rope_utils.Llama3RoPE`; computed in f32 as there).
#[derive(Debug)]
struct Llama3 {
    factor: f32,
    low_frequency_factor: f32,
    high_frequency_factor: f32,
    original_context_tokens: f32,
}

impl Llama3 {
    fn of_config(scaling: &ModelConfig) -> Result<Self> {
        let or = |name: &str, default: f32| -> Result<f32> {
            Ok(scaling.optional_number(name)?.unwrap_or(default))
        };
        Ok(Self {
            factor: scaling.number("factor")?,
            low_frequency_factor: or("low_freq_factor", 1.0)?,
            high_frequency_factor: or("high_freq_factor", 4.0)?,
            original_context_tokens: or("original_max_position_embeddings", 8192.0)?,
        })
    }

    fn table(&self, base: f32, dimensions: i32) -> Array {
        let wavelengths: Vec<f32> = (0..dimensions)
            .step_by(2)
            .map(|index| self.stretch(base.powf(index as f32 / dimensions as f32)))
            .collect();
        Array::from_slice(&wavelengths, &[dimensions / 2])
    }

    /// `wavelength` is over 2 pi.
    fn stretch(&self, wavelength: f32) -> f32 {
        let full = 2.0 * PI * wavelength;
        let low = self.original_context_tokens / self.low_frequency_factor;
        let high = self.original_context_tokens / self.high_frequency_factor;
        if full > low {
            return wavelength * self.factor;
        }
        if full <= high || full >= low {
            return wavelength;
        }
        let smooth = (self.original_context_tokens / full - self.low_frequency_factor)
            / (self.high_frequency_factor - self.low_frequency_factor);
        wavelength / ((1.0 - smooth) / self.factor + smooth)
    }
}
