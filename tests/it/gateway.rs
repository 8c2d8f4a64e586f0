//! The gateway over the production scheduler, in one thread and in virtual time.
//!
//! A seed chooses requests, when they arrive, when their clients leave, when somebody ends them from
//! outside and which executor calls fail. Each request is refused with a reason, or its text is held
//! against the naive model's, cut at the first stop string, and it ends exactly once. Afterwards nothing is live and every place in the
//! queue is free again.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use slipstream_engine::cache::{KvProfile, LayerBytes};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::gateway::{
    AnswerEvent, Engine, FinishReason, GenerateRequest, Generation, Health, ModelCapabilities,
    ModelCard, Prompt, RequestDefaults, Rows, Usage,
};
use slipstream_engine::output::AnswerPart;
use slipstream_engine::sampling::SamplingParams;
use slipstream_engine::scheduler::{
    self, Board, CacheCommand, EventSender, Priority, RowSpec, Scheduler,
};
use slipstream_engine::telemetry::Snapshot;
use slipstream_engine::tokenizer::Tokenizer;
use slipstream_tests::goldens;
use slipstream_tests::random::Random;
use slipstream_tests::script::{
    self, Call, Fault, Script, ScriptedExecutor, SharedJournal, TOKEN_KV_BYTES, answer,
};

const SEEDS: u64 = 3000;
const CONTEXT_TOKENS: usize = 48;
const REQUESTS_MAX: usize = 14;
/// What any row is billed: one granule.
const ROW_BYTES: u64 = 256 * TOKEN_KV_BYTES;

/// Rows on their way to the scheduler, which takes them before its next tick.
#[derive(Default)]
struct Inbox {
    rows: Mutex<Vec<(RowSpec, EventSender)>>,
    board: Board,
}

impl Rows for Inbox {
    fn submit(&self, spec: RowSpec, events: EventSender) -> Result<()> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).push((spec, events));
        Ok(())
    }

    fn command(&self, _: CacheCommand) -> Result<()> {
        unreachable!("nobody asks what is kept")
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.board.read()
    }

    fn health(&self) -> Health {
        Health::Serving
    }
}

/// A request, what it should hear, and what it heard.
struct Client {
    arrives: u64,
    leaves: Option<u64>,
    /// When somebody asks for its end.
    cancelled: Option<u64>,
    /// Whether it was live then.
    was_cancelled: bool,
    request: GenerateRequest,
    generation: Option<Generation>,
    text: String,
    end: Option<Result<(FinishReason, Usage)>>,
}

