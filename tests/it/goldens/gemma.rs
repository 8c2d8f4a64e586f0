//! Gemma 1, 2 and 3, small ones with random weights and a real one.

use std::path::PathBuf;

use serde::Deserialize;
use slipstream_engine::mlx::Dtype;
use slipstream_engine::tokenizer::Tokenizer;
use slipstream_tests::demo;

use super::real::{Answered, check_together};
use super::replay::{Tolerance, check};

#[test]
fn gemma_equals_mlx_lm_bit_for_bit() {
    check("gemma-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

/// Its query heads share key heads, where mlx-lm's batches are wrong: rows that share a batch must
/// equal mlx-lm's run of each alone.
#[test]
fn gemma2_in_any_batch_equals_mlx_lm_alone_bit_for_bit() {
    check("gemma2-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn gemma3_equals_mlx_lm_bit_for_bit_across_its_window() {
    check("gemma3-tiny", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[test]
fn gemma3_in_f16_equals_mlx_lm_bit_for_bit() {
    check("gemma3-tiny", ".float16", Dtype::Float16, Tolerance::Bits);
}

#[test]
fn gemma3_in_f32_equals_mlx_lm_up_to_the_blas() {
    check("gemma3-tiny", ".float32", Dtype::Float32, Tolerance::Absolute(1e-4));
}

#[test]
fn gemma3_with_a_head_of_its_own_and_layer_types_equals_mlx_lm_bit_for_bit() {
    check("gemma3-tiny-untied", "", Dtype::Bfloat16, Tolerance::Bits);
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    answer: String,
    #[serde(flatten)]
    answered: Answered,
}

/// The cases and the real model.
fn real() -> (PathBuf, Vec<Case>) {
    let golden: Golden = super::read_json(&super::directory().join("gemma-3-270m/cases.json"));
    assert!(!golden.cases.is_empty());
    (demo::gemma_directory(), golden.cases)
}

#[test]
fn gemma_3_270m_reads_and_writes_text_as_its_own_tokenizer_does() {
    let (directory, cases) = real();
    let tokenizer = Tokenizer::load(&directory).unwrap();
    for case in cases {
        assert_eq!(tokenizer.encode(&case.text, true).unwrap(), case.answered.prompt);
        assert_eq!(tokenizer.decode(&case.answered.tokens).unwrap(), case.answer);
        assert_eq!(*tokenizer.stop_tokens(), case.answered.stop_tokens);
    }
}

/// All prompts share one batch: short ones, one that fills the window of 512 while it is answered, and
/// one that is longer than it.
#[test]
fn gemma_3_270m_continues_all_texts_together_as_mlx_lm_continues_each_alone() {
    let (directory, cases) = real();
    check_together(&directory, &cases.iter().map(|case| &case.answered).collect::<Vec<_>>());
}
