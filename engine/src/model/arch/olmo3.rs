//! OLMo 3: norms on the branches instead of their inputs, a norm over all query and key heads, three
//! sliding layers to a full one. Only the full ones' positions are stretched. mlx-lm 0.32.2,
//! `olmo3.py`.

use crate::cache::Window;
use crate::error::Result;
use crate::mlx::Weights;
use crate::model::nn::{
    AttentionShape, Decoder, DecoderSpec, LayerSpec, NormPlacement, NormSpan, Rope, RopeOptions,
};
use crate::model::{ModelConfig, layer_windows_or};

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
    let layer = |window: Option<Window>| {
        let rope = if window.is_some() { &near } else { &far };
        let head_norms = Some(NormSpan::AllHeads);
        LayerSpec { window, head_norms, ..LayerSpec::full(rope.clone()) }
    };
    let windows = layer_windows_or(config, |index| !(index + 1).is_multiple_of(INTERVAL))?;
    let layers = windows.into_iter().map(layer).collect();
    let spec = DecoderSpec::of_config(config, layers, false)?;
    DecoderSpec { norms: NormPlacement::After, ..spec }.load(config, weights)
}
