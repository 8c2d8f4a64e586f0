//! What a model will be, told from its config alone: layers and what their caches keep, sizes, packing.
//!
//! It is what the library lists and what memory is reckoned from before anything is loaded or even
//! downloaded, so it knows no arrays, and every number in it is bounded: a config is outside input. That it says
//! what the loaded model says is held for every checkpoint of the goldens (`tests/it/outline.rs`).

mod families;
pub(crate) mod gemma4;
mod packing;
mod sizes;
#[cfg(test)]
mod tests;
mod weights;

pub use families::{InFlight, ONE_CANVAS};
pub use packing::WeightPacking;
pub use weights::{FloatType, Weighed, WeightTally};

use self::families::FamilyOutline;
use super::{ModelConfig, reach};
use crate::cache::{KvProfile, KvScheme, LayerBytes, TokenShape};
use crate::error::{Code, Error, Result};
use crate::limits::{MODEL_LAYERS_MAX, MODEL_TOKEN_BYTES_MAX};

/// What the cache of a layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerOutline {
    /// Keys and values of every token.
    Full(TokenShape),
    /// Those of the last tokens.
    Sliding {
        /// What it keeps of each.
        token: TokenShape,
        /// How many it sees.
        window_tokens: u64,
    },
    /// A state of constant size.
    Recurrent {
        /// Numbers that a token becomes inside the layer.
        channels: u64,
        /// Numbers in the type that the model computes in.
        tail_values: u64,
        /// Numbers in f32.
        memory_values: u64,
    },
    /// What the family makes of every token, never packed.
    Latent {
        /// Numbers per token.
        values: u64,
    },
    /// Nothing: it attends to another layer's columns.
    Shared,
}

/// What a config says of its model.
#[derive(Debug, Clone)]
pub struct Outline {
    /// In the order of the model.
    pub layers: Vec<LayerOutline>,
    /// Tokens that it was trained to see at once.
    pub context_tokens: usize,
    /// Size of its logits.
    pub vocabulary: u64,
    /// Numbers of a hidden state.
    pub hidden: u64,
    /// Query heads of a layer.
    pub query_heads: u64,
    /// Numbers that a feed-forward block makes of a token inside, all experts that it goes through together.
    pub feed_forward: u64,
    /// How many of so many experts a token goes through, where there are any.
    pub experts: Option<(u64, u64)>,
    /// How most of its matrices are packed, if they are.
    pub packing: Option<WeightPacking>,
    /// Tokens of a canvas, where it writes blocks.
    pub canvas_tokens: Option<usize>,
    family: &'static FamilyOutline,
    config: ModelConfig,
}

impl Outline {
    /// What `config`, a whole `config.json`, says.
    ///
    /// # Errors
    /// `BadModel` naming the `model_type` that is not known, or the field that is missing, out of bounds or does
    /// not fit.
    pub fn of_config(config: &ModelConfig) -> Result<Self> {
        let family = families::of_type(config.model_type()?)?;
        let config = config.clone().text_part()?;
        layer_count(&config)?;
        let outline = Self {
            layers: (family.layers)(&config)?,
            context_tokens: reach::context_tokens(&config)?.unsigned_abs() as usize,
            vocabulary: sizes::size(&config, "vocab_size")?,
            hidden: sizes::size(&config, "hidden_size")?,
            query_heads: sizes::size(&config, "num_attention_heads")?,
            feed_forward: sizes::feed_forward(&config)?,
            experts: sizes::experts(&config)?,
            packing: WeightPacking::of_config(&config)?,
            canvas_tokens: families::canvas_tokens(family, &config)?,
            family,
            config,
        };
        outline.check_token_bytes()?;
        Ok(outline)
    }

