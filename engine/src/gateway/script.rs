//! Rows that play a script instead of running a model, and a byte-level tokenizer to go with them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokio::sync::watch;

use super::{
    Cuts, Embeddings, Engine, Health, ModelCapabilities, ModelCard, RequestDefaults, Rows,
    TextVectors,
};
use crate::cache::{KvProfile, LayerBytes};
use crate::clock::Clock;
use crate::config::SchedulerConfig;
use crate::error::{Error, Result};
use crate::limits::LISTED_TOKENS_MAX;
use crate::prompt_cache::{Origin, PromptId};
use crate::sampling::{Sampled, SamplingParams, TokenLogprobs};
use crate::scheduler::{
    self, CacheCommand, Cleared, EventSender, FinishReason, Flushed, KeptPrompt, KeptPrompts,
    Purpose, RowEvent, RowSpec, RowUsage,
};
use crate::telemetry::Snapshot;
use crate::tokenizer::Tokenizer;

/// Ids below are single bytes; these two are special.
pub(crate) const IM_START: u32 = 256;
/// Ends a generation.
pub(crate) const IM_END: u32 = 257;
/// Ids of the tokenizer, and so of the model.
pub(crate) const VOCAB_SIZE: usize = 258;
/// What a row pretends to have cost.
pub(crate) const QUEUE_MS: f64 = 3.5;
/// The same.
pub(crate) const PREFILL_MS: f64 = 7.25;
/// Prompt tokens that a cache pretends to have had.
pub(crate) const CACHED_TOKENS: usize = 1;
/// Numbers of a vector.
pub(crate) const DIMENSIONS: usize = 4;
/// What the caches of a row pretend to take per token.
pub(crate) const TOKEN_KV_BYTES: u64 = 10;

/// What a row does next.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// It generates this, which ends it if it is a stop token or the last one allowed.
    Token(u32),
    /// It waits until [`ScriptedRows::open_gate`].
    Gate,
    /// It ends in an error.
    Fail(Error),
    /// Its sender is dropped without an end.
    Vanish,
}

type Script = dyn Fn(&RowSpec) -> Vec<Step> + Send + Sync;

/// Plays a script per row on the test's runtime; a script that runs out generates a stop token.
pub(crate) struct ScriptedRows {
    script: Box<Script>,
    specs: Mutex<Vec<RowSpec>>,
    gate: watch::Sender<bool>,
    at_gate: watch::Sender<usize>,
    cancelled: watch::Sender<Vec<String>>,
    pub(crate) snapshot: Mutex<Arc<Snapshot>>,
    pub(crate) health: Mutex<Health>,
    /// What it pretends to keep.
    pub(crate) kept: Mutex<KeptPrompts>,
}

impl ScriptedRows {
    pub(crate) fn new(script: impl Fn(&RowSpec) -> Vec<Step> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            specs: Mutex::default(),
            gate: watch::Sender::new(false),
            at_gate: watch::Sender::default(),
            cancelled: watch::Sender::default(),
            snapshot: Mutex::default(),
            health: Mutex::new(Health::Serving),
            kept: Mutex::default(),
        })
    }

    /// Every row that was submitted, in order.
    pub(crate) fn specs(&self) -> Vec<RowSpec> {
        self.specs.lock().clone()
    }

    /// Lets rows pass their gates.
    pub(crate) fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    /// Resolves when `count` rows have come to a gate, in all.
    pub(crate) async fn waits_at_gate(&self, count: usize) {
        let mut at_gate = self.at_gate.subscribe();
        at_gate.wait_for(|rows| *rows >= count).await.unwrap();
    }

    /// Resolves when `count` rows have seen that their client left.
    pub(crate) async fn cancelled(&self, count: usize) -> Vec<String> {
        let mut cancelled = self.cancelled.subscribe();
        cancelled.wait_for(|ids| ids.len() >= count).await.unwrap().clone()
    }
}

impl Rows for ScriptedRows {
    fn submit(&self, spec: RowSpec, events: EventSender) -> Result<()> {
        self.specs.lock().push(spec.clone());
        let steps = (self.script)(&spec);
        let (gate, cancelled) = (self.gate.subscribe(), self.cancelled.clone());
        let at_gate = self.at_gate.clone();
        tokio::spawn(async move {
            let arrived = || at_gate.send_modify(|rows| *rows += 1);
            if !play(&spec, steps, &events, &gate, arrived).await {
                cancelled.send_modify(|ids| ids.push(spec.id));
            }
        });
        Ok(())
    }

    fn command(&self, command: CacheCommand) -> Result<()> {
        command_on(&mut self.kept.lock(), command);
        Ok(())
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock())
    }

    fn health(&self) -> Health {
        self.health.lock().clone()
    }
}

