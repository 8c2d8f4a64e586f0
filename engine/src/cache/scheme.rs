//! KV schemes: in which form each layer stores its columns, and from when on. Plain data.
//!
//! Words: a **packing** is MLX's affine form, some bits a value and a scale and a bias per group of
//! values along the head dimension; a layer **converts** when its plain columns become packed ones,
//! after a forward and before the next, and from then on packs what it is given.
//!
//! Invariants: a scheme is served as it was asked for or refused, never replaced by another; a scheme
//! under which the rows of one batch could be stored in different forms is serial.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::profile::TokenShape;
use crate::error::{Code, Error, Result};

/// Bits a value that MLX packs and we serve.
const BITS: [i32; 5] = [2, 3, 4, 6, 8];

/// Values per scale and bias that MLX knows.
const GROUP_SIZES: [i32; 3] = [32, 64, 128];

/// Values per scale and bias when nothing is said (mlx-lm 0.32.2, `generate_step`).
pub const GROUP_SIZE_DEFAULT: i32 = 64;

/// How affine columns are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Values per scale and bias.
    pub group_size: i32,
    /// Bits per value.
    pub bits: i32,
}

impl Packing {
    /// A packing that MLX has.
    ///
    /// # Errors
    /// `InvalidRequest` naming the number that it has not.
    pub fn new(bits: i64, group_size: i64) -> Result<Self> {
        Ok(Self {
            bits: one_of("bits", bits, &BITS)?,
            group_size: one_of("group_size", group_size, &GROUP_SIZES)?,
        })
    }

    /// Bytes of `values` values, whose scales and biases take `scale_bytes` each.
    fn bytes(self, values: u64, scale_bytes: u64) -> u64 {
        let (bits, group) = (u64::from(self.bits.unsigned_abs()), self.group_values());
        values * bits / 8 + values / group * 2 * scale_bytes
    }

    /// The first dimension of a token that does not divide into groups, if one does not.
    fn misfit(self, token: &TokenShape) -> Option<u64> {
        let dimensions = [token.key_dimension, token.value_dimension];
        dimensions.into_iter().find(|dimension| dimension % self.group_values() != 0)
    }

    fn group_values(self) -> u64 {
        u64::from(self.group_size.unsigned_abs())
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-bit-g{}", self.bits, self.group_size)
    }
}

fn one_of(name: &str, value: i64, allowed: &[i32]) -> Result<i32> {
    let found = allowed.iter().copied().find(|number| i64::from(*number) == value);
    found.ok_or_else(|| {
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        let message = format!("{name} {value} is not supported");
        Error::invalid(name, message).with_hint(format!("supported: {}", allowed.join(", ")))
    })
}

/// In which form each layer stores its columns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum KvScheme {
    /// As the model computes them.
    #[default]
    Plain,
    /// Packed alike in every layer.
    Uniform {
        /// How.
        packing: Packing,
        /// A cache converts after the first forward that leaves it with this many tokens or more.
        start_tokens: usize,
    },
    /// Packed layer by layer from the first forward on; `None` leaves a layer plain.
    PerLayer(Vec<Option<Packing>>),
}

impl KvScheme {
    /// The packing of layer `index`, whose cache holds `tokens` tokens after a forward.
    pub fn packing_at(&self, index: usize, tokens: usize) -> Option<Packing> {
        match self {
            Self::Plain => None,
            Self::Uniform { packing, start_tokens } => {
                (tokens >= *start_tokens).then_some(*packing)
            }
            Self::PerLayer(layers) => layers.get(index).copied().flatten(),
        }
    }

    /// Why rows of this scheme cannot share a batch, when they cannot.
    pub fn serial_reason(&self) -> Option<String> {
        match self {
            Self::Plain | Self::PerLayer(_) | Self::Uniform { start_tokens: 0, .. } => None,
            Self::Uniform { start_tokens, .. } => Some(format!(
                "KV caches convert at token {start_tokens}, so rows would meet in different forms"
            )),
        }
    }

    /// A name that tells any two schemes apart: `off`, `4-bit-g64`, `8-bit-g32-from-512`,
    /// `config(0:8-bit-g64,1-5:4-bit-g64,6:off)`.
    pub fn name(&self) -> String {
        match self {
            Self::Plain => "off".to_owned(),
            Self::Uniform { packing, start_tokens: 0 } => packing.to_string(),
            Self::Uniform { packing, start_tokens } => format!("{packing}-from-{start_tokens}"),
            Self::PerLayer(layers) => {
                let runs: Vec<_> = runs(layers).map(|(run, form)| run_name(&run, form)).collect();
                format!("config({})", runs.join(","))
            }
        }
    }