struct World {
    engine: Engine,
    inbox: Arc<Inbox>,
    scheduler: Scheduler<ScriptedExecutor>,
    clock: Clock,
    tokenizer: Tokenizer,
    clients: Vec<Client>,
    faulty: bool,
    config: SchedulerConfig,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let faulty = random.once_in(3);
        let config = SchedulerConfig {
            batch_rows_max: random.size(1, 5),
            prefill_chunk_tokens: random.size(1, 12),
            waiting_rows_max: random.size(1, 8),
            kv_budget_bytes: *random.pick(&[None, None, Some(ROW_BYTES * 3), Some(ROW_BYTES / 2)]),
            ..SchedulerConfig::default()
        };
        let (clock, inbox) = (Clock::manual(), Arc::new(Inbox::default()));
        let script = Script { faults: faults(&mut random, faulty), ..Script::default() };
        let executor = ScriptedExecutor::new(script, SharedJournal::default());
        let board = inbox.board.clone();
        let tokenizer = tokenizer();
        let rows: Arc<dyn Rows> = inbox.clone();
        Self {
            engine: Engine::new(card(), tokenizer.clone(), rows, config.clone(), clock.clone()),
            scheduler: Scheduler::new(config.clone(), executor, clock.clone(), board),
            clients: (0..random.size(1, REQUESTS_MAX)).map(|id| client(&mut random, id)).collect(),
            inbox,
            clock,
            tokenizer,
            faulty,
            config,
        }
    }

    fn run(&mut self) {
        for tick in 0.. {
            assert!(tick < 4000, "somebody never ends");
            self.arrive(tick);
            let rows = std::mem::take(
                &mut *self.inbox.rows.lock().unwrap_or_else(PoisonError::into_inner),
            );
            for (spec, events) in rows {
                self.scheduler.submit(spec, events);
            }
            self.clock.advance(Duration::from_millis(3));
            self.scheduler.tick();
            self.scheduler.check_integrity();
            self.clients.iter_mut().for_each(Client::listen);
            let waiting = self.clients.iter().any(|client| !client.is_done(tick));
            if !waiting && self.scheduler.live_rows() == 0 {
                break;
            }
        }
        for client in &self.clients {
            self.check(client);
        }
        self.check_places();
    }

    fn arrive(&mut self, tick: u64) {
        for client in &mut self.clients {
            if client.leaves == Some(tick) {
                client.generation = None;
            }
            if client.cancelled == Some(tick) {
                client.was_cancelled = self.engine.cancel(&client.request.id);
                assert_eq!(client.was_cancelled, client.generation.is_some());
            }
            if client.arrives == tick {
                let asked = self.engine.generate(client.request.clone()).now_or_never();
                match asked.expect("short prompts are read at once") {
                    Ok(generation) => client.generation = Some(generation),
                    Err(error) => client.end = Some(Err(error)),
                }
            }
        }
    }

    fn check(&self, client: &Client) {
        let (expected, reason) = self.expected(&client.request);
        if let (true, Some(Ok((FinishReason::Cancelled, _)))) = (client.was_cancelled, &client.end)
        {
            // What was held back in case a stop string began there is said too; half a character is not.
            let said = client.text.trim_end_matches('\u{FFFD}');
            let (naive, _) = self.naive(&client.request);
            assert!(naive.starts_with(said), "{said:?} of {naive:?}");
            return;
        }
        if client.leaves.is_some_and(|leaves| leaves > client.arrives) && client.end.is_none() {
            assert!(expected.starts_with(&client.text), "{:?} of {expected:?}", client.text);
            return;
        }
        match client.end.as_ref().expect("whoever stayed heard an end") {
            Ok((heard, usage)) => {
                let stopped = client.request.stop.iter().any(|stop| !stop.is_empty());
                assert!(!client.was_cancelled || stopped, "{heard:?} after a cancellation");
                assert_eq!((client.text.as_str(), *heard), (expected.as_str(), reason));
                assert!(usage.generated_tokens > 0);
            }
            Err(error) => self.check_refusal(client, error),
        }
    }

    fn check_refusal(&self, client: &Client, error: &Error) {
        match error.code() {
            Code::QueueFull | Code::InvalidRequest | Code::ContextLengthExceeded => {
                assert_eq!(client.text, "", "{error}");
            }
            Code::OverBudget => assert!(self.config.kv_budget_bytes.is_some(), "{error}"),
            Code::Internal | Code::EngineFailed => assert!(self.faulty, "{error}"),
            other => panic!("{other:?}: {error}"),
        }
    }

    /// The naive model's text up to the first stop string, and why it ends there.
    fn expected(&self, request: &GenerateRequest) -> (String, FinishReason) {
        let (text, reason) = self.naive(request);
        let stops = request.stop.iter().filter_map(|stop| text.find(stop));
        match (stops.min(), reason) {
            (Some(stop), _) => (text[..stop].to_owned(), FinishReason::Stop),
            (None, scheduler::FinishReason::Stop) => (text, FinishReason::Stop),
            (None, _) => (text, FinishReason::Length),
        }
    }

    /// The naive model's text, stop strings and all.
    fn naive(&self, request: &GenerateRequest) -> (String, scheduler::FinishReason) {
        let Prompt::Tokens(prompt) = &request.prompt else { panic!("prompts are tokens") };
        let room = CONTEXT_TOKENS.saturating_sub(prompt.len());
        let max_tokens = request.max_tokens.map_or(room, |most| most.get().min(room));
        let mut spec = script::row("", prompt.clone(), max_tokens);
        spec.stop_tokens = self.tokenizer.stop_tokens();
        let naive = answer(&spec);
        let text = self.tokenizer.decode(&naive.tokens).expect("all ids are in the vocabulary");
        (text, naive.reason)
    }

    /// As many requests as ever are accepted again, if any row fits: no end kept its place.
    fn check_places(&self) {
        if self.config.kv_budget_bytes.is_some_and(|bytes| bytes < ROW_BYTES) {
            return;
        }
        let places = self.config.live_rows_max();
        let request = |id: usize| GenerateRequest {
            max_tokens: NonZeroUsize::new(1),
            ..GenerateRequest::new(format!("late-{id}"), Prompt::Tokens(vec![1]))
        };
        let asked: Vec<_> = (0..=places)
            .map(|id| self.engine.generate(request(id)).now_or_never().expect("read at once"))
            .collect();
        assert!(asked[..places].iter().all(Result::is_ok));
        assert_eq!(asked[places].as_ref().map(Generation::id).unwrap_err().code(), Code::QueueFull);
    }
}

