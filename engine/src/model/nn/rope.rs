//! Rotary position embeddings (Su et al. 2021) and their stretched variants, with the arithmetic of
//! mlx-lm 0.32.2's `rope_utils.py`: what is computed in f64 there is so here, and tables are made by
//! MLX's own operations.
//!
//! Words: the **base** is theta; a **table** holds `base^(2i/d)`, stretched; the **magnitude** scales
//! what is turned.

mod dynamic;
mod tables;

use serde_json::Value;

use self::dynamic::Dynamic;
use self::tables::{Llama3, LongRope, Proportional, Yarn};
use crate::cache::Offset;
use crate::error::{Code, Error, Result};
use crate::mlx::Array;
use crate::mlx::ops::{self, RopeFrequencies, RopeSpec};
use crate::model::ModelConfig;
use crate::model::reach::positive;

pub(crate) use crate::model::reach::kind;

/// The base of most configs that name none.
pub const BASE_DEFAULT: f64 = 10_000.0;
/// More dimensions than any head has.
const DIMENSIONS_MAX: i32 = 1 << 14;

/// What a rotary embedding is made from.
#[derive(Debug, Clone)]
pub struct RopeOptions {
    /// Leading dimensions of a head that turn.
    pub dimensions: i32,
    /// Theta.
    pub base: f64,
    /// Pairs are neighbours instead of halves.
    pub traditional: bool,
    /// The config's description of the stretch.
    pub scaling: Option<ModelConfig>,
    /// `max_position_embeddings`.
    pub context_tokens: i32,
}

/// A rotary embedding, ready to turn queries and keys.
#[derive(Debug, Clone)]
pub struct Rope {
    turn: Turn,
    /// 1 where nothing is scaled.
    magnitude: f32,
}

#[derive(Debug, Clone)]
enum Turn {
    None,
    Fixed(RopeSpec),
    Dynamic(Dynamic),
}

impl RopeOptions {
    /// What `config` says for heads of `dimensions`: `rope_theta`, `rope_traditional` and
    /// `rope_scaling`, or the `rope_parameters` that newer configs gather them in. Without
    /// `default_base` the base must be there.
    ///
    /// # Errors
    /// `BadModel` when a field is missing or of another kind.
    pub fn of_config(
        config: &ModelConfig,
        dimensions: i32,
        default_base: Option<f64>,
    ) -> Result<Self> {
        let gathered = gathered(config)?;
        let base = match (config.optional_precise_number("rope_theta")?, &gathered) {
            (Some(base), _) => Some(base),
            (None, Some(gathered)) => Some(gathered.precise_number("rope_theta")?),
            (None, None) => default_base,
        };
        Ok(Self {
            dimensions,
            base: base.ok_or_else(|| config.missing("rope_theta"))?,
            traditional: config.flag("rope_traditional", false)?,
            scaling: config.section("rope_scaling")?.or(gathered),
            context_tokens: config.count("max_position_embeddings")?,
        })
    }

    fn plain(&self, scale: f64) -> RopeSpec {
        let frequencies = RopeFrequencies::Base(self.base as f32);
        let Self { dimensions, traditional, .. } = *self;
        RopeSpec { dimensions, traditional, scale: scale as f32, frequencies }
    }

    fn with_table(&self, table: Array) -> RopeSpec {
        RopeSpec { frequencies: RopeFrequencies::Table(table), ..self.plain(1.0) }
    }
}

/// `rope_parameters`, where they are the same for all layers.
fn gathered(config: &ModelConfig) -> Result<Option<ModelConfig>> {
    let Some(section) = config.section("rope_parameters")? else { return Ok(None) };
    match config.get("rope_parameters").and_then(Value::as_object) {
        Some(fields) if fields.values().any(Value::is_object) => {
            let message = "`rope_parameters` per layer type are not supported";
            Err(Error::new(Code::BadModel, message))
        }
        _ => Ok(Some(section)),
    }
}

impl Rope {
    /// The embedding that `config` describes, with Llama's base where it names none.
    ///
    /// # Errors
    /// As [`RopeOptions::of_config`] and [`Rope::new`].
    pub fn of_config(config: &ModelConfig, dimensions: i32) -> Result<Self> {
        Self::new(&RopeOptions::of_config(config, dimensions, Some(BASE_DEFAULT))?)
    }

