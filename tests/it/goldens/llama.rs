//! Llama, in every type and with all that its checkpoints can ask for.

use slipstream_engine::mlx::Dtype;

use super::replay::{Tolerance, check};

#[test]
fn llama_in_bf16_equals_mlx_lm_bit_for_bit_through_joins_and_leaves() {
    check("llama-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn llama_in_f16_equals_mlx_lm_bit_for_bit() {
    check("llama-tiny", ".float16", Dtype::Float16, Tolerance::Bits);
}

/// With the reference BLAS that made the goldens the difference is 0; with OpenBLAS, which sums in
/// another order, the largest one seen was 2.2e-5 on logits of size 5.
#[test]
fn llama_in_f32_equals_mlx_lm_up_to_the_blas() {
    check("llama-tiny", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn llama_with_stretched_rope_biases_and_a_tied_head_equals_mlx_lm_bit_for_bit() {
    check("llama-tiny-rope", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Caches that convert at the end of a prompt chunk, after the first step and in mid-answer, all
/// layers alike and each in its own way.
#[test]
fn llama_over_quantized_kv_caches_equals_mlx_lm_bit_for_bit() {
    check("llama-tiny-wide", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn llama_quantized_per_layer_equals_mlx_lm_bit_for_bit() {
    check("llama-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Embedding, head and layers in every width that MLX packs, in mixtures, and layers left dense.
#[test]
fn llama_in_every_affine_width_equals_mlx_lm_bit_for_bit() {
    for bits in [2, 3, 5, 6, 8] {
        check(&format!("llama-tiny-{bits}bit"), "", Dtype::Bfloat16, Tolerance::Bits);
    }
}

#[test]
fn llama_in_every_floating_point_mode_equals_mlx_lm_bit_for_bit() {
    for mode in ["mxfp4", "mxfp8", "nvfp4"] {
        check(&format!("llama-tiny-{mode}"), "", Dtype::Bfloat16, Tolerance::Bits);
    }
}

#[test]
fn llama_with_sliding_layers_equals_mlx_lm_bit_for_bit_across_the_window() {
    check("llama-tiny-sliding", "", Dtype::Bfloat16, Tolerance::Bits);
}
