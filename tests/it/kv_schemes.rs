//! Batches of quantized KV caches, for which there is no oracle: each row against our own serial run
//! of the same scheme, which equals mlx-lm's where mlx-lm has one (`goldens/llama.rs`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};
use slipstream_engine::cache::{KvScheme, Packing};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions, Loaded};
use slipstream_engine::scheduler::{Board, Lane, MlxExecutor, RowEvent, RowSpec, Scheduler};
use slipstream_tests::client::Client;
use slipstream_tests::script;
use slipstream_tests::random::Random;

const CHUNK_TOKENS: usize = 64;

/// A row and the tick in which it arrives.
#[derive(Debug, Clone)]
struct Arrival {
    prompt: Vec<u32>,
    max_tokens: usize,
    tick: usize,
}

/// What a row said, and the logits that each token was taken from.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

type Logits = HashMap<String, Vec<Vec<f32>>>;

fn checkpoint() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../goldens/linux-x86_64-cpu/llama-tiny-wide")
}

fn load(directory: &Path) -> Loaded {
    let options = LoadOptions {
        dtype: Some(if std::env::var("F32").is_ok() { Dtype::Float32 } else { Dtype::Bfloat16 }),
        back_end: Device::cpu().back_end(),
    };
    model::load(directory, options).unwrap()
}

/// The scheduler over the model in `directory`, and what it will show of each row's logits.
fn scheduler(directory: &Path, scheme: &KvScheme) -> (Scheduler<MlxExecutor>, Rc<RefCell<Logits>>) {
    let loaded = load(directory);
    scheme.check(&loaded.model.token_shapes()).unwrap();
    let mut executor =
        MlxExecutor::new(loaded.model, loaded.weights_bytes).with_kv_scheme(scheme.clone());
    let seen = Rc::new(RefCell::new(Logits::new()));
    let filed = Rc::clone(&seen);
    executor.observe_logits(Box::new(move |rows, logits| {
        let values = ops::read_f32(logits).unwrap();
        let vocabulary = values.len() / rows.len();
        for (row, values) in rows.iter().zip(values.chunks(vocabulary)) {
            filed.borrow_mut().entry((*row).to_owned()).or_default().push(values.to_vec());
        }
    }));
    let config =
        SchedulerConfig { prefill_chunk_tokens: CHUNK_TOKENS, ..SchedulerConfig::default() };
    (Scheduler::new(config, executor, Clock::manual(), Board::new()), seen)
}

fn spec(id: usize, row: &Arrival, lane: Lane) -> RowSpec {
    RowSpec { lane, ..script::row(id.to_string(), row.prompt.clone(), row.max_tokens) }
}

fn answers(directory: &Path, scheme: &KvScheme, rows: &[Arrival], lane: Lane) -> Vec<Answer> {
    let (mut scheduler, seen) = scheduler(directory, scheme);
    let mut clients = Vec::new();
    let last = rows.iter().map(|row| row.tick).max().unwrap();
    let mut tick = 0;
    while tick <= last || scheduler.live_rows() > 0 {
        for (id, row) in rows.iter().enumerate().filter(|(_, row)| row.tick == tick) {
            let (client, events) = Client::new(row.max_tokens);
            scheduler.submit(spec(id, row, lane), events);
            clients.push((id, client));
        }
        scheduler.tick();
        tick += 1;
    }
    clients.sort_by_key(|(id, _)| *id);
    let answer = |(id, mut client): (usize, Client)| {
        client.listen();
        assert!(client.finish().is_some(), "row {id}: {:?}", client.end());
        let mut logits = seen.borrow_mut().remove(&id.to_string()).unwrap();
        // The forward in flight when the row ended is nobody's.
        logits.truncate(client.tokens().len());
        Answer { tokens: client.tokens().to_vec(), logits }
    };
    clients.into_iter().map(answer).collect()
}

fn prompt(random: &mut Random, length: usize) -> Vec<u32> {
    (0..length).map(|_| random.between(0, 255) as u32).collect()
}

/// Rows that come and go at random; some cross a granule, some a prompt chunk.
fn churn(seed: u64) -> Vec<Arrival> {
    let mut random = Random::new(seed);
    let row = |random: &mut Random| {
        let length = *random.pick(&[1, 2, 7, 30, 63, 65, 66, 130, 250, 256, 257]);
        Arrival {
            prompt: prompt(random, length),
            max_tokens: random.size(2, 16),
            tick: random.size(0, 12),
        }
    };
    (0..random.size(3, 6)).map(|_| row(&mut random)).collect()
}

/// Rows of one length that start together: none is ever padded.
fn in_step(seed: u64) -> Vec<Arrival> {
    let mut random = Random::new(seed);
    let length = random.size(2, 15);
    let row = |random: &mut Random| Arrival {
        prompt: prompt(random, length),
        max_tokens: random.size(2, 16),
        tick: 0,
    };
    (0..4).map(|_| row(&mut random)).collect()
}

fn packing(bits: i64, group_size: i64) -> Packing {
    Packing::new(bits, group_size).unwrap()
}

/// Schemes whose rows share a batch.
fn batchable() -> Vec<KvScheme> {
    vec![
        KvScheme::Uniform { packing: packing(4, 64), start_tokens: 0 },
        KvScheme::Uniform { packing: packing(8, 32), start_tokens: 0 },
        KvScheme::PerLayer(vec![Some(packing(8, 64)), None, Some(packing(3, 128))]),
    ]
}

#[derive(Debug, Default)]
struct Difference {
    rows: usize,
    rows_apart: usize,
    tokens_apart: usize,
    greatest: f32,
}

fn measure(directory: &Path, scheme: &KvScheme, rows: &[Arrival], into: &mut Difference) {
    let together = answers(directory, scheme, rows, Lane::Continuous);
    let alone = answers(directory, scheme, rows, Lane::Serial);
    for (together, alone) in together.iter().zip(&alone) {
        into.rows += 1;
        into.rows_apart += usize::from(together != alone);
        into.tokens_apart += usize::from(together.tokens != alone.tokens);
        for (step, (left, right)) in together.logits.iter().zip(&alone.logits).enumerate() {
            if together.tokens[..step] != alone.tokens[..step] {
                break;
            }
            for (left, right) in left.iter().zip(right) {
                into.greatest = into.greatest.max((left - right).abs());
            }
        }
    }
}

fn sliding(window: i32) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(checkpoint().join(name), directory.path().join(name)).unwrap();
    }
    let text = std::fs::read_to_string(checkpoint().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["layer_types"] = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    config["sliding_window"] = json!(window);
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    directory
}

#[test]
fn measure_all() {
    let mut schemes = batchable();
    schemes.push(KvScheme::Plain);
    let rings = sliding(24);
    for (title, directory) in [("rings", rings.path().to_owned())] {
        for scheme in &schemes {
            let (mut padded, mut level) = (Difference::default(), Difference::default());
            for seed in 0..8 {
                measure(&directory, scheme, &churn(seed), &mut padded);
                measure(&directory, scheme, &in_step(seed), &mut level);
            }
            println!("{title} {}: churn {padded:?} in step {level:?}", scheme.name());
        }
    }
    let _ = RowEvent::Token(1);
}
