//! GLM with latent attention: GLM-4.7-Flash, and GLM-5 past the columns that its indexers choose.

use slipstream_engine::mlx::Dtype;

use super::replay::{Tolerance, check};

#[test]
fn latent_attention_equals_mlx_lm_bit_for_bit() {
    check("glm4-moe-lite-tiny-dense", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn attention_to_chosen_columns_equals_mlx_lm_bit_for_bit() {
    check("glm-moe-dsa-tiny-dense", "", Dtype::Bfloat16, Tolerance::Bits);
}
