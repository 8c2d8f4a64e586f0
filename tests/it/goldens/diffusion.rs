//! DiffusionGemma: what mlx-vlm 0.7.10's forwards over a canvas find, place by place, and what is said.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Deserialize;
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype, ops};
use slipstream_engine::model::{
    self, Acceptance, CanvasLength, Decoding, Denoising, EarlyEnd, LoadOptions, Loaded,
};
use slipstream_engine::sampling::{NoiseAt, NoiseSource, SamplingParams};
use slipstream_engine::scheduler::{
    Board, CanvasForward, FinishReason, Lane, MlxExecutor, RowSpec, Scheduler,
};
use slipstream_tests::client::{Client, serve_all};
use slipstream_tests::script;

const DENSE: &str = "diffusion_gemma-tiny";
const PACKED: &str = "diffusion_gemma-tiny-4bit";

/// f32 sums depend on the BLAS and the processor, and each forward hands them to the next.
const TOLERANCE: f32 = 2e-3;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    prompt: Vec<u32>,
    max_tokens: usize,
    rules: Rules,
    stop_tokens: Vec<u32>,
    tokens: Vec<u32>,
    finish: String,
    forwards: Vec<Forward>,
}

#[derive(Deserialize)]
struct Rules {
    least_tokens: usize,
    most_tokens: usize,
    forwards_max: u32,
    acceptance: String,
    bound: f32,
    stable_forwards: usize,
    mean_entropy_below: f32,
}

/// What a forward found: `logit` and `least` are the greatest and the least of all its logits.
#[derive(Debug, Deserialize)]
struct Forward {
    best: Vec<u32>,
    logit: f32,
    least: f32,
    accepted: Vec<usize>,
}

/// The generator's noise, draw after draw, whatever the block and the forward.
#[derive(Debug, Default)]
struct OraclesNoise {
    draws: u64,
}

impl NoiseSource for OraclesNoise {
    fn draw(&mut self, at: NoiseAt) -> Vec<u32> {
        let draw = self.draws << 32;
        self.draws += 1;
        let token = |place: u64| {
            let mut z = (draw + place).wrapping_add(0x9E37_79B9_7F4A_7C15);
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) % u64::from(at.vocabulary)) as u32
        };
        (0..at.tokens as u64).map(token).collect()
    }
}

fn directory(checkpoint: &str) -> PathBuf {
    super::directory().join(checkpoint)
}

fn load(checkpoint: &str) -> Loaded {
    let back_end = Device::cpu().back_end();
    let options = LoadOptions { dtype: Some(Dtype::Float32), back_end };
    model::load(&directory(checkpoint), options).unwrap()
}

fn denoising_of(loaded: &Loaded) -> Denoising {
    match loaded.model.decoding() {
        Decoding::BlockDiffusion(blocks) => *blocks.denoising(),
        Decoding::NextToken => panic!("it writes in blocks"),
    }
}

impl Rules {
    /// What they change of the checkpoint's.
    fn apply(&self, checkpoints: Denoising) -> Denoising {
        let &Self { least_tokens, most_tokens, forwards_max, bound, .. } = self;
        let &Self { stable_forwards, mean_entropy_below, .. } = self;
        Denoising {
            canvas: CanvasLength { least_tokens, most_tokens },
            forwards_max,
            acceptance: match self.acceptance.as_str() {
                "entropy" => Acceptance::EntropyBound(bound),
                "confident" => Acceptance::Confident(bound),
                other => panic!("{other}"),
            },
            early_end: Some(EarlyEnd { stable_forwards, mean_entropy_below }),
            ..checkpoints
        }
    }
}

fn spec(id: &str, prompt: &[u32], max_tokens: usize) -> RowSpec {
    let lane = Lane::Serial;
    RowSpec { lane, ..script::row(id, prompt.to_vec(), max_tokens) }
}

fn scheduler(executor: MlxExecutor, prefill_chunk_tokens: usize) -> Scheduler<MlxExecutor> {
    let config = SchedulerConfig { prefill_chunk_tokens, ..SchedulerConfig::default() };
    Scheduler::new(config, executor, Clock::manual(), Board::new())
}

