//! Models that write a block of tokens at a time: how a row of them goes on, and by which rules.
//!
//! Words: the **canvas** is the block under construction, a token at each place; a **forward** looks at
//! all of it at once and says for each place which token belongs there; places that are **accepted** take
//! that token, the others a random one (**noise**), and the next forward looks again. The tokens of a
//! finished canvas are what the last forward found most likely. Then they are read like a prompt, before
//! the next canvas begins.
//!
//! The rules are those of DiffusionGemma as mlx-vlm 0.7.10 (`generate/diffusion.py`) and transformers 5.24
//! run it; [`Acceptance::Confident`] is the former's alone.

use std::fmt;

use super::ModelConfig;
use crate::cache::CacheSet;
use crate::error::Result;
use crate::mlx::Array;

/// How a model's rows go on once their prompt is read.
#[derive(Debug, Clone, Copy)]
pub enum Decoding<'model> {
    /// Token by token, each from the logits of the one before it.
    NextToken,
    /// Block by block.
    BlockDiffusion(&'model dyn BlockDiffusion),
}

/// A model that denoises canvases.
pub trait BlockDiffusion: fmt::Debug {
    /// The rules that its checkpoint asks for.
    fn denoising(&self) -> &Denoising;

    /// Tokens that a place may hold.
    fn vocabulary(&self) -> u32;

    /// One forward: logits `[1, C, V]` in f32 for the canvas `[1, C]` that follows what the lone row of
    /// `caches` has read, which stays as it is. `guess` are the logits of the forward before, over their
    /// temperature; `None` for a canvas that is noise alone.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text; `Internal` when there are more rows.
    fn canvas_logits(
        &self,
        canvas: &Array,
        guess: Option<&Array>,
        caches: &CacheSet,
    ) -> Result<Array>;
}

/// How canvases are denoised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Denoising {
    /// Places of a canvas.
    pub canvas: CanvasLength,
    /// Forwards per canvas at most; at least 1.
    pub forwards_max: u32,
    /// What logits are divided by.
    pub temperature: TemperatureSlope,
    /// Which places take their token.
    pub acceptance: Acceptance,
    /// When a canvas is finished before its last forward; `None` when only [`Acceptance::Confident`] may.
    pub early_end: Option<EarlyEnd>,
}

/// How many places a canvas has: as many as tokens are still wanted, within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanvasLength {
    /// At least so many, if `most_tokens` lets them.
    pub least_tokens: usize,
    /// At most so many.
    pub most_tokens: usize,
}

/// A temperature that falls in a straight line: `least + (most - least) n / forwards_max`, `n` forwards
/// before the end, the next one included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TemperatureSlope {
    /// Where it would end at `n = 0`.
    pub least: f64,
    /// The first forward's.
    pub most: f64,
}

/// Which places take their token for the next forward. One does always.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Acceptance {
    /// From the lowest entropy on, in nats, as long as those before a place sum to no more than this. What
    /// was accepted may be taken back (Ben-Hamu et al. 2025).
    EntropyBound(f32),
    /// Those whose token is at least so probable, or else the most probable one. They stay; the canvas
    /// is finished when all are.
    Confident(f32),
}

/// A canvas is finished when both hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyEnd {
    /// The most likely tokens are those of so many forwards before.
    pub stable_forwards: usize,
    /// The places' mean entropy is below this, in nats.
    pub mean_entropy_below: f32,
}

impl CanvasLength {
    /// Places of the next canvas of a row that wants `wanted_tokens` more.
    pub fn of(self, wanted_tokens: usize) -> usize {
        wanted_tokens.max(self.least_tokens).min(self.most_tokens)
    }
}

impl Denoising {
    /// What `canvas_length` and `generation_config` of a config ask for, whole canvases as transformers
    /// runs them; what is absent there is as in mlx-vlm 0.7.10.
    ///
    /// # Errors
    /// `BadModel` naming a field that is missing or whose value is not known.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        let canvas_tokens = config.count("canvas_length")?.unsigned_abs() as usize;
        let nothing = ModelConfig::from_fields(serde_json::Map::new());
        let generation = config.section(super::GENERATION)?.unwrap_or(nothing);
        let forwards_max = generation.optional_count("max_denoising_steps")?.unwrap_or(48);
        Ok(Self {
            canvas: CanvasLength { least_tokens: canvas_tokens, most_tokens: canvas_tokens },
            forwards_max: forwards_max.unsigned_abs(),
            temperature: TemperatureSlope::of_config(&generation)?,
            acceptance: Acceptance::of_config(&generation)?,
            early_end: EarlyEnd::of_config(&generation)?,
        })
    }

    /// What the logits of forward `index` (from 0) are divided by.
    pub fn temperature_at(&self, index: u32) -> f32 {
        let TemperatureSlope { least, most } = self.temperature;
        let left = f64::from(self.forwards_max.saturating_sub(index));
        (least + (most - least) * (left / f64::from(self.forwards_max))) as f32
    }
}

impl TemperatureSlope {
    fn of_config(generation: &ModelConfig) -> Result<Self> {
        let slope = generation.section("linear_temperature_schedule_config")?;
        let fields = slope.as_ref().unwrap_or(generation);
        let least = fields.optional_precise_number("t_min")?.unwrap_or(0.4);
        let most = fields.optional_precise_number("t_max")?.unwrap_or(0.8);
        for (name, value) in [("t_min", least), ("t_max", most)] {
            if value <= 0.0 {
                return Err(fields.wrong(name, &value.into()));
            }
        }
        Ok(Self { least, most })
    }
}

