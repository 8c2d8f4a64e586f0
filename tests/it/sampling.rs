//! Sampled rows: their draws are their own.

use slipstream_engine::clock::Clock;
use slipstream_engine::config::{Levers, SchedulerConfig};
use slipstream_engine::mlx::{Array, Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::sampling::{Filters, Penalty, Sampler, SamplingParams, TokenLogprobs, Xtc};
use slipstream_engine::scheduler::{Board, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::serve_all;
use slipstream_tests::goldens;
use slipstream_tests::random::Random;
use slipstream_tests::script::row;

const TOKENS: usize = 24;
const VOCABULARY: u32 = 288;

fn scheduler(levers: Levers) -> Scheduler<MlxExecutor> {
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
    let loaded = model::load(&goldens::checkpoint("llama-tiny"), options).unwrap();
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes).with_levers(levers);
    let config = SchedulerConfig { batch_rows_max: 12, levers, ..SchedulerConfig::default() };
    Scheduler::new(config, executor, Clock::manual(), Board::new())
}

/// A row with any parameters; about a third of all are greedy, and each processor is off in half of them.
fn spec(id: usize, random: &mut Random) -> RowSpec {
    let prompt = (0..random.between(1, 40)).map(|_| random.between(0, 255) as u32).collect();
    let xtc = Xtc {
        probability: *random.pick(&[0.0, 0.5, 1.0]),
        threshold: *random.pick(&[0.004, 0.01, 0.7]),
        exempt: [257, 10].into(),
    };
    // Few kinds, so that rows of one kind are drawn together and others lie between them.
    let kind = random.size(0, 2);
    let bias = (0..random.between(0, 3)).map(|index| (index as u32 * 70, 2.5)).collect();
    RowSpec {
        sampling: SamplingParams {
            temperature: [0.0, 0.7, 1.3][id % 3],
            top_p: [1.0, 0.9, 0.8][kind],
            min_p: [0.0, 0.02, 0.0][kind],
            top_k: [0, 50, 100][kind],
            seed: Some(random.bits()),
            xtc,
            logit_bias: bias,
            repetition: penalty(random, 1.0, &[1.4, 0.8]),
            presence: penalty(random, 0.0, &[1.1, -0.4]),
            frequency: penalty(random, 0.0, &[0.6, -0.2]),
            logprobs: *random.pick(&[None, Some(0), Some(3), Some(20)]),
        },
        ..row(id.to_string(), prompt, random.size(1, TOKENS))
    }
}

fn penalty(random: &mut Random, off: f32, amounts: &[f32]) -> Penalty {
    let amount = if random.once_in(2) { off } else { *random.pick(amounts) };
    Penalty { amount, context_tokens: *random.pick(&[0, 1, 2, 7, 20]) }
}

/// What a row says, and what it tells of that.
type Told = (Vec<u32>, Vec<TokenLogprobs>);

/// Submits each row `gap` ticks after the one before and returns what each said.
fn answers(specs: &[RowSpec], gap: usize, levers: Levers) -> Vec<Told> {
    let clients = serve_all(&mut scheduler(levers), specs.iter().cloned(), gap);
    let told = |client: &slipstream_tests::client::Client| {
        (client.tokens().to_vec(), client.logprobs().to_vec())
    };
    clients.iter().map(told).collect()
}

#[test]
fn a_row_says_and_tells_the_same_alone_and_among_any_others_however_they_are_run() {
    for seed in 11..15 {
        let mut random = Random::new(seed);
        let specs: Vec<RowSpec> = (0..12).map(|id| spec(id, &mut random)).collect();
        let plain = Levers::default();
        let alone: Vec<_> =
            specs.iter().flat_map(|spec| answers(std::slice::from_ref(spec), 0, plain)).collect();
        for (spec, (tokens, logprobs)) in specs.iter().zip(&alone) {
            let asked = spec.sampling.logprobs.map(|top| top as usize);
            assert_eq!(logprobs.len(), asked.map_or(0, |_| tokens.len()), "{spec:?}");
            assert!(logprobs.iter().all(|told| Some(told.top.len()) == asked), "{spec:?}");
        }
        let no_pipeline = Levers { no_pipeline: true, ..plain };
        let row_sampling = Levers { row_sampling: true, ..plain };
        for (gap, levers) in
            [(0, plain), (3, plain), (1, no_pipeline), (0, row_sampling), (2, row_sampling)]
        {
            assert_eq!(answers(&specs, gap, levers), alone, "seed {seed}, {gap}, {levers:?}");
        }
    }
}

#[test]
fn another_seed_says_something_else() {
    let mut random = Random::new(11);
    let drawn = SamplingParams { temperature: 1.3, seed: Some(1), ..SamplingParams::default() };
    let spec = RowSpec { sampling: drawn.clone(), ..spec(1, &mut random) };
    let other = SamplingParams { seed: Some(2), ..drawn };
    let other = RowSpec { sampling: other, ..spec.clone() };
    let said = answers(&[spec, other], 0, Levers::default());
    assert_ne!(said[0], said[1]);
}

#[test]
fn numbers_at_the_edge_of_their_ranges_leave_a_row_with_tokens_of_its_vocabulary() {
    let greedy = SamplingParams::default();
    let drawn = SamplingParams { temperature: 1.0, ..greedy.clone() };
    let harsh = |amount| Penalty { amount, context_tokens: 0 };
    let everything: Vec<(u32, f32)> = (0..VOCABULARY).map(|token| (token, -100.0)).collect();
    let xtc = |threshold| Xtc { probability: 1.0, threshold, ..Xtc::default() };
    let edges = [
        SamplingParams { top_k: VOCABULARY, ..drawn.clone() },
        SamplingParams { top_k: VOCABULARY - 1, min_p: 1.0, top_p: 0.0, ..drawn.clone() },
        SamplingParams { top_k: u32::MAX, top_p: f32::MIN_POSITIVE, ..drawn.clone() },
        SamplingParams { xtc: xtc(1.0), ..drawn.clone() },
        SamplingParams { xtc: xtc(0.0), top_k: 1, ..drawn.clone() },
        SamplingParams { repetition: harsh(f32::MIN_POSITIVE), ..drawn.clone() },
        SamplingParams { repetition: harsh(f32::MAX), ..drawn.clone() },
        SamplingParams { frequency: harsh(f32::MAX), presence: harsh(-2.0), ..greedy.clone() },
        SamplingParams { logit_bias: everything.into(), ..drawn.clone() },
        // Ids that have no logit change nothing, neither here nor in the next row.
        SamplingParams { logit_bias: [(VOCABULARY, 100.0), (u32::MAX, 100.0)].into(), ..greedy },
    ];
    let specs = edges.into_iter().enumerate().map(|(id, sampling)| {
        let sampling = SamplingParams { logprobs: Some(20), ..sampling };
        RowSpec { sampling, ..row(id.to_string(), vec![1, 2, 3, 1], TOKENS) }
    });
    let specs: Vec<RowSpec> = specs.collect();
    for (spec, (tokens, logprobs)) in specs.iter().zip(answers(&specs, 0, Levers::default())) {
        assert_eq!((tokens.len(), logprobs.len()), (TOKENS, TOKENS), "{spec:?}");
        assert!(tokens.iter().all(|token| *token < VOCABULARY), "{spec:?}: {tokens:?}");
    }
}

#[test]
fn a_draw_from_one_token_is_that_token_however_hot() {
    let mut random = Random::new(3);
    let greedy = RowSpec { sampling: SamplingParams::default(), ..spec(1, &mut random) };
    let hot = SamplingParams { temperature: 2.0, top_k: 1, seed: Some(4), ..Default::default() };
    let hot = RowSpec { sampling: hot, ..greedy.clone() };
    let said = answers(&[greedy, hot], 0, Levers::default());
    assert_eq!(said[0], said[1]);
}

#[test]
fn what_is_drawn_and_kept_for_a_row_has_the_same_bits_beside_other_rows() {
    // A width that no vector unit divides.
    const WIDTH: i32 = 37;
    Device::cpu();
    let keys = [(1, 0), (1, 1), (2, 0), (u64::MAX, 7)];
    let read = |array: &Array| ops::read_f32(array).unwrap();
    let alone: Vec<f32> =
        keys.iter().flat_map(|key| read(&ops::gumbel(&[*key], WIDTH).unwrap())).collect();
    let together = ops::gumbel(&keys, WIDTH).unwrap();
    assert_eq!(read(&together), alone);
    let mut distinct = alone.clone();
    distinct.sort_unstable_by(f32::total_cmp);
    distinct.dedup();
    assert!(distinct.len() > 4 * 30, "the rows repeat each other");

    let params = SamplingParams {
        top_p: 0.9,
        min_p: 0.01,
        top_k: 20,
        xtc: Xtc { probability: 1.0, threshold: 0.05, exempt: [3].into() },
        ..SamplingParams::default()
    };
    let filters = Filters::new(&params, 0.5);
    let kept = read(&filters.keep(&together).unwrap());
    for (row, kept) in kept.chunks(WIDTH as usize).enumerate() {
        let row = row as i32;
        let alone = ops::slice_axis(&together, 0, row, row + 1).unwrap();
        assert_eq!(read(&filters.keep(&alone).unwrap()), kept, "row {row}");
    }
}

#[test]
fn draws_follow_the_softmax_of_the_logits_over_the_temperature() {
    const DRAWS: usize = 4000;
    Device::cpu();
    let (logits, temperature) = ([0.0f32, 1.0, 2.0, -1.0, 0.5], 0.8f32);
    let weights = logits.map(|logit| f64::from(logit / temperature).exp());
    let total: f64 = weights.iter().sum();
    let params = SamplingParams { temperature, seed: Some(5), ..SamplingParams::default() };
    let mut sampler = Sampler::new(params, &[], 0);
    let logits = Array::from_slice(&logits, &[1, 5]);
    let mut counts = [0usize; 5];
    for _ in 0..DRAWS {
        let drawn = Sampler::sample_rows(&mut [&mut sampler], &logits, None).unwrap();
        counts[drawn.read(&mut [&mut sampler]).unwrap()[0].token as usize] += 1;
    }
    for (count, weight) in counts.iter().zip(weights) {
        let expected = weight / total;
        // Five standard deviations; the seed is fixed, so the outcome is too.
        let bound = 5.0 * (expected * (1.0 - expected) / DRAWS as f64).sqrt();
        let seen = *count as f64 / DRAWS as f64;
        assert!((seen - expected).abs() < bound, "{seen} of {expected}");
    }
}