/// Plays the case with prompts in pieces of `chunk_tokens`, forward by forward.
fn replay(checkpoint: &str, case: &Case, chunk_tokens: usize) {
    let loaded = load(checkpoint);
    let denoising = case.rules.apply(denoising_of(&loaded));
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes)
        .with_denoising(denoising)
        .with_noise(Box::new(|_| Box::new(OraclesNoise::default())));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let mut executor = executor;
    let forwards = Rc::clone(&seen);
    executor.observe_canvases(Box::new(move |forward: &CanvasForward<'_>| {
        let logits = ops::read_f32(forward.logits).unwrap();
        forwards.borrow_mut().push(Forward {
            best: forward.best.to_vec(),
            logit: logits.iter().copied().fold(f32::MIN, f32::max),
            least: logits.iter().copied().fold(f32::MAX, f32::min),
            accepted: forward.accepted.to_vec(),
        });
    }));
    let row = RowSpec {
        stop_tokens: case.stop_tokens.clone().into(),
        ..spec("row", &case.prompt, case.max_tokens)
    };
    let client = serve_all(&mut scheduler(executor, chunk_tokens), [row], 0).remove(0);
    for (index, (got, wanted)) in seen.borrow().iter().zip(&case.forwards).enumerate() {
        let what = format!("{}: forward {index}: {got:?}, expected {wanted:?}", case.name);
        assert_eq!((&got.best, &got.accepted), (&wanted.best, &wanted.accepted), "{what}");
        let apart = (got.logit - wanted.logit).abs().max((got.least - wanted.least).abs());
        assert!(apart <= TOLERANCE, "{what}");
    }
    assert_eq!(seen.borrow().len(), case.forwards.len(), "{}", case.name);
    check_end(case, &client);
}

fn check_end(case: &Case, client: &Client) {
    let (reason, usage) = client.finish().unwrap_or_else(|| panic!("{:?}", client.end()));
    let (expected, delivered) = match case.finish.as_str() {
        // A stop token is counted and not delivered.
        "stop" => (FinishReason::Stop, &case.tokens[..case.tokens.len() - 1]),
        "length" => (FinishReason::Length, &case.tokens[..]),
        other => panic!("{other}"),
    };
    assert_eq!((client.tokens(), reason), (delivered, expected), "{}", case.name);
    assert_eq!(usage.generated_tokens, case.tokens.len(), "{}", case.name);
}

fn cases(checkpoint: &str) -> Vec<Case> {
    let golden: Golden = super::read_json(&directory(checkpoint).join("denoising.json"));
    assert!(!golden.cases.is_empty());
    golden.cases
}

#[test]
fn every_forward_finds_and_accepts_what_mlx_vlms_does() {
    for case in cases(DENSE) {
        replay(DENSE, &case, 2048);
    }
}

/// Experts in 4 bits with gate and value in one, everything else in 8, by name.
#[test]
fn every_forward_of_a_packed_checkpoint_finds_and_accepts_what_mlx_vlms_does() {
    for case in cases(PACKED) {
        replay(PACKED, &case, 2048);
    }
}

#[test]
fn a_prompt_may_be_read_in_pieces() {
    let all = cases(DENSE);
    let case = all.iter().find(|case| case.name == "confident-past-the-window").unwrap();
    for chunk_tokens in [1, 4, 6] {
        replay(DENSE, case, chunk_tokens);
    }
}

#[test]
fn the_checkpoint_says_how_it_is_denoised_and_why_it_runs_alone() {
    let loaded = load(DENSE);
    let denoising = denoising_of(&loaded);
    assert_eq!(denoising.canvas, CanvasLength { least_tokens: 16, most_tokens: 16 });
    assert_eq!((denoising.forwards_max, denoising.acceptance), (48, Acceptance::EntropyBound(0.1)));
    let early_end = EarlyEnd { stable_forwards: 1, mean_entropy_below: 0.005 };
    assert_eq!(denoising.early_end, Some(early_end));
    assert!(loaded.serial_because.is_some_and(|reason| reason.contains("a block of tokens")));
}