    /// Holds the scheme against what the layers of a model keep of a token; `None` is a layer without
    /// keys and values.
    ///
    /// # Errors
    /// `InvalidRequest` when a layer that it names has no keys and values or does not exist, when a
    /// group does not divide a head, or when there is nothing to pack.
    pub fn check(&self, layers: &[Option<TokenShape>]) -> Result<()> {
        match self {
            Self::Plain => Ok(()),
            Self::Uniform { packing, .. } => check_uniform(*packing, layers),
            Self::PerLayer(packings) => {
                let named = packings.iter().enumerate();
                let mut named = named.filter_map(|(index, packing)| Some((index, (*packing)?)));
                named.try_for_each(|(index, packing)| check_layer(index, packing, layers))
            }
        }
    }

    /// Bytes of one token's keys and values in layer `index`, whose numbers take `value_bytes` each when
    /// they are not packed. A scheme that converts late is billed as plain: its rows are that until
    /// then, and never more.
    pub fn token_bytes(&self, index: usize, token: &TokenShape, value_bytes: u64) -> u64 {
        match self.packing_at(index, 0) {
            Some(packing) => packing.bytes(token.values(), value_bytes),
            None => token.values() * value_bytes,
        }
    }
}

/// Layers without keys and values, such as recurrent states, stay as they are.
fn check_uniform(packing: Packing, layers: &[Option<TokenShape>]) -> Result<()> {
    let mut packed = layers.iter().enumerate().filter(|(_, layer)| layer.is_some());
    if packed.clone().next().is_none() {
        return Err(misfit("no layer of this model has keys and values to quantize".to_owned()));
    }
    packed.try_for_each(|(index, _)| check_layer(index, packing, layers))
}

/// Whether layer `index` of `layers` can be packed so.
pub(super) fn check_layer(
    index: usize,
    packing: Packing,
    layers: &[Option<TokenShape>],
) -> Result<()> {
    let Some(layer) = layers.get(index) else {
        let count = layers.len();
        return Err(misfit(format!("there is no layer {index}: the model has {count} layers")));
    };
    let Some(token) = layer else {
        return Err(misfit(format!("layer {index} has no keys and values to quantize")));
    };
    let Some(dimension) = packing.misfit(token) else {
        return Ok(());
    };
    let group_size = packing.group_size;
    let message =
        format!("layer {index} has heads of {dimension} values: groups of {group_size} do not fit");
    Err(misfit(message))
}

fn misfit(message: String) -> Error {
    Error::new(Code::InvalidRequest, message)
}

/// Neighbouring layers of the same form, as one.
fn runs(
    layers: &[Option<Packing>],
) -> impl Iterator<Item = (RangeInclusive<usize>, Option<Packing>)> {
    let mut next = 0;
    layers.chunk_by(|left, right| left == right).map(move |run| {
        let first = next;
        next += run.len();
        (first..=next - 1, run[0])
    })
}

fn run_name(run: &RangeInclusive<usize>, form: Option<Packing>) -> String {
    let form = form.map_or_else(|| "off".to_owned(), |packing| packing.to_string());
    match (run.start(), run.end()) {
        (first, last) if first == last => format!("{first}:{form}"),
        (first, last) => format!("{first}-{last}:{form}"),
    }
}

/// What `--kv-quant` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvQuant {
    /// Nothing is packed.
    #[default]
    Off,
    /// Every layer, with these bits a value.
    Bits(i32),
    /// As the model directory's `kv_config.json` says.
    Config,
}

