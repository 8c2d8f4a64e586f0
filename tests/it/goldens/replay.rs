//! Plays a golden's cases: rows that start, join and leave as in the oracle's run: every token id and every logit.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use half::{bf16, f16};
use safetensors::{Dtype as StoredDtype, SafeTensors};
use serde::Deserialize;
use serde_json::Value;
use slipstream_engine::cache::{KvScheme, Packing, TokenShape, read_kv_config};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::scheduler::{Board, FinishReason, Lane, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::Client;
use slipstream_tests::logits::{self, Logits};
use slipstream_tests::script;

#[derive(Deserialize)]
pub(super) struct Golden {
    pub(super) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    lane: String,
    prefill_chunk_tokens: usize,
    /// `bits`, `group_size` and `start_tokens` of all layers, or what kv_config.json would say.
    #[serde(default)]
    kv: Value,
    pub(super) rows: Vec<GoldenRow>,
}

#[derive(Deserialize)]
pub(super) struct GoldenRow {
    pub(super) prompt: Vec<u32>,
    max_tokens: usize,
    stop_tokens: Vec<u32>,
    start: Option<Start>,
    pub(super) tokens: Vec<u32>,
    finish: String,
}

/// The row arrives once row `after_row` was heard to say `after_tokens` tokens.
#[derive(Deserialize)]
struct Start {
    after_row: usize,
    after_tokens: usize,
}

/// How near a logit must be.
#[derive(Clone, Copy)]
pub(super) enum Tolerance {
    /// The same bits: half types do not depend on the BLAS in use.
    Bits,
    /// f32 sums depend on the BLAS and the processor.
    Absolute(f32),
}

pub(super) fn check(checkpoint: &str, suffix: &str, dtype: Dtype, tolerance: Tolerance) {
    let directory = super::directory().join(checkpoint);
    let golden: Golden = super::read_json(&directory.join(format!("cases{suffix}.json")));
    let expected = std::fs::read(directory.join(format!("logits{suffix}.safetensors"))).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    assert!(!golden.cases.is_empty());
    for case in &golden.cases {
        let logits = replay(case, &directory, dtype);
        for (index, row) in case.rows.iter().enumerate() {
            let wanted = stored(&expected, &format!("{}.{index}", case.name));
            assert_eq!(wanted.len(), row.tokens.len(), "{}: row {index}", case.name);
            for (step, (got, wanted)) in logits[&index.to_string()].iter().zip(&wanted).enumerate()
            {
                compare(
                    got,
                    wanted,
                    tolerance,
                    &format!("{}: row {index}, token {step}", case.name),
                );
            }
        }
    }
}

/// Runs the case through the scheduler that serves, and checks its tokens and ends.
pub(super) fn replay(case: &Case, directory: &Path, dtype: Dtype) -> Logits {
    let (mut scheduler, seen) = scheduler(case, directory, dtype);
    let mut clients: Vec<Option<Client>> = case.rows.iter().map(|_| None).collect();
    while clients.iter().any(|client| client.as_ref().is_none_or(|client| client.end().is_none())) {
        for (index, row) in case.rows.iter().enumerate() {
            if clients[index].is_none() && has_started(row.start.as_ref(), &clients) {
                let (client, events) = Client::new(row.max_tokens);
                scheduler.submit(spec(index, row, &case.lane), events);
                clients[index] = Some(client);
            }
        }
        scheduler.tick();
        clients.iter_mut().flatten().for_each(Client::listen);
    }
    for (index, (row, client)) in case.rows.iter().zip(&clients).enumerate() {
        check_end(&format!("{}: row {index}", case.name), row, client.as_ref().unwrap());
    }
    seen.take()
}

fn scheduler(
    case: &Case,
    directory: &Path,
    dtype: Dtype,
) -> (Scheduler<MlxExecutor>, Rc<RefCell<Logits>>) {
    let back_end = Device::cpu().back_end();
    let loaded = model::load(directory, LoadOptions { dtype: Some(dtype), back_end }).unwrap();
    let scheme = kv_scheme(&case.kv, &loaded.model.token_shapes());
    let mut executor = MlxExecutor::new(loaded.model, loaded.weights_bytes).with_kv_scheme(scheme);
    let seen = logits::file(&mut executor);
    let config = SchedulerConfig {
        prefill_chunk_tokens: case.prefill_chunk_tokens,
        ..SchedulerConfig::default()
    };
    (Scheduler::new(config, executor, Clock::manual(), Board::new()), seen)
}

fn kv_scheme(kv: &Value, layers: &[Option<TokenShape>]) -> KvScheme {
    match kv {
        Value::Null => KvScheme::Plain,
        Value::Array(_) => {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("kv_config.json"), kv.to_string()).unwrap();
            read_kv_config(directory.path(), layers).unwrap()
        }
        kv => {
            let number = |name: &str| kv[name].as_i64().unwrap();
            let packing = Packing::new(number("bits"), number("group_size")).unwrap();
            KvScheme::Uniform { packing, start_tokens: number("start_tokens") as usize }
        }
    }
}

fn has_started(start: Option<&Start>, clients: &[Option<Client>]) -> bool {
    start.is_none_or(|start| {
        let awaited = clients[start.after_row].as_ref();
        awaited.is_some_and(|client| client.tokens().len() >= start.after_tokens)
    })
}

fn spec(index: usize, row: &GoldenRow, lane: &str) -> RowSpec {
    RowSpec {
        lane: if lane == "serial" { Lane::Serial } else { Lane::Continuous },
        stop_tokens: row.stop_tokens.clone().into(),
        ..script::row(index.to_string(), row.prompt.clone(), row.max_tokens)
    }
}

fn check_end(place: &str, row: &GoldenRow, client: &Client) {
    let (reason, usage) = client.finish().unwrap_or_else(|| panic!("{place}: no clean end"));
    // A stop token ends its row unheard; the oracle lists it.
    let heard = match row.finish.as_str() {
        "stop" => &row.tokens[..row.tokens.len() - 1],
        _ => &row.tokens[..],
    };
    assert_eq!(client.tokens(), heard, "{place}");
    assert_eq!(usage.generated_tokens, row.tokens.len(), "{place}");
    let stopped = reason == FinishReason::Stop;
    assert_eq!(stopped, row.finish == "stop", "{place}");
}

pub(super) fn stored(tensors: &SafeTensors<'_>, name: &str) -> Vec<Vec<f32>> {
    let view = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let data = view.data();
    let values: Vec<f32> = match view.dtype() {
        StoredDtype::BF16 => halves(data).map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        StoredDtype::F16 => halves(data).map(|bits| f16::from_bits(bits).to_f32()).collect(),
        StoredDtype::F32 => {
            let words = data.as_chunks::<4>().0.iter();
            words.map(|word| f32::from_le_bytes(*word)).collect()
        }
        other => panic!("{name} is {other:?}"),
    };
    values.chunks(view.shape()[1]).map(<[f32]>::to_vec).collect()
}

fn halves(data: &[u8]) -> impl Iterator<Item = u16> + '_ {
    data.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half))
}

pub(super) fn compare(got: &[f32], wanted: &[f32], tolerance: Tolerance, place: &str) {
    assert_eq!(got.len(), wanted.len(), "{place}");
    for (token, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let near = match tolerance {
            Tolerance::Bits => got.to_bits() == wanted.to_bits(),
            Tolerance::Absolute(bound) => (got - wanted).abs() <= bound,
        };
        assert!(near, "{place}: logit {token} is {got}, the oracle's {wanted}");
    }
}