/// A prompt of this text that is kept in the tiers that have bytes of it.
pub(crate) fn kept_prompt(
    text: &str,
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
) -> KeptPrompt {
    let tokens = tokenizer().encode(text, false).unwrap();
    let listed = tokens.len().min(LISTED_TOKENS_MAX);
    KeptPrompt {
        id: PromptId::of(&tokens),
        tokens: tokens.len(),
        first_tokens: tokens[..listed].to_vec(),
        last_tokens: tokens[tokens.len() - listed..].to_vec(),
        memory_bytes,
        disk_bytes,
        age: Duration::from_millis(2500),
        idle: Duration::from_millis(1250),
        hits: 3,
        pinned: false,
        origin: Origin::Finished,
    }
}

/// Does to `kept` what a scheduler would do.
fn command_on(kept: &mut KeptPrompts, command: CacheCommand) {
    let count = |kept: &KeptPrompts, pinned: bool| {
        kept.prompts.iter().filter(|prompt| prompt.pinned || !pinned).count()
    };
    match command {
        CacheCommand::List { reply } => drop(reply.send(kept.clone())),
        CacheCommand::Pin { id, pinned, reply } => {
            let prompt = kept.prompts.iter_mut().find(|prompt| prompt.id == id);
            let _ = reply.send(prompt.map(|prompt| prompt.pinned = pinned).is_some());
        }
        CacheCommand::Delete { id, reply } => {
            let before = kept.prompts.len();
            kept.prompts.retain(|prompt| prompt.id != id);
            let _ = reply.send(kept.prompts.len() < before);
        }
        CacheCommand::Clear { pinned, reply } => {
            let (all, all_pinned) = (count(kept, false), count(kept, true));
            kept.prompts.retain(|prompt| prompt.pinned && !pinned);
            let (left, kept_pinned) = (kept.prompts.len(), count(kept, true));
            let deleted_pinned = all_pinned - kept_pinned;
            let _ = reply.send(Cleared { deleted: all - left, deleted_pinned, kept_pinned });
        }
        CacheCommand::Flush { reply } => {
            let saved = kept.prompts.len() as u64;
            let flushed = |disk| Flushed { complete: true, saved, unsaved: 0, disk };
            let _ = reply.send(kept.disk.clone().map(flushed).ok_or_else(scheduler::no_disk));
        }
    }
}

/// Plays a row to its end; `false` when its client left before.
async fn play(
    spec: &RowSpec,
    steps: Vec<Step>,
    events: &EventSender,
    gate: &watch::Receiver<bool>,
    arrived_at_gate: impl Fn(),
) -> bool {
    let mut generated = 0;
    let finished = |reason, generated| {
        let (prompt_tokens, generated_tokens) = (spec.prompt.len(), generated);
        let usage = RowUsage {
            prompt_tokens,
            cached_tokens: CACHED_TOKENS,
            generated_tokens,
            queue_ms: QUEUE_MS,
            prefill_ms: PREFILL_MS,
            decode_ms: 0.0,
        };
        RowEvent::Finished { reason, usage }
    };
    let prefilled = RowEvent::Prefilled {
        near: None,
        cached_tokens: CACHED_TOKENS,
        queue_ms: QUEUE_MS,
        prefill_ms: PREFILL_MS,
    };
    for step in steps.into_iter().chain([Step::Token(IM_END)]) {
        tokio::task::yield_now().await;
        match (step, spec.purpose) {
            (Step::Token(_), Purpose::Vector { dimensions }) => {
                events.send(prefilled.clone());
                events.send(RowEvent::Vector(vector(&spec.prompt, dimensions)));
                return events.send(finished(FinishReason::Stop, 0));
            }
            (Step::Token(token), Purpose::Answer) => {
                if generated == 0 {
                    events.send(prefilled.clone());
                }
                generated += 1;
                if spec.stop_tokens.contains(&token) {
                    return events.send(finished(FinishReason::Stop, generated));
                }
                if !events.send(RowEvent::Token(sampled(spec, token, generated))) {
                    return false;
                }
                if generated == spec.max_tokens {
                    return events.send(finished(FinishReason::Length, generated));
                }
            }
            (Step::Gate, _) => {
                arrived_at_gate();
                while !*gate.borrow() {
                    if events.is_closed() {
                        return false;
                    }
                    tokio::task::yield_now().await;
                }
            }
            (Step::Fail(error), _) => return events.send(RowEvent::Failed(error)),
            (Step::Vanish, _) => return true,
        }
    }
    unreachable!("the last step is a stop token")
}

