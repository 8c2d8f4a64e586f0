//! How a checkpoint says that most of its matrices are packed.

use std::fmt;

use serde_json::Value;

use crate::error::Result;
use crate::model::ModelConfig;

/// How most matrices are packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightPacking {
    /// Bits of a number.
    pub bits: u64,
    /// Numbers that share a scale.
    pub group_size: u64,
    /// MLX's name of the way: `affine`, `mxfp4`, `mxfp8` or `nvfp4`.
    pub mode: &'static str,
}

/// Ways, and what they have where the config does not say.
const MODES: [(&str, u64, u64); 4] =
    [("affine", 4, 64), ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)];

impl WeightPacking {
    /// What `quantization` says, else `quantization_config`, which names a method where MLX did not write it;
    /// `None` for a dense checkpoint.
    ///
    /// # Errors
    /// `BadModel` naming the field whose value is not supported.
    pub fn of_config(config: &ModelConfig) -> Result<Option<Self>> {
        if let Some(fields) = config.section("quantization")? {
            return Self::general(&fields).map(Some);
        }
        let Some(fields) = config.section("quantization_config")? else { return Ok(None) };
        match fields.get("quant_method") {
            None => Self::general(&fields).map(Some),
            Some(method) => {
                let known = mode_of(method).filter(|(name, ..)| name.starts_with("mx"));
                let (mode, bits, group_size) = known.ok_or_else(|| {
                    fields.wrong("quant_method", method).with_hint("supported: mxfp4, mxfp8")
                })?;
                Ok(Some(Self { bits, group_size, mode }))
            }
        }
    }

    fn general(fields: &ModelConfig) -> Result<Self> {
        let (bits, group_size) = (fields.count("bits")?, fields.count("group_size")?);
        let mode = match fields.get("mode") {
            None => MODES[0],
            Some(mode) => mode_of(mode).ok_or_else(|| {
                let names = MODES.map(|(name, ..)| name).join(", ");
                fields.wrong("mode", mode).with_hint(format!("supported: {names}"))
            })?,
        };
        let number = |count: i32| u64::from(count.unsigned_abs());
        Ok(Self { bits: number(bits), group_size: number(group_size), mode: mode.0 })
    }

    /// Bits of a number in the layer `path`: its own entry's, else those of most.
    pub(super) fn bits_of(&self, config: &ModelConfig, path: &str) -> u64 {
        let sections = ["quantization", "quantization_config"];
        let own = sections.iter().find_map(|section| config.get(section)?.get(path)?.get("bits"));
        own.and_then(Value::as_u64).filter(|bits| (1..=32).contains(bits)).unwrap_or(self.bits)
    }
}

fn mode_of(value: &Value) -> Option<(&'static str, u64, u64)> {
    MODES.into_iter().find(|(name, ..)| *value == **name)
}

impl fmt::Display for WeightPacking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            "affine" => write!(formatter, "{}-bit", self.bits),
            mode => formatter.write_str(mode),
        }
    }
}
