//! A row that starts from kept caches has every bit of one that reads its whole prompt, in every kind of cache.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use slipstream_engine::cache::{KvScheme, Packing};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype, ops};
use slipstream_engine::model::{self, LoadOptions};
use slipstream_engine::scheduler::{Board, Lane, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::Client;
use slipstream_tests::goldens;
use slipstream_tests::random::Random;
use slipstream_tests::script;

const CHUNK_TOKENS: usize = 64;
const ANSWER_TOKENS: usize = 6;

type Logits = HashMap<String, Vec<Vec<f32>>>;

/// What a row said, and the logits that each token was taken from.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// A model and what it was asked.
struct Server {
    scheduler: Scheduler<MlxExecutor>,
    seen: Rc<RefCell<Logits>>,
    asked: usize,
}

impl Server {
    fn new(checkpoint: &str, dtype: Dtype, scheme: &KvScheme, prompt_cache_bytes: u64) -> Self {
        let options = LoadOptions { dtype: Some(dtype), back_end: Device::cpu().back_end() };
        let loaded = model::load(&goldens::checkpoint(checkpoint), options).unwrap();
        scheme.check(&loaded.model.token_shapes()).unwrap();
        let executor = MlxExecutor::new(loaded.model, loaded.weights_bytes);
        let mut executor = executor.with_kv_scheme(scheme.clone());
        let seen = Rc::new(RefCell::new(Logits::new()));
        let filed = Rc::clone(&seen);
        executor.observe_logits(Box::new(move |rows, logits| {
            let values = ops::read_f32(logits).unwrap();
            let vocabulary = values.len() / rows.len();
            for (row, values) in rows.iter().zip(values.chunks(vocabulary)) {
                filed.borrow_mut().entry((*row).to_owned()).or_default().push(values.to_vec());
            }
        }));
        let config = SchedulerConfig {
            prefill_chunk_tokens: CHUNK_TOKENS,
            prompt_cache_bytes,
            kept_prompt_tokens_min: 8,
            ..SchedulerConfig::default()
        };
        let scheduler = Scheduler::new(config, executor, Clock::manual(), Board::new());
        Self { scheduler, seen, asked: 0 }
    }

    /// The answers to prompts that come at once, and what a cache had of each.
    fn ask(&mut self, prompts: &[Vec<u32>], lane: Lane) -> Vec<(Answer, usize)> {
        let clients: Vec<(String, Client)> = prompts
            .iter()
            .map(|prompt| {
                self.asked += 1;
                let (id, (client, events)) = (self.asked.to_string(), Client::new(ANSWER_TOKENS));
                let row = script::row(id.clone(), prompt.clone(), ANSWER_TOKENS);
                let boundaries = vec![prompt.len() / 3, prompt.len().saturating_sub(3)];
                self.scheduler.submit(RowSpec { lane, boundaries, ..row }, events);
                (id, client)
            })
            .collect();
        while self.scheduler.live_rows() > 0 {
            self.scheduler.tick();
        }
        clients
            .into_iter()
            .map(|(id, mut client)| {
                client.listen();
                let (_, usage) = client.finish().expect("it finishes");
                let cached_tokens = usage.cached_tokens;
                let mut logits = self.seen.borrow_mut().remove(&id).unwrap();
                // The forward in flight when the row ended is nobody's.
                logits.truncate(client.tokens().len());
                (Answer { tokens: client.tokens().to_vec(), logits }, cached_tokens)
            })
            .collect()
    }
}

fn prompt(random: &mut Random, length: usize) -> Vec<u32> {
    (0..length).map(|_| random.between(0, 255) as u32).collect()
}

/// Prompts as conversations bring them: repeated, gone on with, edited in the middle, shorter again, and at
/// the lengths where caches change their ways.
fn conversations(server: &mut Server, random: &mut Random) -> Vec<Vec<u32>> {
    let mut prompts = Vec::new();
    for length in [1, 2, 9, 63, 64, 65, 130, 255, 256, 257] {
        let first = prompt(random, length);
        let said = server.ask(std::slice::from_ref(&first), Lane::Continuous).remove(0).0.tokens;
        let turn = prompt(random, 5);
        let next = [first.as_slice(), &said, &turn].concat();
        let mut edited = next.clone();
        edited[next.len() / 2] ^= 1;
        let shorter = next[..next.len() / 2 + 1].to_vec();
        prompts.extend([first.clone(), first, next.clone(), next, edited, shorter]);
    }
    prompts
}

/// What of all prompts was cached.
fn check(checkpoint: &str, dtype: Dtype, scheme: &KvScheme, lane: Lane) -> usize {
    let mut random = Random::new(7);
    let mut cold = Server::new(checkpoint, dtype, scheme, 0);
    let mut warm = Server::new(checkpoint, dtype, scheme, 1 << 30);
    let mut cached_tokens = 0;
    for prompt in conversations(&mut cold, &mut random) {
        let (expected, none) = cold.ask(std::slice::from_ref(&prompt), lane).remove(0);
        let (answer, cached) = warm.ask(std::slice::from_ref(&prompt), lane).remove(0);
        assert_eq!(none, 0);
        assert!(cached < prompt.len());
        let length = prompt.len();
        assert!(answer == expected, "{checkpoint}: {cached} of {length} tokens were cached");
        cached_tokens += cached;
    }
    cached_tokens
}

const PLAIN: KvScheme = KvScheme::Plain;

#[test]
fn whatever_is_cached_of_a_prompt_full_attention_answers_with_the_same_bits() {
    for checkpoint in ["llama-tiny", "qwen3-tiny-4bit", "gemma-tiny"] {
        assert!(check(checkpoint, Dtype::Bfloat16, &PLAIN, Lane::Continuous) > 4_000);
    }
    assert!(check("llama-tiny", Dtype::Float16, &PLAIN, Lane::Serial) > 4_000);
}

#[test]
fn whatever_is_cached_of_a_prompt_windows_answer_with_the_same_bits() {
    for checkpoint in ["gemma3-tiny", "llama-tiny-sliding", "gemma4-e4b-tiny"] {
        assert!(check(checkpoint, Dtype::Bfloat16, &PLAIN, Lane::Continuous) > 2_000);
    }
}

#[test]
fn whatever_is_cached_of_a_prompt_recurrent_states_answer_with_the_same_bits() {
    assert!(check("qwen3_5-tiny", Dtype::Bfloat16, &PLAIN, Lane::Continuous) > 2_000);
}

/// Asks for each of some prompts four times; all answers have the bits of the first.
fn check_again(checkpoint: &str, scheme: &KvScheme, lane: Lane) {
    let mut random = Random::new(17);
    let mut warm = Server::new(checkpoint, Dtype::Bfloat16, scheme, 1 << 30);
    for length in [9, 64, 65, 130, 257] {
        let prompt = [prompt(&mut random, length)];
        let (first, none) = warm.ask(&prompt, lane).remove(0);
        assert_eq!(none, 0);
        for _ in 0..3 {
            let (again, cached) = warm.ask(&prompt, lane).remove(0);
            assert!(again == first, "{checkpoint}, {scheme:?}: {cached} of {length} were cached");
            assert!(cached >= length - 3, "{cached} of {length}");
        }
    }
}

/// One query at a time is absorbed and several are expanded, with other bits, so where a prompt is cut shows in
/// them; who asks again hears what was heard first.
#[test]
fn a_prompt_over_latents_is_answered_again_with_the_same_bits() {
    for checkpoint in ["glm4_moe_lite-tiny-dense", "glm_moe_dsa-tiny-dense"] {
        check_again(checkpoint, &PLAIN, Lane::Continuous);
    }
}

/// A prompt's first piece is attended to before it is packed, so where a prompt is cut shows in its bits here
/// too.
#[test]
fn a_prompt_over_packed_caches_is_answered_again_with_the_same_bits() {
    let packing = |bits| Packing::new(bits, 32).unwrap();
    for (scheme, lane) in [
        (KvScheme::Uniform { packing: packing(4), start_tokens: 0 }, Lane::Continuous),
        (KvScheme::Uniform { packing: packing(8), start_tokens: 100 }, Lane::Serial),
        (KvScheme::PerLayer(vec![None, Some(packing(8)), Some(packing(4))]), Lane::Continuous),
    ] {
        check_again("llama-tiny-wide", &scheme, lane);
    }
}

/// Rows of one batch are copied out of it at their end, and later ones go on from the copies.
#[test]
fn rows_that_shared_a_batch_leave_caches_behind_as_if_each_had_been_alone() {
    for (checkpoint, least) in [("llama-tiny", 280), ("gemma3-tiny", 280), ("qwen3_5-tiny", 280)] {
        let mut random = Random::new(11);
        let mut cold = Server::new(checkpoint, Dtype::Bfloat16, &PLAIN, 0);
        let mut warm = Server::new(checkpoint, Dtype::Bfloat16, &PLAIN, 1 << 30);
        let system = prompt(&mut random, 70);
        let agents: Vec<Vec<u32>> =
            [3, 17, 40].map(|tokens| [system.clone(), prompt(&mut random, tokens)].concat()).into();
        let said = warm.ask(&agents, Lane::Continuous);
        let next: Vec<Vec<u32>> = agents
            .iter()
            .zip(&said)
            .map(|(agent, (said, _))| {
                [agent.as_slice(), &said.tokens, &[1, 2, 3, 4, 5, 6, 7]].concat()
            })
            .collect();
        let mut cached_tokens = 0;
        for prompt in &next {
            let (expected, _) = cold.ask(std::slice::from_ref(prompt), Lane::Continuous).remove(0);
            let (answer, cached) =
                warm.ask(std::slice::from_ref(prompt), Lane::Continuous).remove(0);
            assert!(answer == expected, "{checkpoint}: {cached} of {} were cached", prompt.len());
            cached_tokens += cached;
        }
        assert!(cached_tokens >= least, "{checkpoint}: {cached_tokens}");
    }
}

/// Eight agents with one system prompt: it is read once, and then eight tails.
#[test]
fn agents_that_come_at_once_share_one_reading_of_their_system_prompt() {
    let mut random = Random::new(13);
    let mut server = Server::new("llama-tiny", Dtype::Bfloat16, &PLAIN, 1 << 30);
    let system = prompt(&mut random, 300);
    let agents: Vec<Vec<u32>> =
        (0..8).map(|_| [system.clone(), prompt(&mut random, 12)].concat()).collect();
    let cached: Vec<usize> =
        server.ask(&agents, Lane::Continuous).iter().map(|(_, cached)| *cached).collect();
    assert_eq!(cached[0], 0);
    assert!(cached[1..].iter().all(|cached| *cached >= system.len()), "{cached:?}");
}
