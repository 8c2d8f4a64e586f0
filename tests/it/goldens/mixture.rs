//! Families with mixtures of experts beside mlx-lm. Dense experts run in f32 there, because MLX's
//! processor back end multiplies no others; packed ones in bf16, bit for bit.

use serde_json::json;
use slipstream_engine::mlx::Dtype;

use super::dense::check_refused;
use super::replay::{Tolerance, check};

/// The checkpoint holds its experts one by one, and one layer has none. OpenBLAS sums in another order
/// than the reference BLAS that made the golden.
#[test]
fn qwen3_moe_equals_mlx_lm_up_to_the_blas() {
    check("qwen3_moe-tiny", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn qwen3_moe_in_4_bits_equals_mlx_lm_bit_for_bit() {
    check("qwen3_moe-tiny-4bit", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Sinks, windows in turn with full layers, yarn, biases everywhere, clipped SwiGLU.
#[test]
fn gpt_oss_equals_mlx_lm_up_to_the_blas() {
    check("gpt_oss-tiny", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

/// Experts in blocks of mxfp4, as OpenAI publishes them, alone and batched across the window.
#[test]
fn gpt_oss_in_blocks_of_mxfp4_equals_mlx_lm_bit_for_bit_across_the_window() {
    check("gpt_oss-tiny-mxfp4", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Experts in mxfp4, all else affine in 8 bits, the embedding too.
#[test]
fn gpt_oss_in_mxfp4_and_8_bits_equals_mlx_lm_bit_for_bit() {
    check("gpt_oss-tiny-mxfp4-q8", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn mixtures_that_do_not_fit_are_refused_by_name() {
    let (qwen, gpt) = ("qwen3_moe-tiny-4bit", "gpt_oss-tiny-mxfp4");
    let cases = [
        (qwen, json!({ "num_experts": null }), "num_experts"),
        (qwen, json!({ "num_experts_per_tok": null }), "num_experts_per_tok"),
        (qwen, json!({ "moe_intermediate_size": null }), "moe_intermediate_size"),
        (qwen, json!({ "decoder_sparse_step": null }), "decoder_sparse_step"),
        (qwen, json!({ "mlp_only_layers": null }), "mlp_only_layers"),
        (qwen, json!({ "norm_topk_prob": null }), "norm_topk_prob"),
        (qwen, json!({ "tie_word_embeddings": null }), "tie_word_embeddings"),
        (qwen, json!({ "num_experts": 4 }), "mlp.gate"),
        (qwen, json!({ "num_experts_per_tok": 9 }), "9 of 8 experts"),
        (qwen, json!({ "moe_intermediate_size": 64 }), "switch_mlp.gate_proj"),
        (qwen, json!({ "mlp_only_layers": [0] }), "model.layers.0.mlp"),
        (qwen, json!({ "rope_scaling": { "type": "yarn", "factor": 2.0 } }), "yarn"),
        ("qwen3_moe-tiny", json!({ "num_experts": 9 }), "mlp.gate"),
        (gpt, json!({ "num_local_experts": null }), "num_local_experts"),
        (gpt, json!({ "num_local_experts": 9 }), "mlp.router"),
        (gpt, json!({ "head_dim": null }), "head_dim"),
        (gpt, json!({ "sliding_window": null }), "sliding_window"),
        (gpt, json!({ "intermediate_size": 32 }), "experts.gate_proj.weight"),
        (gpt, json!({ "quantization_config": null }), "experts.gate_proj"),
        (gpt, json!({ "quantization_config": { "quant_method": "awq", "bits": 4 } }), "awq"),
    ];
    for (checkpoint, fields, named) in cases {
        check_refused(checkpoint, &fields, named);
    }
}
