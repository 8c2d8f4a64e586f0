//! Qwen3.5: recurrent layers beside layers of attention.

use slipstream_engine::mlx::Dtype;

use super::replay::{Tolerance, check};

#[test]
fn qwen3_5_equals_mlx_lm_bit_for_bit_through_joins_and_leaves() {
    check("qwen3_5-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn qwen3_5_in_f16_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5-tiny", ".float16", Dtype::Float16, Tolerance::Bits);
}

#[test]
fn qwen3_5_in_f32_equals_mlx_lm_up_to_the_blas() {
    check("qwen3_5-tiny", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn qwen3_5_in_the_layout_of_its_makers_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5-tiny-hub", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn qwen3_5_quantized_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Experts that are not quantized run in f32 only on a processor.
#[test]
fn qwen3_5_moe_in_the_layout_of_its_makers_equals_mlx_lm_up_to_the_blas() {
    check("qwen3_5_moe-tiny-hub", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn qwen3_5_moe_quantized_equals_mlx_lm_bit_for_bit() {
    check("qwen3_5_moe-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}