impl FromStr for KvQuant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "4" => Ok(Self::Bits(4)),
            "8" => Ok(Self::Bits(8)),
            "config" => Ok(Self::Config),
            other => {
                let message = format!("`{other}` is none of off, 4, 8 and config");
                Err(Error::invalid("kv_quant", message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads_of(dimension: u64) -> Option<TokenShape> {
        Some(TokenShape { heads: 2, key_dimension: dimension, value_dimension: dimension })
    }

    fn uniform(bits: i64, group_size: i64, start_tokens: usize) -> KvScheme {
        KvScheme::Uniform { packing: Packing::new(bits, group_size).unwrap(), start_tokens }
    }

    #[test]
    fn a_uniform_scheme_packs_from_its_start_on_and_a_layered_one_at_once() {
        let scheme = uniform(4, 64, 6);
        let KvScheme::Uniform { packing, .. } = scheme else { panic!("not uniform") };
        for (tokens, expected) in [(0, None), (5, None), (6, Some(packing)), (700, Some(packing))] {
            assert_eq!(scheme.packing_at(3, tokens), expected, "{tokens} tokens");
        }
        let scheme = KvScheme::PerLayer(vec![None, Some(packing)]);
        assert_eq!(
            (0..3).map(|layer| scheme.packing_at(layer, 1)).collect::<Vec<_>>(),
            [None, Some(packing), None,]
        );
        assert_eq!(KvScheme::Plain.packing_at(0, 700), None);
    }

    #[test]
    fn only_a_scheme_that_starts_late_is_serial_and_it_says_why() {
        let layered = KvScheme::PerLayer(vec![None, Some(Packing { group_size: 64, bits: 4 })]);
        for batchable in [KvScheme::Plain, uniform(8, 32, 0), layered] {
            assert_eq!(batchable.serial_reason(), None, "{batchable:?}");
        }
        assert!(uniform(4, 64, 512).serial_reason().unwrap().contains("512"));
    }

    #[test]
    fn names_tell_schemes_apart() {
        let (four, eight) = (Packing::new(4, 64).unwrap(), Packing::new(8, 32).unwrap());
        let layered = KvScheme::PerLayer(vec![Some(eight), Some(four), Some(four), None]);
        for (scheme, name) in [
            (KvScheme::Plain, "off"),
            (uniform(4, 64, 0), "4-bit-g64"),
            (uniform(8, 32, 512), "8-bit-g32-from-512"),
            (layered, "config(0:8-bit-g32,1-2:4-bit-g64,3:off)"),
        ] {
            assert_eq!(scheme.name(), name);
        }
    }

    #[test]
    fn a_token_costs_its_bits_and_two_scales_per_group() {
        // 2 heads of 64 keys and 64 values: 256 values a token.
        let token = heads_of(64).unwrap();
        for (scheme, token_bytes) in [
            (KvScheme::Plain, 256 * 2),
            (uniform(4, 64, 0), 256 / 2 + 4 * 2 * 2),
            (uniform(8, 32, 0), 256 + 8 * 2 * 2),
            (uniform(4, 64, 9), 256 * 2),
        ] {
            assert_eq!(scheme.token_bytes(0, &token, 2), token_bytes, "{scheme:?}");
        }
        let token = TokenShape { heads: 1, key_dimension: 128, value_dimension: 64 };
        let layered = KvScheme::PerLayer(vec![None, Some(Packing::new(4, 64).unwrap())]);
        let bytes = [0, 1, 2].map(|layer| layered.token_bytes(layer, &token, 4));
        assert_eq!(bytes, [192 * 4, 96 + 3 * 2 * 4, 192 * 4]);
    }

    #[track_caller]
    fn check_refused(scheme: &KvScheme, layers: &[Option<TokenShape>], words: &[&str]) {
        let error = scheme.check(layers).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "`{word}` is not in `{error}`");
        }
    }

    #[test]
    fn what_a_model_cannot_be_packed_as_is_refused_with_the_layer_and_the_value() {
        let state = None;
        let four = Some(Packing { group_size: 64, bits: 4 });
        assert_eq!(uniform(4, 32, 0).check(&[heads_of(96), state]), Ok(()));
        check_refused(&uniform(4, 64, 0), &[heads_of(64), heads_of(96)], &["layer 1", "96", "64"]);
        check_refused(&uniform(4, 64, 0), &[state], &["no layer"]);
        check_refused(&KvScheme::PerLayer(vec![four]), &[state], &["layer 0", "no keys"]);
        check_refused(
            &KvScheme::PerLayer(vec![None, four]),
            &[heads_of(64)],
            &["layer 1", "has 1"],
        );
        assert_eq!(KvScheme::PerLayer(vec![None]).check(&[state]), Ok(()));
    }

    #[test]
    fn numbers_that_mlx_does_not_pack_are_refused_with_those_that_it_does() {
        let error = Packing::new(5, 64).unwrap_err().to_string();
        assert!(error.contains("bits 5") && error.contains("2, 3, 4, 6, 8"), "{error}");
        let error = Packing::new(4, 48).unwrap_err().to_string();
        assert!(error.contains("group_size 48") && error.contains("32, 64, 128"), "{error}");
        assert!(Packing::new(i64::MAX, 64).is_err());
    }

    #[test]
    fn kv_quant_is_one_of_four_words() {
        let parsed = ["off", "4", "8", "config"].map(|text| text.parse::<KvQuant>().unwrap());
        assert_eq!(parsed, [KvQuant::Off, KvQuant::Bits(4), KvQuant::Bits(8), KvQuant::Config]);
        for text in ["", "5", "on", "4 ", "Config"] {
            assert!(text.parse::<KvQuant>().unwrap_err().to_string().contains(text));
        }
    }
}
