//! Which architectures there are, by `model_type`.

use super::arch::{
    diffusion_gemma, gemma, gemma2, gemma3, gemma4, glm_moe_dsa, glm4, glm4_moe_lite, gpt_oss,
    granite, llama, minicpm, minicpm3, ministral3, olmo3, phi3, qwen2, qwen3, qwen3_5, qwen3_moe,
    smollm3,
};
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
    /// What its checkpoints may hold beside the language model, and is not run.
    pub towers: &'static [Tower],
    /// Whether its config reads on in `generation_config.json`.
    pub reads_generation: bool,
    /// Whether it is proven to make vectors of texts from what it makes of their last token.
    pub embeds: bool,
    arrange: Option<Arrange>,
    build: Build,
}

/// A part that turns something else than text into what a language model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tower {
    /// Images.
    Vision,
    /// Sound.
    Audio,
}

const FAMILIES: &[Family] = &[
    Family {
        serial_reason: Some("it denoises a block of tokens at a time, which is built for one row"),
        towers: &[Tower::Vision],
        reads_generation: true,
        arrange: Some(diffusion_gemma::arrange),
        ..batched("diffusion_gemma", |config, weights| {
            boxed(diffusion_gemma::load(config, weights))
        })
    },
    batched("gemma", |config, weights| boxed(gemma::load(config, weights))),
    batched("gemma2", |config, weights| boxed(gemma2::load(config, weights))),
    batched("gemma3_text", |config, weights| boxed(gemma3::load(config, weights))),
    gemma4_with_towers("gemma4"),
    Family {
        arrange: Some(gemma4::arrange_text),
        ..batched("gemma4_text", |config, weights| boxed(gemma4::load_text(config, weights)))
    },
    gemma4_with_towers("gemma4_unified"),
    batched("glm4", |config, weights| boxed(glm4::load(config, weights))),
    Family {
        arrange: Some(glm4_moe_lite::arrange),
        ..batched("glm4_moe_lite", |config, weights| boxed(glm4_moe_lite::load(config, weights)))
    },
    Family {
        arrange: Some(glm_moe_dsa::arrange),
        ..batched("glm_moe_dsa", |config, weights| boxed(glm_moe_dsa::load(config, weights)))
    },
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
    Family {
        embeds: true,
        arrange: Some(qwen3::arrange),
        ..batched("qwen3", |config, weights| boxed(qwen3::load(config, weights)))
    },
    QWEN3_5,
    Family { model_type: "qwen3_5_moe", ..QWEN3_5 },
    batched("qwen3_moe", |config, weights| boxed(qwen3_moe::load(config, weights))),
    batched("smollm3", |config, weights| boxed(smollm3::load(config, weights))),
];

const QWEN3_5: Family = Family {
    towers: &[Tower::Vision],
    arrange: Some(qwen3_5::arrange),
    ..batched("qwen3_5", |config, weights| boxed(qwen3_5::load(config, weights)))
};

type Arrange = fn(&ModelConfig, &mut Weights) -> Result<()>;
type Build = fn(&ModelConfig, &mut Weights) -> Result<Box<dyn Model>>;

/// A family whose rows share batches.
const fn batched(model_type: &'static str, build: Build) -> Family {
    Family {
        model_type,
        serial_reason: None,
        towers: &[],
        reads_generation: false,
        embeds: false,
        arrange: None,
        build,
    }
}

const fn gemma4_with_towers(model_type: &'static str) -> Family {
    Family {
        towers: &[Tower::Vision, Tower::Audio],
        arrange: Some(gemma4::arrange),
        ..batched(model_type, |config, weights| boxed(gemma4::load(config, weights)))
    }
}

fn boxed(model: Result<impl Model + 'static>) -> Result<Box<dyn Model>> {
    Ok(Box::new(model?))
}

impl Family {
    /// Every family.
    pub fn all() -> &'static [Self] {
        FAMILIES
    }

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

    /// Brings a checkpoint in any layout that the family knows into the one that [`Family::build`] reads,
    /// and drops what is not run. To be called before tensors are read or cast.
    ///
    /// # Errors
    /// `BadModel` when a tensor is missing or does not fit.
    pub fn arrange(&self, config: &ModelConfig, weights: &mut Weights) -> Result<()> {
        self.arrange.map_or(Ok(()), |arrange| arrange(config, weights))
    }

    /// Builds the model from its tensors.
    ///
    /// # Errors
    /// `BadModel` when a field or tensor is missing or does not fit.
    pub fn build(&self, config: &ModelConfig, weights: &mut Weights) -> Result<Box<dyn Model>> {
        (self.build)(config, weights)
    }
}
