//! Rows that share a batch do not see each other.

use std::cell::RefCell;
use std::rc::Rc;

use slipstream_engine::clock::Clock;
use slipstream_engine::mlx::{Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::scheduler::{Executor, MlxExecutor};
use slipstream_tests::goldens;
use slipstream_tests::random::Random;
use slipstream_tests::script;

const STEPS: usize = 3;

/// The row that is watched, by its id.
const WATCHED: &str = "watched";

/// Logits of the watched row, one vector per forward that it took part in.
type Seen = Rc<RefCell<Vec<Vec<f32>>>>;

fn executor(checkpoint: &str) -> (MlxExecutor, Seen) {
    let back_end = Device::cpu().back_end();
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end };
    let loaded = model::load(&goldens::checkpoint(checkpoint), options).unwrap();
    let mut executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
    let seen = Seen::default();
    let filed = Rc::clone(&seen);
    executor.observe_logits(Box::new(move |rows, logits| {
        if let Some(row) = rows.iter().position(|row| *row == WATCHED) {
            let row = ops::axis_index(row);
            let own = ops::slice_axis(logits, 0, row, row + 1).unwrap();
            filed.borrow_mut().push(ops::read_f32(&own).unwrap());
        }
    }));
    (executor, seen)
}

/// Runs the prompts as one batch; `watched` is the place of the watched one.
fn run(executor: &mut MlxExecutor, prompts: &[Vec<u32>], watched: usize) {
    for (index, prompt) in prompts.iter().enumerate() {
        let id = if index == watched { WATCHED.to_owned() } else { index.to_string() };
        let (last, rest) = prompt.split_last().unwrap();
        let mut solo = executor.open(&script::row(id, prompt.clone(), STEPS + 2), None).unwrap();
        if !rest.is_empty() {
            executor.prefill(&mut solo, rest).unwrap();
        }
        executor.first_token(&mut solo, &[*last]).unwrap();
        executor.join(solo).unwrap();
    }
    for _ in 0..STEPS {
        executor.step(&Clock::manual()).unwrap();
    }
    executor.reset();
}

fn prompt(random: &mut Random, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|_| random.between(0, 255) as u32).collect()
}

/// The watched row among two sets of neighbours with the same lengths: not one bit may differ.
fn check(checkpoint: &str, rounds: usize) {
    let (mut executor, seen) = executor(checkpoint);
    let mut random = Random::new(3);
    for round in 0..rounds {
        let lengths: Vec<usize> = (0..random.size(2, 4)).map(|_| random.size(1, 20)).collect();
        let watched = random.size(0, lengths.len() - 1);
        let mut prompts: Vec<_> = lengths.iter().map(|count| prompt(&mut random, *count)).collect();
        run(&mut executor, &prompts, watched);
        let among_these = seen.take();
        for index in (0..prompts.len()).filter(|index| *index != watched) {
            prompts[index] = prompt(&mut random, lengths[index]);
        }
        run(&mut executor, &prompts, watched);
        assert_eq!(among_these.len(), STEPS + 1);
        assert_eq!(among_these, seen.take(), "round {round}: {lengths:?}, row {watched}");
    }
}

#[test]
fn a_rows_logits_do_not_depend_on_its_neighbours_tokens() {
    check("llama-tiny", 1000);
}

#[test]
fn a_rows_logits_do_not_depend_on_its_neighbours_tokens_in_sliding_windows() {
    check("llama-tiny-sliding", 1000);
}

#[test]
fn a_rows_logits_do_not_depend_on_its_neighbours_tokens_in_other_families() {
    for checkpoint in [
        "gemma-tiny",
        "gemma2-tiny",
        "gemma3-tiny",
        "gemma4-12b-tiny",
        "gemma4-e4b-tiny",
        "gemma4-26b-tiny-4bit",
    ] {
        check(checkpoint, 100);
    }
}

#[test]
fn a_rows_logits_do_not_depend_on_its_neighbours_tokens_in_recurrent_states() {
    check("qwen3_5-tiny", 100);
    check("qwen3_5_moe-tiny-4bit", 25);
}

#[test]
fn a_rows_logits_do_not_depend_on_its_neighbours_tokens_in_other_dense_families() {
    for checkpoint in [
        "mistral-tiny",
        "llama-tiny-dynamic",
        "ministral3-tiny",
        "qwen2-tiny",
        "qwen3-tiny",
        "smollm3-tiny",
        "phi3-tiny",
        "granite-tiny",
        "minicpm-tiny",
        "olmo3-tiny",
        "glm4-tiny",
        "minicpm3-tiny",
    ] {
        check(checkpoint, 25);
    }
}

#[test]
fn a_rows_logits_do_not_depend_on_its_neighbours_tokens_in_mixtures_of_experts() {
    for checkpoint in ["qwen3_moe-tiny-4bit", "gpt_oss-tiny-mxfp4"] {
        check(checkpoint, 50);
    }
}

/// Prompts lie on both sides of the columns that GLM-5's indexers choose.
#[test]
fn a_rows_logits_do_not_depend_on_its_neighbours_tokens_in_latent_attention() {
    for checkpoint in ["glm4_moe_lite-tiny-4bit", "glm_moe_dsa-tiny-4bit", "glm_moe_dsa-tiny-dense"]
    {
        check(checkpoint, 50);
    }
}