/// Runs rows of the dense checkpoint with few forwards for each canvas.
fn executor() -> MlxExecutor {
    let loaded = load(DENSE);
    let denoising = Denoising { forwards_max: 4, ..denoising_of(&loaded) };
    MlxExecutor::new(loaded.model, loaded.weights_bytes).with_denoising(denoising)
}

fn seeded(id: &str, seed: u64, temperature: f32) -> RowSpec {
    let sampling =
        SamplingParams { seed: Some(seed), temperature, top_p: 0.9, ..SamplingParams::default() };
    RowSpec { sampling, ..spec(id, &[10, 200, 31, 77, 5], 40) }
}

#[test]
fn a_seed_makes_the_same_answer_whoever_came_before_and_another_seed_another() {
    for temperature in [0.0, 1.0] {
        let said = |seeds: &[u64]| -> Vec<Vec<u32>> {
            let rows = seeds.iter().map(|seed| seeded("row", *seed, temperature));
            let clients = serve_all(&mut scheduler(executor(), 2048), rows, 0);
            clients.iter().map(|client| client.tokens().to_vec()).collect()
        };
        let alone = said(&[7]);
        assert_eq!(alone[0].len(), 40);
        let queued = said(&[8, 7, 7]);
        assert_eq!([&queued[1], &queued[2]], [&alone[0]; 2]);
        assert_ne!(queued[0], alone[0]);
    }
}

#[test]
fn a_request_behind_waits_until_the_row_has_ended_and_then_runs() {
    let mut scheduler = scheduler(executor(), 2048);
    let (mut first, events) = Client::new(40);
    scheduler.submit(seeded("first", 1, 0.0), events);
    let (mut second, events) = Client::new(40);
    scheduler.submit(seeded("second", 2, 0.0), events);
    let mut waited_ticks = 0;
    while scheduler.live_rows() > 0 {
        scheduler.tick();
        first.listen();
        second.listen();
        if first.end().is_none() {
            assert!(second.prefilled().is_none(), "two rows ran together");
            let snapshot = scheduler.snapshot();
            let waiting = snapshot.rows.iter().find(|row| row.id == "second").unwrap();
            assert_eq!(waiting.waiting_reason.as_deref(), Some("a serial request runs alone"));
            waited_ticks += 1;
        }
    }
    // A forward a tick: three canvases of four forwards.
    assert_eq!(waited_ticks, 3 * 4 - 1);
    assert_eq!((first.tokens().len(), second.tokens().len()), (40, 40));
}

#[test]
fn blocks_arrive_whole_and_a_client_that_leaves_within_one_ends_its_row_at_once() {
    let mut scheduler = scheduler(executor(), 2048);
    let (mut client, events) = Client::new(40);
    scheduler.submit(seeded("row", 1, 0.0), events);
    let mut heard = Vec::new();
    for _ in 0..6 {
        scheduler.tick();
        client.listen();
        heard.push(client.tokens().len());
    }
    assert_eq!(heard, [0, 0, 0, 16, 16, 16]);
    client.leave();
    scheduler.tick();
    assert_eq!(scheduler.live_rows(), 0);
    let snapshot = scheduler.snapshot();
    assert_eq!((snapshot.batch.kv_bytes, snapshot.totals.cancelled_rows), (0, 1));
}

#[test]
fn a_row_never_holds_more_bytes_than_its_prompt_its_answer_and_a_canvas_take() {
    let loaded = load(DENSE);
    let profile = loaded.kv_profile(&slipstream_engine::cache::KvScheme::Plain);
    let denoising = Denoising { forwards_max: 1, ..denoising_of(&loaded) };
    let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes).with_denoising(denoising);
    let mut scheduler = scheduler(executor, 4);
    let (_client, events) = Client::new(300);
    let projected = profile.row_bytes(5 + 300);
    let row = RowSpec { kv_bytes: projected, ..spec("row", &[10, 200, 31, 77, 5], 300) };
    scheduler.submit(row, events);
    let mut most = 0;
    while scheduler.live_rows() > 0 {
        scheduler.tick();
        most = most.max(scheduler.snapshot().batch.kv_bytes);
    }
    assert!(most <= projected, "{most} of {projected} bytes");
    // Granules of 256 tokens: the projection is no mere bound.
    assert!(most > projected / 2, "{most} of {projected} bytes");
}
