//! The filters before the draw, the processors before them, and log-probabilities, against mlx-lm's.

use safetensors::SafeTensors;
use serde::Deserialize;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Array, Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::sampling::{Filters, Penalty, SamplingParams, TokenLogprobs, Xtc};
use slipstream_engine::scheduler::{Board, Lane, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::{Client, serve_all};
use slipstream_tests::script;

/// As many as the goldens hold of each step, and as a request may ask for.
const TOP: u32 = 20;

#[derive(Deserialize)]
struct Golden {
    vocab: usize,
    cases: Vec<Case>,
    answers: Vec<Answer>,
}

#[derive(Debug, Deserialize)]
struct Case {
    vector: usize,
    top_p: f32,
    min_p: f32,
    top_k: u32,
    #[serde(default)]
    xtc_probability: f32,
    #[serde(default)]
    xtc_threshold: f32,
    #[serde(default)]
    xtc_special_tokens: Vec<u32>,
}

/// What the checkpoint says to a prompt with these processors.
#[derive(Debug, Deserialize)]
struct Answer {
    name: String,
    prompt: Vec<u32>,
    logit_bias: Vec<(u32, f32)>,
    #[serde(default = "off_factor")]
    repetition_penalty: f32,
    #[serde(default)]
    repetition_context_size: usize,
    #[serde(default)]
    presence_penalty: f32,
    #[serde(default)]
    presence_context_size: usize,
    #[serde(default)]
    frequency_penalty: f32,
    #[serde(default)]
    frequency_context_size: usize,
    tokens: Vec<u32>,
}

fn off_factor() -> f32 {
    1.0
}

fn golden() -> Golden {
    super::read_json(&super::directory().join("sampling.json"))
}

fn stored() -> Vec<u8> {
    std::fs::read(super::directory().join("sampling.safetensors")).unwrap()
}

#[test]
fn top_p_min_p_xtc_and_top_k_keep_what_mlx_lm_keeps() {
    Device::cpu();
    let (golden, stored) = (golden(), stored());
    let stored = SafeTensors::deserialize(&stored).unwrap();
    let inputs = rows(&stored, "logprobs", golden.vocab);
    let expected = rows(&stored, "filtered", golden.vocab);
    assert_eq!(golden.cases.len(), expected.len());
    for (case, expected) in golden.cases.iter().zip(&expected) {
        let input = &inputs[case.vector];
        let input = Array::from_slice(input, &[1, ops::axis_index(golden.vocab)]);
        let params = SamplingParams {
            temperature: 1.0,
            top_p: case.top_p,
            min_p: case.min_p,
            top_k: case.top_k,
            xtc: Xtc {
                probability: case.xtc_probability,
                threshold: case.xtc_threshold,
                exempt: case.xtc_special_tokens.clone().into(),
            },
            ..SamplingParams::default()
        };
        let kept = ops::read_f32(&Filters::new(&params, 0.99).keep(&input).unwrap()).unwrap();
        assert_eq!(&kept, expected, "{case:?}");
    }
}

#[test]
fn processed_answers_and_their_log_probabilities_are_mlx_lms_in_either_lane() {
    for lane in [Lane::Serial, Lane::Continuous] {
        let specs = golden().answers.iter().map(|answer| answer.spec(lane)).collect::<Vec<_>>();
        for (spec, answer) in specs.into_iter().zip(golden().answers) {
            let clients = serve_all(&mut scheduler(1), [spec], 0);
            answer.check(&clients[0]);
        }
    }
}

#[test]
fn rows_with_different_processors_share_a_batch_and_each_says_what_mlx_lm_says_alone() {
    let answers = golden().answers;
    let specs = || answers.iter().map(|answer| answer.spec(Lane::Continuous));
    for (rows_max, gap_ticks) in [(answers.len(), 0), (answers.len(), 3), (4, 1)] {
        let clients = serve_all(&mut scheduler(rows_max), specs(), gap_ticks);
        answers.iter().zip(&clients).for_each(|(answer, client)| answer.check(client));
    }
}

impl Answer {
    fn spec(&self, lane: Lane) -> RowSpec {
        let penalty = |amount, context_tokens| Penalty { amount, context_tokens };
        let sampling = SamplingParams {
            logit_bias: self.logit_bias.clone().into(),
            repetition: penalty(self.repetition_penalty, self.repetition_context_size),
            presence: penalty(self.presence_penalty, self.presence_context_size),
            frequency: penalty(self.frequency_penalty, self.frequency_context_size),
            logprobs: Some(TOP),
            ..SamplingParams::default()
        };
        let row = script::row(self.name.clone(), self.prompt.clone(), self.tokens.len());
        RowSpec { lane, sampling, ..row }
    }

    fn check(&self, client: &Client) {
        let stored = stored();
        let stored = SafeTensors::deserialize(&stored).unwrap();
        let name = &self.name;
        assert_eq!(client.tokens(), self.tokens, "{name}");
        let chosen = rows(&stored, &format!("{name}.chosen"), 1);
        let ids = rows_of(&stored, &format!("{name}.top_ids"), TOP as usize, u32::from_le_bytes);
        let values = rows(&stored, &format!("{name}.top_logprobs"), TOP as usize);
        assert_eq!(client.logprobs().len(), self.tokens.len(), "{name}");
        for (step, told) in client.logprobs().iter().enumerate() {
            assert_eq!(told.chosen, chosen[step][0], "{name}: token {step}");
            let expected: Vec<(u32, f32)> =
                ids[step].iter().copied().zip(values[step].iter().copied()).collect();
            check_top(told, &expected, &format!("{name}: token {step}"));
        }
    }
}

/// Which of several that are equally likely is the last one is up to the device.
fn check_top(told: &TokenLogprobs, expected: &[(u32, f32)], place: &str) {
    let last = expected.last().unwrap().1;
    let above = expected.iter().take_while(|(_, value)| *value > last).count();
    assert_eq!(told.top[..above], expected[..above], "{place}");
    let values = |top: &[(u32, f32)]| top.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    assert_eq!(values(&told.top), values(expected), "{place}");
}

fn scheduler(batch_rows_max: usize) -> Scheduler<MlxExecutor> {
    let options = LoadOptions { dtype: Some(Dtype::Bfloat16), back_end: Device::cpu().back_end() };
    let loaded = model::load(&super::directory().join("llama-tiny"), options).unwrap();
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
    let config =
        SchedulerConfig { batch_rows_max, prefill_chunk_tokens: 64, ..SchedulerConfig::default() };
    Scheduler::new(config, executor, Clock::manual(), Board::new())
}

fn rows(stored: &SafeTensors<'_>, name: &str, width: usize) -> Vec<Vec<f32>> {
    rows_of(stored, name, width, f32::from_le_bytes)
}

fn rows_of<T: Copy>(
    stored: &SafeTensors<'_>,
    name: &str,
    width: usize,
    value: fn([u8; 4]) -> T,
) -> Vec<Vec<T>> {
    let data = stored.tensor(name).unwrap().data();
    let values: Vec<T> = data.as_chunks::<4>().0.iter().map(|word| value(*word)).collect();
    values.chunks(width).map(<[T]>::to_vec).collect()
}
