//! Which architectures there are, by `model_type`.

use super::arch::{
    gemma, gemma2, gemma3, glm4, gpt_oss, granite, llama, minicpm, minicpm3, ministral3, olmo3,
    phi3, qwen2, qwen3, qwen3_moe, smollm3,
};
use super::nn::Decoder;
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
    build: Build,
}

const FAMILIES: &[Family] = &[
    batched("gemma", |config, weights| boxed(gemma::load(config, weights))),
    batched("gemma2", |config, weights| boxed(gemma2::load(config, weights))),
    batched("gemma3_text", |config, weights| boxed(gemma3::load(config, weights))),
    batched("glm4", |config, weights| boxed(glm4::load(config, weights))),
    batched("gpt_oss", |config, weights| boxed(gpt_oss::load(config, weights))),
    batched("granite", |config, weights| boxed(granite::load(config, weights))),
    batched("llama", |config, weights| boxed(llama::load(config, weights))),
    batched("minicpm", |config, weights| boxed(minicpm::load(config, weights))),
    batched("minicpm3", |config, weights| boxed(minicpm3::load(config, weights))),
    batched("ministral3", |config, weights| boxed(ministral3::load(config, weights))),
    batched("mistral", |config, weights| boxed(llama::load(config, weights))),
    batched("olmo3", |config, weights| boxed(olmo3::load(config, weights))),
    batched("phi3", |config, weights| boxed(phi3::load(config, weights))),
    batched("qwen2", |config, weights| boxed(qwen2::load(config, weights))),
    batched("qwen3", |config, weights| boxed(qwen3::load(config, weights))),
    batched("qwen3_moe", |config, weights| boxed(qwen3_moe::load(config, weights))),
    batched("smollm3", |config, weights| boxed(smollm3::load(config, weights))),
];

type Build = fn(&ModelConfig, &mut Weights) -> Result<Box<dyn Model>>;

/// A family whose rows share batches.
const fn batched(model_type: &'static str, build: Build) -> Family {
    Family { model_type, serial_reason: None, build }
}

fn boxed(decoder: Result<Decoder>) -> Result<Box<dyn Model>> {
    Ok(Box::new(decoder?))
}

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
