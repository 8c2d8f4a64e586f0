//! Batches of quantized KV caches, for which there is no oracle: each row against our own serial run
//! of the same scheme, which equals mlx-lm's where mlx-lm has one (`goldens/llama.rs`).

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};
use slipstream_engine::cache::{KvScheme, Packing, TokenShape};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, Loaded};
use slipstream_engine::scheduler::{Board, Lane, MlxExecutor, RowEvent, RowSpec, Scheduler};
use slipstream_tests::client::Client;
use slipstream_tests::goldens;
use slipstream_tests::logits::{self, Logits};
use slipstream_tests::random::Random;
use slipstream_tests::script;

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

fn checkpoint() -> PathBuf {
    goldens::checkpoint("llama-tiny-wide")
}

/// Three recurrent layers, and two of attention with heads of 32 between them.
fn recurrent() -> PathBuf {
    goldens::checkpoint("qwen3_5-tiny")
}

/// The model in `directory`, in `dtype`.
fn load(directory: &Path, dtype: Dtype) -> Loaded {
    let options = LoadOptions { dtype: Some(dtype), back_end: Device::cpu().back_end() };
    model::load(directory, options).unwrap()
}

/// The scheduler over the model, and what it will show of each row's logits.
fn scheduler(loaded: Loaded, scheme: &KvScheme) -> (Scheduler<MlxExecutor>, Rc<RefCell<Logits>>) {
    scheme.check(&loaded.model.token_shapes()).unwrap();
    let mut executor =
        MlxExecutor::new(loaded.model, loaded.weights_bytes).with_kv_scheme(scheme.clone());
    let seen = logits::file(&mut executor);
    let config =
        SchedulerConfig { prefill_chunk_tokens: CHUNK_TOKENS, ..SchedulerConfig::default() };
    (Scheduler::new(config, executor, Clock::manual(), Board::new()), seen)
}

fn spec(id: usize, row: &Arrival, lane: Lane) -> RowSpec {
    RowSpec { lane, ..script::row(id.to_string(), row.prompt.clone(), row.max_tokens) }
}

