//! Sampled rows: their draws are their own.

use std::path::Path;

use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Array, Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::sampling::{Sampler, SamplingParams};
use slipstream_engine::scheduler::{Board, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::serve_all;
use slipstream_tests::random::Random;
use slipstream_tests::script::row;

const TOKENS: usize = 24;

fn scheduler() -> Scheduler<MlxExecutor> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = directory.join("../goldens/linux-x86_64-cpu/llama-tiny");
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
    let loaded = model::load(&directory, options).unwrap();
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
    Scheduler::new(SchedulerConfig::default(), executor, Clock::manual(), Board::new())
}

fn spec(id: usize, random: &mut Random) -> RowSpec {
    let prompt = (0..random.between(1, 40)).map(|_| random.between(0, 255) as u32).collect();
    RowSpec {
        sampling: SamplingParams {
            temperature: [0.0, 0.7, 1.3][id % 3],
            top_p: [1.0, 0.9][id % 2],
            min_p: [0.0, 0.02][id / 2 % 2],
            top_k: [0, 50][id / 3 % 2],
            seed: Some(random.bits()),
        },
        ..row(id.to_string(), prompt, TOKENS)
    }
}

/// Submits each row `gap` ticks after the one before and returns what each said.
fn answers(specs: &[RowSpec], gap: usize) -> Vec<Vec<u32>> {
    let clients = serve_all(&mut scheduler(), specs.iter().cloned(), gap);
    clients.iter().map(|client| client.tokens().to_vec()).collect()
}

#[test]
fn a_seeded_row_says_the_same_alone_and_among_any_others() {
    let mut random = Random::new(11);
    let specs: Vec<RowSpec> = (0..8).map(|id| spec(id, &mut random)).collect();
    let together = answers(&specs, 0);
    let staggered = answers(&specs, 3);
    let alone: Vec<_> =
        specs.iter().flat_map(|spec| answers(std::slice::from_ref(spec), 0)).collect();
    assert_eq!(together, alone);
    assert_eq!(staggered, alone);
    let mut other_seed = specs[1].clone();
    other_seed.sampling.seed = Some(0);
    assert_ne!(answers(&[other_seed], 0)[0], alone[1]);
}

#[test]
fn draws_follow_the_softmax_of_the_logits_over_the_temperature() {
    const DRAWS: usize = 4000;
    Device::cpu();
    let (logits, temperature) = ([0.0f32, 1.0, 2.0, -1.0, 0.5], 0.8f32);
    let weights = logits.map(|logit| f64::from(logit / temperature).exp());
    let total: f64 = weights.iter().sum();
    let params = SamplingParams { temperature, seed: Some(5), ..SamplingParams::default() };
    let mut sampler = Sampler::new(params, 0);
    let logits = Array::from_slice(&logits, &[1, 5]);
    let mut counts = [0usize; 5];
    for _ in 0..DRAWS {
        let drawn = Sampler::sample_rows(&mut [&mut sampler], &logits).unwrap();
        counts[ops::read_u32(&drawn).unwrap()[0] as usize] += 1;
    }
    for (count, weight) in counts.iter().zip(weights) {
        let expected = weight / total;
        // Five standard deviations; the seed is fixed, so the outcome is too.
        let bound = 5.0 * (expected * (1.0 - expected) / DRAWS as f64).sqrt();
        let seen = *count as f64 / DRAWS as f64;
        assert!((seen - expected).abs() < bound, "{seen} of {expected}");
    }
}