    /// The `model_type` of every family, in the registry's order.
    pub fn model_types() -> impl Iterator<Item = &'static str> {
        families::FAMILIES.iter().map(|family| family.model_type)
    }

    /// The family's `model_type`.
    pub fn model_type(&self) -> &'static str {
        self.family.model_type
    }

    /// Why rows of the family cannot share a batch; `None` when they can.
    pub fn serial_reason(&self) -> Option<&'static str> {
        self.family.serial_reason
    }

    /// Whether the family is proven to make vectors of texts.
    pub fn embeds(&self) -> bool {
        self.family.embeds
    }

    /// How many arrays of a kind a prompt's chunk has at once.
    pub fn in_flight(&self) -> InFlight {
        self.family.in_flight
    }

    /// Numbers of all query heads of one token, of the widest layer.
    pub fn query_width(&self) -> u64 {
        let widths = self.token_shapes().into_iter().flatten().map(|token| token.key_dimension);
        // Of latents only the hidden size is known to be about it.
        widths.max().map_or(self.hidden, |width| width.saturating_mul(self.query_heads))
    }

    /// In which ways its caches keep tokens, in one word each and in the order in which they first appear.
    pub fn cache_kinds(&self) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        for kind in self.layers.iter().filter_map(LayerOutline::kind) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// What the cache of each layer keeps of one token, where that is keys and values.
    pub fn token_shapes(&self) -> Vec<Option<TokenShape>> {
        self.layers.iter().map(LayerOutline::token_shape).collect()
    }

    /// What a row's caches cost under `scheme`, when a number that the model computes takes `value_bytes`.
    pub fn kv_profile(&self, scheme: &KvScheme, value_bytes: u64) -> KvProfile {
        let layers = self.layers.iter().enumerate();
        let layers = layers.filter_map(|(index, layer)| layer.bytes(index, scheme, value_bytes));
        let profile = KvProfile { layers: layers.collect() };
        match self.canvas_tokens {
            None => profile,
            Some(tokens) => profile.with_spare_tokens(tokens),
        }
    }

    /// Whether the model uses the tensor `name` of its checkpoint.
    pub fn uses(&self, name: &str) -> bool {
        weights::is_used(self, name)
    }

    fn check_token_bytes(&self) -> Result<()> {
        let profile = self.kv_profile(&KvScheme::Plain, size_of::<f32>() as u64);
        let bytes = profile.layers.iter().map(|layer| match *layer {
            LayerBytes::Full { token_bytes } | LayerBytes::Rotating { token_bytes, .. } => {
                token_bytes
            }
            LayerBytes::Fixed { bytes } => bytes / MODEL_TOKEN_BYTES_MAX,
        });
        let bytes = bytes.fold(0, u64::saturating_add);
        if bytes <= MODEL_TOKEN_BYTES_MAX {
            return Ok(());
        }
        let message = format!("a token would take {bytes} bytes in the caches of its layers");
        Err(Error::new(Code::BadModel, message)
            .with_hint("the config's heads, widths or number of layers cannot be right"))
    }
}

impl LayerOutline {
    /// In which way its cache keeps tokens; `None` where it has none.
    pub fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Full(_) => Some("full"),
            Self::Sliding { .. } => Some("sliding"),
            Self::Recurrent { .. } => Some("recurrent"),
            Self::Latent { .. } => Some("latent"),
            Self::Shared => None,
        }
    }

    fn token_shape(&self) -> Option<TokenShape> {
        match self {
            Self::Full(token) | Self::Sliding { token, .. } => Some(*token),
            Self::Recurrent { .. } | Self::Latent { .. } | Self::Shared => None,
        }
    }

    fn bytes(&self, index: usize, scheme: &KvScheme, value_bytes: u64) -> Option<LayerBytes> {
        Some(match *self {
            Self::Full(token) => {
                LayerBytes::Full { token_bytes: scheme.token_bytes(index, &token, value_bytes) }
            }
            Self::Sliding { token, window_tokens } => LayerBytes::Rotating {
                token_bytes: scheme.token_bytes(index, &token, value_bytes),
                window_tokens,
            },
            Self::Recurrent { tail_values, memory_values, .. } => LayerBytes::Fixed {
                bytes: tail_values * value_bytes + memory_values * size_of::<f32>() as u64,
            },
            Self::Latent { values } => LayerBytes::Full { token_bytes: values * value_bytes },
            Self::Shared => return None,
        })
    }
}

/// How many layers there are.
///
/// # Errors
/// `BadModel` when the config does not say, or says more than [`MODEL_LAYERS_MAX`].
fn layer_count(config: &ModelConfig) -> Result<usize> {
    const NAME: &str = "num_hidden_layers";
    let layers = config.count(NAME)?.unsigned_abs() as usize;
    if layers <= MODEL_LAYERS_MAX {
        return Ok(layers);
    }
    let hint = format!("at most {MODEL_LAYERS_MAX} make sense");
    Err(config.wrong(NAME, &layers.into()).with_hint(hint))
}