impl Acceptance {
    fn of_config(generation: &ModelConfig) -> Result<Self> {
        const BOUND_DEFAULT: f32 = 0.1;
        let Some(sampler) = generation.section("sampler_config")? else {
            return Ok(Self::EntropyBound(BOUND_DEFAULT));
        };
        if let Some(name) = sampler.get("_cls_name").filter(|name| **name != ENTROPY_BOUND) {
            return Err(sampler
                .wrong("_cls_name", name)
                .with_hint(format!("the one sampler that is known is {ENTROPY_BOUND}")));
        }
        let bound = sampler.optional_number("entropy_bound")?.unwrap_or(BOUND_DEFAULT);
        Ok(Self::EntropyBound(bound))
    }
}

const ENTROPY_BOUND: &str = "EntropyBoundSamplerConfig";

impl EarlyEnd {
    fn of_config(generation: &ModelConfig) -> Result<Option<Self>> {
        const STABLE: &str = "stability_threshold";
        const CONFIDENT: &str = "confidence_threshold";
        let section = generation.section("diffusion_stopping_config")?;
        let fields = section.as_ref().unwrap_or(generation);
        if fields.get(STABLE).is_none() && fields.get(CONFIDENT).is_none() {
            return Ok(None);
        }
        let stable = fields.get(STABLE).map(|_| fields.whole(STABLE)).transpose()?.unwrap_or(1);
        Ok(Some(Self {
            stable_forwards: stable.unsigned_abs() as usize,
            mean_entropy_below: fields.optional_number(CONFIDENT)?.unwrap_or(0.005),
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::error::Code;

    fn of(generation: &Value) -> Result<Denoising> {
        let fields = json!({ "canvas_length": 16, "generation_config": generation });
        Denoising::of_config(&ModelConfig::from_fields(fields.as_object().unwrap().clone()))
    }

    #[test]
    fn a_checkpoint_says_how_it_is_denoised_flat_or_in_sections() {
        let flat = json!({
            "max_denoising_steps": 12, "t_min": 0.5, "t_max": 0.7, "stability_threshold": 0,
            "confidence_threshold": 0.25, "sampler_config": { "entropy_bound": 4 },
        });
        let sections = json!({
            "max_denoising_steps": 12,
            "linear_temperature_schedule_config": { "t_min": 0.5, "t_max": 0.7 },
            "diffusion_stopping_config": { "stability_threshold": 0, "confidence_threshold": 0.25 },
            "sampler_config": { "_cls_name": ENTROPY_BOUND, "entropy_bound": 4.0 },
        });
        let expected = Denoising {
            canvas: CanvasLength { least_tokens: 16, most_tokens: 16 },
            forwards_max: 12,
            temperature: TemperatureSlope { least: 0.5, most: 0.7 },
            acceptance: Acceptance::EntropyBound(4.0),
            early_end: Some(EarlyEnd { stable_forwards: 0, mean_entropy_below: 0.25 }),
        };
        assert_eq!(of(&flat).unwrap(), expected);
        assert_eq!(of(&sections).unwrap(), expected);
        let silent = of(&json!(null)).unwrap();
        assert_eq!((silent.forwards_max, silent.early_end), (48, None));
        assert_eq!(silent.acceptance, Acceptance::EntropyBound(0.1));
        let stable = EarlyEnd { stable_forwards: 1, mean_entropy_below: 0.5 };
        let one = of(&json!({ "confidence_threshold": 0.5 })).unwrap();
        assert_eq!(one.early_end, Some(stable));
    }

    #[test]
    fn fields_that_are_not_known_are_refused_by_name() {
        for (generation, named) in [
            (json!({ "sampler_config": { "_cls_name": "OtherConfig" } }), "OtherConfig"),
            (json!({ "max_denoising_steps": 0 }), "max_denoising_steps"),
            (json!({ "t_min": 0 }), "t_min"),
            (json!({ "stability_threshold": -1 }), "stability_threshold"),
            (json!(3), "generation_config"),
        ] {
            let error = of(&generation).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(named), "{generation}: {error}");
        }
    }

    #[test]
    fn the_temperature_falls_from_forward_to_forward() {
        let denoising =
            of(&json!({ "max_denoising_steps": 4, "t_min": 0.5, "t_max": 1.5 })).unwrap();
        let all: Vec<f32> = (0..4).map(|index| denoising.temperature_at(index)).collect();
        assert_eq!(all, [1.5, 1.25, 1.0, 0.75]);
    }

    #[test]
    fn a_canvas_is_as_long_as_what_is_wanted_within_bounds() {
        let canvas = CanvasLength { least_tokens: 4, most_tokens: 10 };
        assert_eq!([1, 4, 7, 10, 99].map(|wanted| canvas.of(wanted)), [4, 4, 7, 10, 10]);
        let narrow = CanvasLength { least_tokens: 64, most_tokens: 16 };
        assert_eq!([1, 99].map(|wanted| narrow.of(wanted)), [16, 16]);
    }
}