/// The first numbers of a text's vector are its first tokens; the rest are halves.
fn vector(tokens: &[u32], dimensions: Option<usize>) -> Vec<f32> {
    let tokens = tokens.iter().map(|token| *token as f32);
    tokens.chain(std::iter::repeat(0.5)).take(dimensions.unwrap_or(DIMENSIONS)).collect()
}

/// The `nth` token of an answer, with log-probabilities that tell its place if they are asked for: half its
/// number for itself, and the tokens that follow it in the vocabulary as ever less likely alternatives.
pub(crate) fn sampled(spec: &RowSpec, token: u32, nth: usize) -> Sampled {
    let logprobs = spec.sampling.logprobs.map(|top| {
        let chosen = -0.5 * nth as f32;
        let other = |rank: u32| ((token + rank) % VOCAB_SIZE as u32, chosen - rank as f32);
        Box::new(TokenLogprobs { chosen, top: (0..top).map(other).collect() })
    });
    Sampled { token, logprobs }
}

/// The steps that generate `text`.
pub(crate) fn says(text: &str) -> Vec<Step> {
    says_in(&tokenizer(), text)
}

/// The same in another vocabulary.
pub(crate) fn says_in(tokenizer: &Tokenizer, text: &str) -> Vec<Step> {
    tokenizer.encode(text, false).unwrap().into_iter().map(Step::Token).collect()
}

/// An engine with a context of 4096 tokens on `rows`.
pub(crate) fn engine(rows: Arc<ScriptedRows>) -> Engine {
    engine_with(rows, SchedulerConfig::default())
}

/// The same under another configuration.
pub(crate) fn engine_with(rows: Arc<ScriptedRows>, scheduler: SchedulerConfig) -> Engine {
    engine_at(rows, scheduler, Clock::monotonic())
}

/// The same under a clock.
pub(crate) fn engine_at(
    rows: Arc<ScriptedRows>,
    scheduler: SchedulerConfig,
    clock: Clock,
) -> Engine {
    Engine::new(card(), tokenizer(), rows, scheduler, clock)
}

/// An engine that makes vectors too.
pub(crate) fn engine_that_embeds(rows: Arc<ScriptedRows>) -> Engine {
    let mut card = card();
    card.capabilities.embeddings = Embeddings::Vectors(vectors());
    Engine::new(card, tokenizer(), rows, SchedulerConfig::default(), Clock::monotonic())
}

/// How the scripted model makes vectors: of any length up to [`DIMENSIONS`].
pub(crate) fn vectors() -> TextVectors {
    let (dimensions, cuts) = (DIMENSIONS, Cuts::Any);
    TextVectors { dimensions, cuts, prefix: String::new(), text_tokens_max: None }
}

/// An engine whose model has another tokenizer.
pub(crate) fn engine_of(rows: Arc<ScriptedRows>, tokenizer: Tokenizer) -> Engine {
    let card = ModelCard { vocab_size: tokenizer.vocab_size(), ..card() };
    Engine::new(card, tokenizer, rows, SchedulerConfig::default(), Clock::monotonic())
}

/// The scripted model.
pub(crate) fn card() -> ModelCard {
    ModelCard {
        id: "lab/bytes".to_owned(),
        context_tokens: 4096,
        vocab_size: VOCAB_SIZE,
        dtype: "float32".to_owned(),
        back_end: "script".to_owned(),
        kv_scheme: "off".to_owned(),
        capabilities: ModelCapabilities::default(),
        sampling_defaults: SamplingParams::default(),
        max_tokens_default: 4096,
        keeps_billing_line: false,
        request_defaults: RequestDefaults::default(),
        kv: KvProfile { layers: vec![LayerBytes::Full { token_bytes: TOKEN_KV_BYTES }] },
    }
}

/// One token per byte, two special tokens and a ChatML template.
pub(crate) fn tokenizer() -> Tokenizer {
    tokenizer_of(CHATML, &[])
}

const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
        {{ message.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The same with another template, and more special tokens.
pub(crate) fn tokenizer_of(template: &str, special_tokens: &[&str]) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    let mut json = tokenizer_json();
    let ids = u32::try_from(VOCAB_SIZE).unwrap()..;
    let more = ids.zip(special_tokens).map(|(id, token)| special(id, token));
    json["added_tokens"].as_array_mut().unwrap().extend(more);
    write("tokenizer.json", json.to_string());
    let config = json!({"eos_token": "<|im_end|>", "chat_template": template});
    write("tokenizer_config.json", config.to_string());
    Tokenizer::load(dir.path()).unwrap()
}

fn tokenizer_json() -> Value {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let vocab: Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, byte)| (byte.to_string(), json!(id))).collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(IM_START, "<|im_start|>"), special(IM_END, "<|im_end|>")],
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "vocab": vocab, "merges": [],
        },
    })
}

fn special(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}
