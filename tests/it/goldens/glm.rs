//! GLM with latent attention beside its oracles: mlx-lm where it can, else transformers and mlx-vlm.

mod layouts;
mod rows;
mod shared;
mod variant;

use slipstream_engine::mlx::Dtype;

use super::replay::{Tolerance, check};

/// Dense experts run in f32 only on a processor. OpenBLAS sums in another order than the reference BLAS
/// that made the golden; the largest difference seen was 3.4e-5, on logits up to 6. With that BLAS lone
/// rows equal mlx-lm's bit for bit.
const BLAS: Tolerance = Tolerance::Absolute(1e-4);

#[test]
fn glm_4_7_flash_equals_mlx_lm_up_to_the_blas() {
    check("glm4_moe_lite-tiny", ".float32", Dtype::Float32, BLAS);
}

/// Without compressed queries, with biases, and with YaRN's larger scale.
#[test]
fn latent_attention_without_experts_equals_mlx_lm_bit_for_bit() {
    check("glm4_moe_lite-tiny-dense", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn glm_4_7_flash_in_4_bits_equals_mlx_lm_bit_for_bit() {
    check("glm4_moe_lite-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// From a checkpoint as it is published, whose prediction layer mlx-lm leaves out. Prompts and answers
/// go past the columns that an indexer chooses, alone and beside rows that stay below them.
#[test]
fn glm_5_equals_mlx_lm_up_to_the_blas_past_the_columns_that_it_chooses() {
    check("glm_moe_dsa-tiny", ".float32", Dtype::Float32, BLAS);
}

#[test]
fn attention_to_chosen_columns_without_experts_equals_mlx_lm_bit_for_bit() {
    check("glm_moe_dsa-tiny-dense", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Layer 1 has both matrices of its latents in one, packed.
#[test]
fn glm_5_in_4_bits_equals_mlx_lm_bit_for_bit() {
    check("glm_moe_dsa-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}
