//! Gemma 4 in each of its shapes: columns that layers share, inputs of each layer's own, values from keys.

use slipstream_engine::mlx::Dtype;

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
