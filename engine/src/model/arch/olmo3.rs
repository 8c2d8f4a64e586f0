//! OLMo 3: norms on the branches instead of their inputs, a norm over all query and key heads, three
//! sliding layers to a full one. Only the full ones' positions are stretched. mlx-lm 0.32.2,
//! `olmo3.py`.

use super::layers;
use crate::cache::Window;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::ModelConfig;
use crate::model::nn::{
    AttentionOptions, AttentionShape, Decoder, DecoderSpec, HeadNorms, LayerSpec, NormPlacement,
    Rope, RopeOptions,
};

/// Every so many layers one sees everything, where the config does not say.
const INTERVAL: usize = 4;

/// Builds the model from its tensors.
///
/// # Errors
/// `BadModel` when a field or tensor is missing or does not fit.
pub fn load(config: &ModelConfig, weights: &mut Weights) -> Result<Decoder> {
    let shape = AttentionShape::of_config(config)?;
    let options = RopeOptions::of_config(config, shape.head_dimension, None)?;
    let stretched = RopeOptions { traditional: false, ..options };
    let near = Rope::new(&RopeOptions { scaling: None, ..stretched.clone() })?;
    let far = Rope::new(&stretched)?;
    let head_norms = HeadNorms::AllHeads { epsilon: config.number("rms_norm_eps")? };
    let layer = |window: Option<Window>| {
        let rope = if window.is_some() { near.clone() } else { far.clone() };
        let plain = AttentionOptions::plain(shape, Some(rope));
        LayerSpec { window, attention: AttentionOptions { head_norms, ..plain } }
    };
    let windows = layers::windows(config, |index| !(index + 1).is_multiple_of(INTERVAL))?;
    let spec = DecoderSpec::of_config(config, windows.into_iter().map(layer).collect(), false)?;
    Decoder::load(config, weights, &DecoderSpec { norms: NormPlacement::After, ..spec })
}
