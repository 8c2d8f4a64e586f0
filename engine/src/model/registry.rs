//! Which architectures there are, by `model_type`.

use super::arch::{gemma, gemma2, gemma3, llama};
use super::{Model, ModelConfig};
use crate::error::{Code, Error, Result};
use crate::mlx::Weights;

/// An architecture family and what it declares about itself.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The `model_type` of its checkpoints.
    pub model_type: &'static str,
    /// Why rows of it cannot share a batch; `None` when they can.
    pub serial_reason: Option<&'static str>,
    build: fn(&ModelConfig, &mut Weights) -> Result<Box<dyn Model>>,
}

const FAMILIES: &[Family] = &[
    Family {
        model_type: "llama",
        serial_reason: None,
        build: |config, weights| Ok(Box::new(llama::load(config, weights)?)),
    },
    Family {
        model_type: "gemma",
        serial_reason: None,
        build: |config, weights| Ok(Box::new(gemma::load(config, weights)?)),
    },
    Family {
        model_type: "gemma2",
        serial_reason: None,
        build: |config, weights| Ok(Box::new(gemma2::load(config, weights)?)),
    },
    Family {
        model_type: "gemma3_text",
        serial_reason: None,
        build: |config, weights| Ok(Box::new(gemma3::load(config, weights)?)),
    },
];

impl Family {
    /// The family of a checkpoint.
    ///
    /// # Errors
    /// `BadModel` naming the unknown `model_type` and the known ones: nothing is guessed.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        let model_type = config.model_type()?;
        let known = FAMILIES.iter().find(|family| family.model_type == model_type);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
            Error::new(Code::BadModel, format!("model type `{model_type}` is not supported"))
                .with_hint(format!("supported: {}", names.join(", ")))
        })
    }

    /// Builds the model from its tensors.
    ///
    /// # Errors
    /// `BadModel` when a field or tensor is missing or does not fit.
    pub fn build(&self, config: &ModelConfig, weights: &mut Weights) -> Result<Box<dyn Model>> {
        (self.build)(config, weights)
    }
}
