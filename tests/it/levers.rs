//! What is switched off for a measurement changes how rows run, not what they say.

use slipstream_engine::clock::Clock;
use slipstream_engine::config::{Levers, SchedulerConfig};
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::sampling::SamplingParams;
use slipstream_engine::scheduler::{Board, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::serve_all;
use slipstream_tests::goldens;
use slipstream_tests::script::row;

fn scheduler(levers: Levers) -> Scheduler<MlxExecutor> {
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
    let loaded = model::load(&goldens::checkpoint("llama-tiny"), options).unwrap();
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes).with_levers(levers);
    let config = SchedulerConfig { prefill_chunk_tokens: 8, levers, ..SchedulerConfig::default() };
    Scheduler::new(config, executor, Clock::manual(), Board::new())
}

/// Rows of different lengths that join one after the other; odd ones sample when `sampled`.
fn specs(sampled: bool) -> Vec<RowSpec> {
    (0..5u32)
        .map(|index| {
            let draws = sampled && index % 2 == 1;
            let sampling = SamplingParams {
                temperature: if draws { 0.9 } else { 0.0 },
                seed: draws.then_some(u64::from(index)),
                ..SamplingParams::default()
            };
            let prompt = (0..3 + 5 * index).map(|token| token * 7 + index).collect();
            RowSpec { sampling, ..row(index.to_string(), prompt, 12) }
        })
        .collect()
}

fn answers(levers: Levers, sampled: bool) -> Vec<Vec<u32>> {
    let clients = serve_all(&mut scheduler(levers), specs(sampled), 1);
    clients.iter().map(|client| client.tokens().to_vec()).collect()
}

#[test]
fn rows_say_the_same_without_the_pipeline_sampled_one_by_one_and_merged_anew() {
    for sampled in [false, true] {
        let expected = answers(Levers::default(), sampled);
        assert!(expected.iter().all(|tokens| tokens.len() == 12), "{expected:?}");
        let no_pipeline = Levers { no_pipeline: true, ..Levers::default() };
        assert_eq!(answers(no_pipeline, sampled), expected);
        let row_sampling = Levers { row_sampling: true, ..Levers::default() };
        assert_eq!(answers(row_sampling, sampled), expected);
        let remerge = Levers { remerge: true, ..Levers::default() };
        assert_eq!(answers(remerge, sampled), expected);
    }
}

#[test]
fn without_the_tail_split_token_0_comes_from_the_end_of_the_last_chunk() {
    // In half types on a processor the numbers do not depend on the shape of a prefill.
    let no_tail_split = Levers { no_tail_split: true, ..Levers::default() };
    assert_eq!(answers(no_tail_split, false), answers(Levers::default(), false));
}