/// What each row answers, and how many joined others.
fn answers(loaded: Loaded, scheme: &KvScheme, rows: &[Arrival], lane: Lane) -> (Vec<Answer>, u64) {
    let (mut scheduler, seen) = scheduler(loaded, scheme);
    let mut clients: Vec<Option<Client>> = rows.iter().map(|_| None).collect();
    let last = rows.iter().map(|row| row.tick).max().unwrap();
    let mut tick = 0;
    while tick <= last || scheduler.live_rows() > 0 {
        for (id, row) in rows.iter().enumerate().filter(|(_, row)| row.tick == tick) {
            let (client, events) = Client::new(row.max_tokens);
            scheduler.submit(spec(id, row, lane), events);
            clients[id] = Some(client);
        }
        scheduler.tick();
        tick += 1;
    }
    let answer = |(id, client): (usize, Option<Client>)| {
        let mut client = client.unwrap();
        client.listen();
        assert!(client.finish().is_some(), "row {id}: {:?}", client.end());
        let mut logits = seen.borrow_mut().remove(&id.to_string()).unwrap();
        // The forward in flight when the row ended is nobody's.
        logits.truncate(client.tokens().len());
        Answer { tokens: client.tokens().to_vec(), logits }
    };
    let answers = clients.into_iter().enumerate().map(answer).collect();
    (answers, scheduler.snapshot().totals.joins)
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

/// The same for Gemma 4, whose last three layers attend to the columns of the others.
fn batchable_where_layers_share() -> Vec<KvScheme> {
    let layers = [Some(packing(8, 32)), None, Some(packing(3, 64)), None, None, None];
    vec![
        KvScheme::Uniform { packing: packing(4, 32), start_tokens: 0 },
        KvScheme::Uniform { packing: packing(8, 32), start_tokens: 0 },
        KvScheme::PerLayer(layers.to_vec()),
    ]
}

/// The same for [`recurrent`], and plain caches.
fn batchable_beside_states() -> Vec<KvScheme> {
    let layers = vec![None, Some(packing(4, 32)), None, None, None];
    vec![
        KvScheme::Plain,
        KvScheme::Uniform { packing: packing(8, 32), start_tokens: 0 },
        KvScheme::PerLayer(layers),
    ]
}

/// `checkpoint` with a config that was changed.
fn with_config(checkpoint: &Path, change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(checkpoint.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(&mut config);
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let weights = "model.safetensors";
    std::fs::copy(checkpoint.join(weights), directory.path().join(weights)).unwrap();
    directory
}

/// The checkpoint with windows of `window_tokens` in its first and last layer.
fn sliding(window_tokens: usize) -> tempfile::TempDir {
    with_config(&checkpoint(), |config| {
        config["layer_types"] = json!(["sliding_attention", "full_attention", "sliding_attention"]);
        config["sliding_window"] = json!(window_tokens);
    })
}

/// Gemma 4's small shape with windows of `window_tokens`.
fn sharing(window_tokens: usize) -> tempfile::TempDir {
    with_config(&goldens::checkpoint("gemma4-e4b-tiny"), |config| {
        config["text_config"]["sliding_window"] = json!(window_tokens);
    })
}

/// Each of `batches` answers together, bit for bit, as its rows do alone.
fn check_bits(directory: &Path, schemes: Vec<KvScheme>, batches: &[Vec<Arrival>]) {
    for scheme in schemes {
        let mut joined = 0;
        for rows in batches {
            let run = |lane| answers(load(directory, Dtype::Bfloat16), &scheme, rows, lane);
            let (together, joins) = run(Lane::Continuous);
            joined += joins;
            for (row, (together, alone)) in together.iter().zip(run(Lane::Serial).0).enumerate() {
                assert!(*together == alone, "{}: row {row} of {rows:?}", scheme.name());
            }
        }
        assert!(joined > 0, "{}: no row joined another", scheme.name());
    }
}

#[test]
fn rows_over_packed_columns_say_what_they_say_alone_through_any_joins_and_leaves() {
    let batches: Vec<_> = (0..4).map(churn).chain([in_step(0)]).collect();
    check_bits(&checkpoint(), batchable(), &batches);
}

#[test]
fn rows_over_packed_windows_say_what_they_say_alone_until_their_rings_wrap() {
    check_bits(sliding(512).path(), batchable(), &(5..8).map(churn).collect::<Vec<_>>());
}

#[test]
fn rows_whose_packed_rings_wrap_together_say_what_they_say_alone() {
    check_bits(sliding(8).path(), batchable(), &(0..3).map(in_step).collect::<Vec<_>>());
}

#[test]
fn rows_whose_layers_attend_to_packed_columns_of_others_say_what_they_say_alone() {
    let schemes = batchable_where_layers_share;
    check_bits(sharing(512).path(), schemes(), &(5..8).map(churn).collect::<Vec<_>>());
    check_bits(sharing(8).path(), schemes(), &(0..3).map(in_step).collect::<Vec<_>>());
}

#[test]
fn rows_with_recurrent_states_say_what_they_say_alone_through_any_joins_and_leaves() {
    let batches: Vec<_> = (8..12).map(churn).chain([in_step(1)]).collect();
    check_bits(&recurrent(), batchable_beside_states(), &batches);
}

/// A ring that wrapped in a batch lies otherwise than the row's own, so sums over its columns run in
/// another order. MLX's processor back end sums products with packed values in the type of the model,
/// so in bf16 the order is worth 1 in 128 of a sum, which three layers of random weights make 1.4 of a
/// logit (0.02 without packing). In f32 the order is worth 1e-5 (5e-5 at most here, 3e-5 without packing),
/// until a value of a later layer comes to lie on the other side of a rounding step and is packed one
/// step away: from then on the row is 1e-3 to 2e-2 away (2 of 20 rows here, all with 8 bits).
#[test]
fn rows_whose_packed_rings_lie_otherwise_stay_within_the_order_of_sums_and_a_packing_step() {
    let rings = sliding(24);
    for scheme in batchable() {
        let mut apart = Vec::new();
        for rows in (0..4).map(churn) {
            let run = |lane| answers(load(rings.path(), Dtype::Float32), &scheme, &rows, lane).0;
            let pairs = run(Lane::Continuous).into_iter().zip(run(Lane::Serial));
            apart.extend(pairs.map(|(together, alone)| difference(&together, &alone)));
        }
        let stepped = apart.iter().filter(|apart| **apart > 1e-4).count();
        assert!(apart.iter().all(|apart| *apart < 5e-2), "{}: {apart:?}", scheme.name());
        assert!(stepped * 5 <= apart.len(), "{}: {apart:?}", scheme.name());
    }
}

/// The greatest difference of two logits; the tokens must be the same.
fn difference(together: &Answer, alone: &Answer) -> f32 {
    assert_eq!(together.tokens, alone.tokens);
    let pairs = together.logits.iter().flatten().zip(alone.logits.iter().flatten());
    pairs.map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}

#[test]
fn a_decoding_row_holds_the_bytes_that_its_profile_says_in_every_scheme() {
    for scheme in batchable().into_iter().chain([KvScheme::Plain]) {
        check_profile(&checkpoint(), &scheme);
    }
    for scheme in batchable_beside_states() {
        check_profile(&recurrent(), &scheme);
    }
}

/// Layers have heads of different widths, and half of them have no cache.
#[test]
fn a_decoding_row_whose_layers_share_columns_holds_the_bytes_that_its_profile_says() {
    for scheme in batchable_where_layers_share().into_iter().chain([KvScheme::Plain]) {
        check_profile(&goldens::checkpoint("gemma4-e4b-tiny"), &scheme);
    }
}

fn check_profile(directory: &Path, scheme: &KvScheme) {
    let loaded = load(directory, Dtype::Bfloat16);
    let profile = loaded.kv_profile(scheme);
    let (mut scheduler, _) = scheduler(loaded, scheme);
    let row = Arrival { prompt: prompt(&mut Random::new(1), 250), max_tokens: 12, tick: 0 };
    let (_client, events) = Client::new(row.max_tokens);
    scheduler.submit(spec(0, &row, Lane::Continuous), events);
    let mut widths = Vec::new();
    while scheduler.live_rows() > 0 {
        scheduler.tick();
        let snapshot = scheduler.snapshot();
        if let [row] = &snapshot.rows[..]
            && row.state == "decoding"
        {
            // The forward that is in flight has written its column already.
            let tokens = row.prompt_tokens + row.generated_tokens;
            assert_eq!(snapshot.batch.kv_bytes, profile.row_bytes(tokens), "{}", scheme.name());
            widths.push(tokens);
        }
    }
    assert!(widths.first() < Some(&256) && widths.last() > Some(&256), "{widths:?}");
}

#[test]
fn a_layer_without_keys_of_its_own_cannot_be_packed_and_is_named() {
    let shapes =
        load(&goldens::checkpoint("gemma4-e4b-tiny"), Dtype::Bfloat16).model.token_shapes();
    let own = [(1, 32), (1, 32), (1, 64)].map(|(heads, dimension)| {
        Some(TokenShape { heads, key_dimension: dimension, value_dimension: dimension })
    });
    assert_eq!(shapes, own.into_iter().chain([None; 3]).collect::<Vec<_>>());
    let scheme = KvScheme::PerLayer((0..6).map(|_| Some(packing(4, 32))).collect());
    let error = scheme.check(&shapes).unwrap_err();
    assert!(error.message().contains("layer 3"), "{error}");
}

#[test]
fn rows_of_one_length_hold_the_bytes_that_the_profile_says_of_their_batch() {
    for scheme in batchable_beside_states() {
        let loaded = load(&recurrent(), Dtype::Bfloat16);
        let profile = loaded.kv_profile(&scheme);
        let (mut scheduler, _) = scheduler(loaded, &scheme);
        let rows = in_step(2);
        let mut clients = Vec::new();
        for (id, row) in rows.iter().enumerate() {
            let (client, events) = Client::new(16);
            let row = Arrival { max_tokens: 16, ..row.clone() };
            scheduler.submit(spec(id, &row, Lane::Continuous), events);
            clients.push(client);
        }
        let mut seen = 0;
        while scheduler.live_rows() > 0 {
            scheduler.tick();
            let snapshot = scheduler.snapshot();
            if snapshot.batch.active_rows == rows.len() {
                let longest = profile.batch_bytes(rows.len(), rows[0].prompt.len() + 16);
                assert_eq!(snapshot.batch.kv_bytes, longest, "{}", scheme.name());
                seen += 1;
            }
        }
        assert!(seen > 3, "{}: {seen}", scheme.name());
    }
}

#[test]
fn rows_of_a_scheme_that_converts_late_never_meet() {
    let scheme = KvScheme::Uniform { packing: packing(4, 64), start_tokens: 9 };
    let rows = in_step(3);
    let (mut scheduler, _) = scheduler(load(&checkpoint(), Dtype::Bfloat16), &scheme);
    let mut clients = Vec::new();
    for (id, row) in rows.iter().enumerate().take(2) {
        let (client, events) = Client::new(row.max_tokens);
        scheduler.submit(spec(id, row, Lane::Continuous), events);
        clients.push(client);
    }
    while scheduler.live_rows() > 0 {
        scheduler.tick();
    }
    clients.iter_mut().for_each(Client::listen);
    for client in &clients {
        let Some(RowEvent::Failed(error)) = client.end() else { panic!("{:?}", client.end()) };
        assert!(error.message().contains(&scheme.serial_reason().unwrap()), "{error}");
    }
}
