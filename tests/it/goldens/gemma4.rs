//! Gemma 4 in each of its shapes: columns that layers share, inputs of each layer's own, values from keys.

use safetensors::SafeTensors;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, Tower};

use super::replay::{Tolerance, check};

#[test]
fn gemma4_12b_equals_mlx_lm_bit_for_bit_across_its_window() {
    check("gemma4-12b-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// The checkpoint is in Hugging Face's layout, with towers.
#[test]
fn gemma4_e4b_equals_mlx_lm_bit_for_bit_across_its_window() {
    check("gemma4-e4b-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn gemma4_text_with_a_head_of_its_own_and_no_cap_equals_mlx_lm_bit_for_bit() {
    check("gemma4-text-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Its embeddings are packed too.
#[test]
fn gemma4_e4b_of_4_bits_equals_mlx_lm_bit_for_bit() {
    check("gemma4-e4b-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// The checkpoint is in Hugging Face's layout; processors multiply dense experts in f32 only.
#[test]
fn gemma4_26b_in_f32_equals_mlx_lm_up_to_the_blas() {
    check("gemma4-26b-tiny", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn gemma4_26b_of_4_bits_equals_mlx_lm_bit_for_bit() {
    check("gemma4-26b-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn towers_are_declared_and_take_no_memory_nor_do_keys_that_no_layer_uses() {
    let directory = super::directory().join("gemma4-e4b-tiny");
    let bytes = std::fs::read(directory.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let is_idle = |name: &str| {
        let last_layers = ["layers.3.", "layers.4.", "layers.5."];
        let keys = ["k_proj", "k_norm", "v_proj"];
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        !name.starts_with("model.language_model.") || (has(&last_layers) && has(&keys))
    };
    let (idle, used): (Vec<_>, Vec<_>) =
        tensors.tensors().into_iter().partition(|(name, _)| is_idle(name));
    assert_eq!(idle.len(), 4 * 2 + 3 * 3);
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
    let loaded = model::load(&directory, options).unwrap();
    let used_bytes: usize = used.iter().map(|(_, tensor)| tensor.data().len()).sum();
    assert_eq!(loaded.weights_bytes, used_bytes as u64);
    assert_eq!(loaded.family.towers, [Tower::Vision, Tower::Audio]);
}