impl Client {
    fn listen(&mut self) {
        while let Some(generation) = &mut self.generation {
            match generation.next().now_or_never() {
                None => return,
                Some(None) => self.generation = None,
                Some(Some(event)) => self.hear(event),
            }
        }
    }

    fn hear(&mut self, event: Result<AnswerEvent>) {
        assert!(self.end.is_none(), "{event:?} after {:?}", self.end);
        match event {
            Ok(AnswerEvent::Part(AnswerPart::Text(text))) => self.text.push_str(&text),
            Ok(AnswerEvent::Finished { reason, usage }) => self.end = Some(Ok((reason, usage))),
            Ok(other) => panic!("plain text holds {other:?}"),
            Err(error) => self.end = Some(Err(error)),
        }
    }

    fn is_done(&self, tick: u64) -> bool {
        self.arrives < tick && self.generation.is_none()
    }
}

fn client(random: &mut Random, id: usize) -> Client {
    let arrives = random.between(0, 30);
    let prompt = (0..random.size(0, 20)).map(|_| random.between(0, 60) as u32).collect();
    let stop = (0..random.size(0, 2)).map(|_| {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        (0..random.size(1, 2)).map(|_| char::from(*random.pick(letters))).collect()
    });
    let stop = stop.collect();
    let request = GenerateRequest {
        max_tokens: NonZeroUsize::new(random.size(0, 30)),
        priority: *random.pick(&Priority::ALL),
        stop,
        ..GenerateRequest::new(id.to_string(), Prompt::Tokens(prompt))
    };
    let leaves = random.once_in(4).then(|| arrives + random.between(0, 25));
    let cancelled = random.once_in(4).then(|| arrives + random.between(0, 25));
    Client {
        arrives,
        leaves,
        cancelled,
        was_cancelled: false,
        request,
        generation: None,
        text: String::new(),
        end: None,
    }
}

fn faults(random: &mut Random, faulty: bool) -> Vec<(Call, u64, Fault)> {
    let count = if faulty { random.size(1, 3) } else { 0 };
    (0..count).map(|_| (*random.pick(&Call::ALL), random.between(0, 20), Fault::Error)).collect()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&goldens::checkpoint("llama-tiny")).unwrap()
}

fn card() -> ModelCard {
    ModelCard {
        id: "scripted".to_owned(),
        context_tokens: CONTEXT_TOKENS,
        vocab_size: 288,
        dtype: "none".to_owned(),
        back_end: "none".to_owned(),
        kv_scheme: "off".to_owned(),
        capabilities: ModelCapabilities::default(),
        sampling_defaults: SamplingParams::default(),
        max_tokens_default: CONTEXT_TOKENS,
        keeps_billing_line: false,
        request_defaults: RequestDefaults::default(),
        kv: KvProfile { layers: vec![LayerBytes::Full { token_bytes: TOKEN_KV_BYTES }] },
    }
}

#[test]
fn every_request_is_refused_with_a_reason_or_hears_its_own_text_and_one_end() {
    let replay = std::env::var("SLIPSTREAM_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in replay.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let outcome = std::panic::catch_unwind(|| World::new(seed).run());
        if let Err(panic) = outcome {
            eprintln!("replay: SLIPSTREAM_SEED={seed} cargo test -p slipstream-tests gateway");
            std::panic::resume_unwind(panic);
        }
    }
}