    /// The same with another `rope_theta`.
    ///
    /// # Errors
    /// As [`Rope::of_config`].
    pub fn with_base(config: &ModelConfig, base: f32, dimensions: i32) -> Result<Self> {
        let options = RopeOptions::of_config(config, dimensions, Some(BASE_DEFAULT))?;
        Self::new(&RopeOptions { base: f64::from(base), ..options })
    }

    /// The two halves of a head turned with the frequencies of `base`, nothing stretched.
    pub fn plain(base: f32, dimensions: i32) -> Self {
        let frequencies = RopeFrequencies::Base(base);
        Self::fixed(RopeSpec { dimensions, traditional: false, scale: 1.0, frequencies })
    }

    /// No positions: nothing turns (Kazemnejad et al. 2023).
    pub fn none() -> Self {
        Self { turn: Turn::None, magnitude: 1.0 }
    }

    /// The embedding that `options` describe.
    ///
    /// # Errors
    /// `BadModel` for a kind that this engine does not run, or with a field missing.
    pub fn new(options: &RopeOptions) -> Result<Self> {
        let RopeOptions { dimensions, base, .. } = *options;
        check_pairs(dimensions)?;
        let Some(scaling) = &options.scaling else {
            return Ok(Self::fixed(options.plain(1.0)));
        };
        match kind(scaling)? {
            // What tells text, height and width apart in images is the same for all three in text.
            "default" | "mrope" => Ok(Self::fixed(options.plain(1.0))),
            "linear" => Ok(Self::fixed(options.plain(1.0 / positive(scaling, "factor")?))),
            "dynamic" => {
                let turn = Turn::Dynamic(Dynamic::of_config(scaling, options)?);
                Ok(Self { turn, magnitude: 1.0 })
            }
            "llama3" => {
                let table = Llama3::of_config(scaling)?.table(base, dimensions)?;
                Ok(Self::fixed(options.with_table(table)))
            }
            "yarn" | "deepseek_yarn" => {
                let yarn = Yarn::of_config(scaling)?;
                let turn = Turn::Fixed(options.with_table(yarn.table(base, dimensions)?));
                Ok(Self { turn, magnitude: yarn.magnitude() as f32 })
            }
            "proportional" => {
                let table =
                    Proportional::of_config(scaling, dimensions)?.table(base, dimensions)?;
                Ok(Self::fixed(options.with_table(table)))
            }
            "longrope" => {
                Self::long(options, scaling, positive(scaling, "original_max_position_embeddings")?)
            }
            other => {
                Err(Error::new(Code::BadModel, format!("rope type `{other}` is not supported"))
                    .with_hint(format!("supported: {}", KINDS.join(", "))))
            }
        }
    }

    /// LongRoPE's stretch by `scaling` of a model that first saw `trained_tokens` tokens at once.
    ///
    /// # Errors
    /// `BadModel` when a field is missing or does not fit.
    pub fn long(options: &RopeOptions, scaling: &ModelConfig, trained_tokens: f64) -> Result<Self> {
        check_pairs(options.dimensions)?;
        let long = LongRope::of_config(scaling, options.dimensions)?;
        let spec = options.with_table(long.table(options.base, options.dimensions)?);
        let stretch = f64::from(options.context_tokens) / trained_tokens;
        let magnitude = tables::long_magnitude(stretch, trained_tokens) as f32;
        // The oracle's class has no other pairing.
        Ok(Self { turn: Turn::Fixed(RopeSpec { traditional: false, ..spec }), magnitude })
    }

    fn fixed(spec: RopeSpec) -> Self {
        Self { turn: Turn::Fixed(spec), magnitude: 1.0 }
    }

    /// Turns `x` `[B, H, L, D]`, whose first token stands at `offset`.
    ///
    /// # Errors
    /// `EngineFailed` with MLX's text.
    pub fn forward(&self, x: &Array, offset: &Offset) -> Result<Array> {
        match &self.turn {
            Turn::None => Ok(ops::share(x)),
            Turn::Fixed(spec) if self.magnitude == 1.0 => turn(x, spec, offset),
            Turn::Fixed(spec) => turn(&magnify(x, spec.dimensions, self.magnitude)?, spec, offset),
            Turn::Dynamic(dynamic) => dynamic.turn(x, offset),
        }
    }
}

