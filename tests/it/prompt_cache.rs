//! A row that starts from kept caches has every bit of one that reads its whole prompt, in every kind of cache.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use slipstream_engine::cache::{KvScheme, Packing};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::{self, LoadOptions, fingerprint};
use slipstream_engine::prompt_cache::disk::{DiskConfig, DiskTier};
use slipstream_engine::scheduler::{Board, Lane, MlxExecutor, RowSpec, Scheduler};
use slipstream_tests::client::Client;
use slipstream_tests::goldens;
use slipstream_tests::logits::{self, Logits};
use slipstream_tests::random::Random;
use slipstream_tests::script;

const CHUNK_TOKENS: usize = 64;
const ANSWER_TOKENS: usize = 6;

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
        let seen = logits::file(&mut executor);
        let config = SchedulerConfig {
            prefill_chunk_tokens: CHUNK_TOKENS,
            prompt_cache_bytes,
            kept_prompt_tokens_min: 8,
            ..SchedulerConfig::default()
        };
        let scheduler = Scheduler::new(config, executor, Clock::manual(), Board::new());
        Self { scheduler, seen, asked: 0 }
    }

    /// One that keeps its prompts in `folder` too.
    fn on_disk(checkpoint: &str, dtype: Dtype, scheme: &KvScheme, folder: &Path) -> Self {
        let settings = [format!("{dtype:?}"), format!("{scheme:?}")];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let identity = fingerprint(&goldens::checkpoint(checkpoint), &settings).unwrap();
        let disk = DiskConfig {
            folder: folder.to_owned(),
            max_bytes: 1 << 30,
            day_limit_bytes: None,
            queue_bytes: 1 << 20,
        };
        let tier = DiskTier::open(disk, &identity, Clock::manual()).unwrap();
        let Self { scheduler, seen, asked } = Self::new(checkpoint, dtype, scheme, 1 << 30);
        Self { scheduler: scheduler.with_disk(tier), seen, asked }
    }

    fn restored(&self) -> u64 {
        self.scheduler.snapshot().disk_cache.expect("it has a disk").restored
    }

    /// Ends the process in good order.
    fn retire(mut self) {
        self.scheduler.retire();
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

/// Prompts as conversations bring them: repeated five times, gone on with, edited in the middle, shorter again, and at
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
        prompts.extend(std::iter::repeat_n(first, 5));
        prompts.extend([next.clone(), next, edited, shorter]);
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

/// Prompts around granule, chunk and window, and one more turn of each after a restart.
const RESTARTED_TOKENS: [usize; 7] = [30, 63, 65, 130, 255, 256, 257];

/// Asks, restarts, and asks again and one turn further; the answers are those of a process that reads all.
fn check_restart(checkpoint: &str, dtype: Dtype, scheme: &KvScheme, lane: Lane) {
    let mut random = Random::new(19);
    let folder = tempfile::tempdir().unwrap();
    let server = || Server::on_disk(checkpoint, dtype, scheme, folder.path());
    let mut cold = Server::new(checkpoint, dtype, scheme, 0);
    let mut before = server();
    let mut asked = Vec::new();
    for length in RESTARTED_TOKENS {
        let first = prompt(&mut random, length);
        let (said, _) = before.ask(std::slice::from_ref(&first), lane).remove(0);
        let turn = prompt(&mut random, 5);
        asked.extend([[first.as_slice(), &said.tokens, &turn].concat(), first]);
    }
    before.retire();
    let mut after = server();
    for prompt in &asked {
        let (expected, _) = cold.ask(std::slice::from_ref(prompt), lane).remove(0);
        let (answer, cached) = after.ask(std::slice::from_ref(prompt), lane).remove(0);
        let length = prompt.len();
        assert!(answer == expected, "{checkpoint}, {dtype:?}: {cached} of {length} were cached");
        assert!(cached >= length - 8, "{checkpoint}: {cached} of {length}");
    }
    assert!(after.restored() >= RESTARTED_TOKENS.len() as u64, "{}", after.restored());
}

#[test]
fn after_a_restart_every_kind_of_cache_answers_with_the_bits_of_a_whole_reading() {
    for checkpoint in ["llama-tiny", "gemma3-tiny", "llama-tiny-sliding", "qwen3_5-tiny"] {
        check_restart(checkpoint, Dtype::Bfloat16, &PLAIN, Lane::Continuous);
    }
    check_restart("llama-tiny", Dtype::Float16, &PLAIN, Lane::Serial);
}

#[test]
fn after_a_restart_latents_and_packed_caches_answer_again_with_the_same_bits() {
    let packing = |bits| Packing::new(bits, 32).unwrap();
    let uniform = KvScheme::Uniform { packing: packing(4), start_tokens: 0 };
    let late = KvScheme::Uniform { packing: packing(8), start_tokens: 100 };
    for (checkpoint, scheme, lane) in [
        ("glm4_moe_lite-tiny-dense", PLAIN, Lane::Continuous),
        ("glm_moe_dsa-tiny-dense", PLAIN, Lane::Continuous),
        ("llama-tiny-wide", uniform, Lane::Continuous),
        ("llama-tiny-wide", late, Lane::Serial),
    ] {
        let mut random = Random::new(23);
        let folder = tempfile::tempdir().unwrap();
        let prompts = [130, 257].map(|length| [prompt(&mut random, length)]);
        let server = || Server::on_disk(checkpoint, Dtype::Bfloat16, &scheme, folder.path());
        let mut before = server();
        let first = prompts.each_ref().map(|prompt| before.ask(prompt, lane).remove(0).0);
        before.retire();
        let mut after = server();
        for (prompt, first) in prompts.iter().zip(first) {
            let (again, cached) = after.ask(prompt, lane).remove(0);
            assert!(again == first, "{checkpoint}, {scheme:?}: {cached} were cached");
            assert!(cached >= prompt[0].len() - 3, "{checkpoint}, {scheme:?}: {cached}");
        }
        assert!(after.restored() > 0);
    }
}

/// Two checkpoints, and one of them in two types, take turns on one folder.
#[test]
fn models_that_share_a_folder_never_share_a_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(29);
    let prompt = [prompt(&mut random, 200)];
    let models = [
        ("llama-tiny", Dtype::Bfloat16),
        ("qwen3-tiny-4bit", Dtype::Bfloat16),
        ("llama-tiny", Dtype::Float16),
    ];
    for round in 0..3 {
        for (checkpoint, dtype) in models {
            let mut server = Server::on_disk(checkpoint, dtype, &PLAIN, folder.path());
            let mut cold = Server::new(checkpoint, dtype, &PLAIN, 0);
            let (answer, cached) = server.ask(&prompt, Lane::Continuous).remove(0);
            assert!(answer == cold.ask(&prompt, Lane::Continuous).remove(0).0, "{checkpoint}");
            assert_eq!(cached > 0, round > 0, "{checkpoint}, {dtype:?}: {cached}");
            server.retire();
        }
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

/// Requests that are cached whole take shares of one snapshot, and each goes on by itself; who leaves does so at
/// any moment.
#[test]
fn equal_prompts_at_once_hear_the_first_answer_whoever_of_them_leaves() {
    for checkpoint in ["llama-tiny", "gemma3-tiny", "qwen3_5-tiny"] {
        let mut random = Random::new(31);
        let mut server = Server::new(checkpoint, Dtype::Bfloat16, &PLAIN, 1 << 30);
        let prompt = [prompt(&mut random, 150)];
        let (first, _) = server.ask(&prompt, Lane::Continuous).remove(0);
        for round in 0..ROUNDS_OF_TWO {
            let leaver = random.once_in(2).then(|| (random.size(0, 1), random.size(0, 8)));
            for answer in server.ask_two(&prompt[0], leaver) {
                let told = format!("{checkpoint}, round {round}: {leaver:?}");
                assert!(answer.logits == first.logits[..answer.logits.len()], "{told}");
                assert!(answer.tokens == first.tokens[..answer.tokens.len()], "{told}");
            }
        }
    }
}

const ROUNDS_OF_TWO: usize = 200;

impl Server {
    /// Asks twice at once. A `leaver` is who hangs up, and after how many ticks. What each heard, all of it unless
    /// it left.
    fn ask_two(&mut self, prompt: &[u32], leaver: Option<(usize, usize)>) -> [Answer; 2] {
        let mut clients = [0, 1].map(|_| {
            self.asked += 1;
            let (id, (client, events)) = (self.asked.to_string(), Client::new(ANSWER_TOKENS));
            let row = script::row(id.clone(), prompt.to_vec(), ANSWER_TOKENS);
            self.scheduler.submit(row, events);
            (id, client)
        });
        for tick in 0.. {
            if let Some((index, _)) = leaver.filter(|(_, ticks)| *ticks == tick) {
                clients[index].1.listen();
                clients[index].1.leave();
            }
            if self.scheduler.live_rows() == 0 {
                break;
            }
            self.scheduler.tick();
            self.scheduler.check_integrity();
        }
        let mut index = 0;
        clients.map(|(id, mut client)| {
            client.listen();
            let left = leaver.is_some_and(|(leaver, _)| leaver == index);
            index += 1;
            assert!(left || client.finish().is_some_and(|(_, usage)| usage.cached_tokens > 0));
            let mut logits = self.seen.borrow_mut().remove(&id).unwrap_or_default();
            logits.truncate(client.tokens().len());
            Answer { tokens: client.tokens().to_vec(), logits }
        })
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