/// Holds that `dimensions` are pairs, and not more than any head has.
fn check_pairs(dimensions: i32) -> Result<()> {
    if (2..=DIMENSIONS_MAX).contains(&dimensions) && dimensions % 2 == 0 {
        return Ok(());
    }
    let message = format!("a rotary embedding cannot turn {dimensions} dimensions in pairs");
    Err(Error::new(Code::BadModel, message))
}

/// The kinds of stretch that [`Rope::new`] knows.
const KINDS: [&str; 9] = [
    "default",
    "linear",
    "dynamic",
    "llama3",
    "yarn",
    "deepseek_yarn",
    "longrope",
    "proportional",
    "mrope",
];

fn turn(x: &Array, spec: &RopeSpec, offset: &Offset) -> Result<Array> {
    match offset {
        Offset::Shared(offset) => ops::rope(x, spec, *offset),
        Offset::PerRow { array, .. } => ops::rope_per_row(x, spec, array),
    }
}

/// Scales the leading `dimensions` of each head.
fn magnify(x: &Array, dimensions: i32, magnitude: f32) -> Result<Array> {
    let (axis, width) = (x.ndim() - 1, x.dim(-1));
    if dimensions == width {
        return ops::scale(x, magnitude);
    }
    let turned = ops::scale(&ops::slice_axis(x, axis, 0, dimensions)?, magnitude)?;
    let rest = ops::slice_axis(x, axis, dimensions, width)?;
    ops::concatenate_axis(&[turned, rest], axis)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(fields: &Value) -> Result<Rope> {
        let config = ModelConfig::from_fields(fields.as_object().unwrap().clone());
        Rope::new(&RopeOptions::of_config(&config, 8, None)?)
    }

    #[test]
    fn ropes_that_do_not_fit_are_refused_by_name() {
        let cases = [
            (json!({ "type": "su" }), "su"),
            (json!({ "rope_type": "yarn2" }), "yarn2"),
            (json!({ "rope_type": 3 }), "rope_type"),
            (json!({ "type": "linear" }), "factor"),
            (json!({ "type": "linear", "factor": 0 }), "factor"),
            (json!({ "type": "dynamic" }), "factor"),
            (json!({ "type": "llama3", "factor": "8" }), "factor"),
            (json!({ "type": "yarn" }), "factor"),
            (json!({ "type": "longrope" }), "original_max_position_embeddings"),
            (json!({ "type": "longrope", "original_max_position_embeddings": 8 }), "long_factor"),
            (
                json!({ "type": "longrope", "original_max_position_embeddings": 8,
                        "long_factor": [1.0, 2.0] }),
                "long_factor",
            ),
            (
                json!({ "type": "proportional", "partial_rotary_factor": 1.5 }),
                "partial_rotary_factor",
            ),
            (
                json!({ "type": "proportional", "partial_rotary_factor": 0.4 }),
                "partial_rotary_factor",
            ),
            (json!({ "type": "proportional", "factor": -1 }), "factor"),
        ];
        for (scaling, named) in cases {
            let error = of(&json!({
                "rope_theta": 10000.0, "max_position_embeddings": 64, "rope_scaling": scaling
            }));
            let error = error.unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(named), "{scaling}: {error}");
        }
    }

    #[test]
    fn a_base_that_is_nowhere_is_missed_and_gathered_parameters_are_read() {
        let missing = of(&json!({ "max_position_embeddings": 64 })).unwrap_err();
        assert!(missing.message().contains("rope_theta"), "{missing}");
        let gathered = json!({ "rope_theta": 500.0, "rope_type": "linear", "factor": 4.0 });
        let rope = of(&json!({ "max_position_embeddings": 64, "rope_parameters": gathered }));
        let Turn::Fixed(spec) = rope.unwrap().turn else { panic!("linear ropes are fixed") };
        assert!(matches!(spec.frequencies, RopeFrequencies::Base(500.0)), "{spec:?}");
        assert_eq!(spec.scale, 0.25);
        let nested = json!({ "full_attention": gathered, "sliding_attention": gathered });
        let error = of(&json!({ "max_position_embeddings": 64, "rope_parameters": nested }));
        assert!(error.unwrap_err().message().contains("rope_parameters"));
    }
}
