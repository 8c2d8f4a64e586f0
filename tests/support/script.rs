//! A model without arrays: the next token is a hash of everything that was fed to the row before.
//!
//! So a token fed twice, left out, or fed to another row changes the rest of the answer. The
//! [`ScriptedExecutor`] keeps a row's hash where the MLX executor keeps its caches, reads its steps one
//! step late as that one does, and panics when the scheduler breaks the contract of
//! [`Executor`]. It fails where its script says so, and keeps a [`Journal`] of what it did.
//!
//! A row with a grammar says one of the tokens that its mask allows, by the same hash: as random as a
//! model's logits can be.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

use serde_json::Value;
use slipstream_engine::clock::Clock;
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::grammar::{Grammar, Guide, Mask, Matcher, Outcome};
use slipstream_engine::prompt_cache::disk::Tensor;
use slipstream_engine::prompt_cache::{Snapshot, UnreadTensor, Written};
use slipstream_engine::sampling::SamplingParams;
use slipstream_engine::scheduler::{
    Answer as Standing, Executor, FinishReason, Lane, Priority, Purpose, RowSpec, Said, Sampled,
    Stepped,
};
use slipstream_engine::telemetry::MemorySnapshot;

use crate::grammar::{closes, workers};
use crate::random::mix;

/// Tokens that the model can say.
pub const VOCABULARY: u64 = 61;
/// KV bytes of one token.
pub const TOKEN_KV_BYTES: u64 = 16;

/// A row that greets with `prompt` and may say `max_tokens`; it has no stop token.
pub fn row(id: impl Into<String>, prompt: Vec<u32>, max_tokens: usize) -> RowSpec {
    RowSpec {
        id: id.into(),
        client: "test".into(),
        lane: Lane::Continuous,
        lane_reasons: Arc::new([]),
        priority: Priority::Interactive,
        kv_bytes: kv_bytes(prompt.len(), max_tokens),
        prompt,
        boundaries: Vec::new(),
        max_tokens,
        stop_tokens: Arc::new([]),
        sampling: SamplingParams::default(),
        grammar: None,
        purpose: Purpose::Answer,
    }
}

/// The same prompt, run for its vector.
pub fn for_vector(spec: RowSpec, dimensions: Option<usize>) -> RowSpec {
    RowSpec {
        max_tokens: 0,
        kv_bytes: kv_bytes(spec.prompt.len(), 0),
        stop_tokens: Arc::new([]),
        grammar: None,
        purpose: Purpose::Vector { dimensions },
        ..spec
    }
}

/// What the caches of a row come to at most.
pub fn kv_bytes(prompt_tokens: usize, max_tokens: usize) -> u64 {
    (prompt_tokens + max_tokens) as u64 * TOKEN_KV_BYTES
}

/// What the model says to a row that runs alone, start to end: the answer to hold every run to.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What the client hears.
    pub tokens: Vec<u32>,
    /// Why it ends.
    pub reason: FinishReason,
    /// Tokens sampled, a stop token included.
    pub generated_tokens: usize,
    /// The vector that it hears instead, if the row is for one.
    pub vector: Option<Vec<f32>>,
}

/// Runs `spec` in the most naive way.
pub fn answer(spec: &RowSpec) -> Answer {
    let mut memory = Memory::new(spec);
    memory.feed(&spec.prompt);
    let mut tokens = Vec::new();
    if let Purpose::Vector { dimensions } = spec.purpose {
        let vector = Some(memory.vector(dimensions));
        return Answer { tokens, reason: FinishReason::Stop, generated_tokens: 0, vector };
    }
    let vector = None;
    let mut matcher = spec.grammar.as_ref().map(Grammar::matcher);
    let mut mask = matcher.as_mut().and_then(mask_of);
    loop {
        let token = memory.next_token(mask.as_ref());
        let generated_tokens = tokens.len() + 1;
        if spec.stop_tokens.contains(&token) {
            return Answer { tokens, reason: FinishReason::Stop, generated_tokens, vector };
        }
        tokens.push(token);
        if let Some(matcher) = &mut matcher {
            matcher.accept(token).expect("the mask allowed it");
            mask = mask_of(matcher);
            if matcher.is_satisfied() {
                return Answer { tokens, reason: FinishReason::Stop, generated_tokens, vector };
            }
        }
        if generated_tokens == spec.max_tokens {
            return Answer { tokens, reason: FinishReason::Length, generated_tokens, vector };
        }
        memory.feed(&[token]);
    }
}

fn mask_of(matcher: &mut Matcher) -> Option<Mask> {
    matcher.mask().expect("every answer of these grammars can be spelled")
}

/// A call of the executor that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Open,
    Restore,
    Prefill,
    FirstToken,
    Vector,
    Join,
    Step,
    Flush,
    Filter,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Open,
        Self::Restore,
        Self::Prefill,
        Self::FirstToken,
        Self::Vector,
        Self::Join,
        Self::Step,
        Self::Flush,
        Self::Filter,
    ];
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It returns an error.
    Error,
    /// It panics.
    Panic,
}

/// What goes wrong, and when.
#[derive(Default)]
pub struct Script {
    /// The call, which one of its kind (the first is 1), and how it fails.
    pub faults: Vec<(Call, u64, Fault)>,
    /// The chunk size whose slicing every prompt must show, if it matters.
    pub chunk_tokens: Option<usize>,
    /// Whether the last prompt token runs with the slice before it.
    pub no_tail_split: bool,
    /// Whether what is kept of a row can only be gone on with as it is.
    pub untrimmable: bool,
    /// How time passes, if calls take any.
    pub pace: Option<Pace>,
    /// Told the number of each call, of whatever kind, before that runs.
    pub interrupt: Option<Box<dyn FnMut(u64)>>,
}

impl fmt::Debug for Script {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Script").field("faults", &self.faults).finish_non_exhaustive()
    }
}

/// A device on which calls take time.
pub struct Pace {
    /// The clock that it moves.
    pub clock: Clock,
    /// What a call over so many tokens takes, given how many tokens the row or batch was fed before.
    pub cost: Box<dyn FnMut(Call, usize, usize) -> Duration>,
}

impl fmt::Debug for Pace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pace").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// What the executor did.
#[derive(Debug, Default)]
pub struct Journal {
    /// How often, and how much.
    pub counts: Counts,
    /// Ids of the rows opened, in that order.
    pub opened: Vec<String>,
    /// Ids of the rows that a fault hit.
    pub hit: BTreeSet<String>,
    /// Rows in each step dispatched, in that order.
    pub step_rows: Vec<usize>,
}

/// The figures of a [`Journal`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Calls so far, by kind.
    pub calls: [u64; Call::ALL.len()],
    /// Prompt tokens run.
    pub prompt_tokens: u64,
    /// Rows that hold memory on the device now.
    pub device_rows: usize,
    /// KV bytes that rows hold there which have not joined.
    pub solo_kv_bytes: u64,
    /// KV bytes of the batch.
    pub batch_kv_bytes: u64,
}

impl Counts {
    /// Calls of one kind.
    pub fn calls_of(&self, call: Call) -> u64 {
        self.calls[call as usize]
    }

    /// KV bytes on the device.
    pub fn kv_bytes(&self) -> u64 {
        self.solo_kv_bytes + self.batch_kv_bytes
    }

    /// Calls of all kinds.
    pub fn calls_total(&self) -> u64 {
        self.calls.iter().sum()
    }
}

/// A journal that its readers and the executor share.
#[derive(Debug, Clone, Default)]
pub struct SharedJournal(Arc<Mutex<Journal>>);

impl SharedJournal {
    /// The journal, for as long as the guard lives.
    pub fn open(&self) -> MutexGuard<'_, Journal> {
        // A scripted panic may poison it; the counts are still good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's words.
#[derive(Debug, Default)]
pub struct ScriptedExecutor {
    script: Script,
    journal: SharedJournal,
    batch: Vec<BatchRow>,
    in_flight: bool,
    /// A batch call failed, so only a reset may follow.
    broken: bool,
}

/// The device side of a row that has not joined.
#[derive(Debug)]
pub struct Solo {
    spec: RowSpec,
    memory: Memory,
    first: Option<u32>,
    guide: Option<Guide>,
    lease: Lease,
    /// Tokens of stored caches that came so far.
    stored: Vec<u32>,
}

#[derive(Debug)]
struct BatchRow {
    spec: RowSpec,
    memory: Memory,
    /// Sampled and not yet fed.
    next: u32,
    sampled_tokens: usize,
    guide: Option<Guide>,
    _lease: Lease,
}

impl ScriptedExecutor {
    /// An executor that follows `script` and writes to `journal`.
    pub fn new(script: Script, journal: SharedJournal) -> Self {
        Self { script, journal, ..Self::default() }
    }

    /// Counts a call that concerns the rows `ids` and fails it if the script says so.
    fn call<'a>(&mut self, call: Call, ids: impl Iterator<Item = &'a String>) -> Result<()> {
        let (total, nth) = {
            let counts = &mut self.journal.open().counts;
            counts.calls[call as usize] += 1;
            (counts.calls_total(), counts.calls_of(call))
        };
        if let Some(interrupt) = &mut self.script.interrupt {
            interrupt(total);
        }
        let fault = self.script.faults.iter().find(|fault| (fault.0, fault.1) == (call, nth));
        let Some((_, _, fault)) = fault else {
            return Ok(());
        };
        self.journal.open().hit.extend(ids.cloned());
        match fault {
            Fault::Error => Err(Error::new(Code::Internal, format!("scripted {call:?} {nth}"))),
            Fault::Panic => panic!("scripted {call:?} {nth}"),
        }
    }

    /// As [`ScriptedExecutor::call`], for calls whose failure leaves the batch in pieces.
    fn batch_call(&mut self, call: Call, ids: &[String]) -> Result<()> {
        assert!(!self.broken, "{call:?} on a batch that failed and was not reset");
        self.call(call, ids.iter()).inspect_err(|_| self.broken = true)
    }

    fn kept(&self, memory: &Memory) -> Kept {
        Kept { tokens: memory.tokens.clone(), untrimmable: self.script.untrimmable }
    }

    fn ids(&self) -> Vec<String> {
        self.batch.iter().map(|row| row.spec.id.clone()).collect()
    }

    /// Reads what is in flight; grammars take it in.
    fn read(&mut self) -> Vec<Said> {
        match self.in_flight {
            true => self.batch.iter_mut().map(|row| said(row.next, row.guide.as_mut())).collect(),
            false => Vec::new(),
        }
    }

    /// Lets the time pass that a call over `tokens` takes.
    fn take_time(&mut self, call: Call, tokens: usize, fed_tokens: usize) -> Duration {
        let Some(Pace { clock, cost }) = &mut self.script.pace else {
            return Duration::ZERO;
        };
        let took = cost(call, tokens, fed_tokens);
        clock.advance(took);
        took
    }

    /// Tells the journal what the batch holds, after it changed.
    fn note_batch(&self) {
        self.journal.open().counts.batch_kv_bytes = self.batch_kv_bytes();
    }

    /// The width of the batch in tokens: that of its longest row.
    fn width_tokens(&self) -> u64 {
        self.batch.iter().map(|row| row.memory.fed_tokens() as u64).max().unwrap_or(0)
    }
}

impl Executor for ScriptedExecutor {
    type Solo = Solo;
    type Snapshot = Kept;

    fn open(&mut self, spec: &RowSpec, kept: Option<Kept>) -> Result<Solo> {
        self.journal.open().opened.push(spec.id.clone());
        self.call(Call::Open, std::iter::once(&spec.id))?;
        let mut memory = Memory::new(spec);
        if let Some(kept) = kept {
            assert!(spec.prompt.starts_with(&kept.tokens), "another prompt's caches");
            assert!(spec.prompt.len() > kept.tokens.len(), "nothing is left to run");
            memory.feed(&kept.tokens);
        }
        self.take_time(Call::Open, 0, 0);
        let guide = spec.grammar.as_ref().map(|grammar| Guide::start(grammar, workers()));
        let mut lease = Lease::new(&self.journal);
        lease.hold(memory.kv_bytes());
        Ok(Solo { spec: spec.clone(), memory, first: None, guide, lease, stored: Vec::new() })
    }

    fn restore(&mut self, solo: &mut Solo, tensor: Tensor) -> Result<()> {
        assert_eq!(solo.memory.fed_tokens(), 0, "caches come back before anything is run");
        self.call(Call::Restore, std::iter::once(&solo.spec.id))?;
        solo.stored.extend(stored_tokens(&tensor.bytes));
        self.take_time(Call::Restore, 0, solo.stored.len());
        solo.lease.hold(solo.stored.len() as u64 * TOKEN_KV_BYTES);
        Ok(())
    }

    fn restored(&mut self, solo: &mut Solo, state: &Value, surplus_tokens: usize) -> Result<Kept> {
        let untrimmable = state.as_bool().expect("what `write_down` wrote");
        let tokens = std::mem::take(&mut solo.stored);
        assert!(surplus_tokens == 0 || !untrimmable, "a state was taken back");
        let kept = Kept { tokens, untrimmable };
        let own = &kept.tokens[..kept.tokens.len() - surplus_tokens];
        assert!(solo.spec.prompt.starts_with(own), "another prompt's caches");
        assert!(solo.spec.prompt.len() > own.len(), "nothing is left to run");
        solo.memory.feed(own);
        solo.lease.hold(solo.memory.kv_bytes());
        Ok(kept)
    }

    fn keep(&self, solo: &Solo) -> Option<Kept> {
        Some(self.kept(&solo.memory))
    }

    fn extract(&mut self, index: usize) -> Result<Option<Kept>> {
        Ok(Some(self.kept(&self.batch[index].memory)))
    }

    fn prefill(&mut self, solo: &mut Solo, tokens: &[u32]) -> Result<()> {
        let rest = &solo.spec.prompt[solo.memory.fed_tokens()..];
        let drain = &rest[..rest.len() - 1];
        assert!(!tokens.is_empty() && drain.starts_with(tokens), "a wrong slice of the prompt");
        if let Some(chunk_tokens) = self.script.chunk_tokens {
            let stop = solo.memory.fed_tokens() + tokens.len();
            let at_boundary = solo.spec.boundaries.contains(&stop);
            let whole = tokens.len() == drain.len().min(chunk_tokens);
            assert!(whole || at_boundary, "a prompt cut elsewhere");
        }
        self.call(Call::Prefill, std::iter::once(&solo.spec.id))?;
        self.take_time(Call::Prefill, tokens.len(), solo.memory.fed_tokens());
        solo.feed(tokens);
        Ok(())
    }

    fn first_token(&mut self, solo: &mut Solo, tokens: &[u32]) -> Result<Said> {
        let rest = &solo.spec.prompt[solo.memory.fed_tokens()..];
        assert_eq!(rest, tokens, "not the end of the prompt");
        assert!(tokens.len() == 1 || self.script.no_tail_split, "the last token is not alone");
        self.call(Call::FirstToken, std::iter::once(&solo.spec.id))?;
        self.take_time(Call::FirstToken, tokens.len(), solo.memory.fed_tokens());
        solo.feed(tokens);
        let token = solo.memory.next_token(mask_by(&mut solo.guide).as_ref());
        solo.first = Some(token);
        Ok(said(token, solo.guide.as_mut()))
    }

    fn vector(
        &mut self,
        solo: &mut Solo,
        tokens: &[u32],
        dimensions: Option<usize>,
    ) -> Result<Vec<f32>> {
        assert_eq!(
            &solo.spec.prompt[solo.memory.fed_tokens()..],
            tokens,
            "not the end of the text"
        );
        if let Some(chunk_tokens) = self.script.chunk_tokens {
            let wanted = match solo.spec.prompt.len() % chunk_tokens {
                0 => chunk_tokens,
                rest => rest,
            };
            assert_eq!(tokens.len(), wanted, "a text cut elsewhere");
        }
        self.call(Call::Vector, std::iter::once(&solo.spec.id))?;
        self.take_time(Call::Vector, tokens.len(), solo.memory.fed_tokens());
        solo.feed(tokens);
        Ok(solo.memory.vector(dimensions))
    }

    fn join(&mut self, solo: Solo) -> Result<()> {
        assert!(!self.in_flight, "a row joins while a step is in flight");
        let mut ids = self.ids();
        ids.push(solo.spec.id.clone());
        self.batch_call(Call::Join, &ids)?;
        let next = solo.first.expect("a row joins after its token 0");
        let Solo { spec, memory, guide, mut lease, .. } = solo;
        lease.hold(0);
        self.batch.push(BatchRow { spec, memory, next, sampled_tokens: 1, guide, _lease: lease });
        self.note_batch();
        Ok(())
    }

    fn step(&mut self, _: &Clock) -> Result<Stepped> {
        assert!(!self.batch.is_empty(), "a step without rows");
        let wanted = self.batch.iter().any(|row| row.sampled_tokens < row.spec.max_tokens);
        assert!(wanted, "a step for rows that all have their last token");
        self.batch_call(Call::Step, &self.ids())?;
        let said = self.read();
        for row in &mut self.batch {
            row.memory.feed(&[row.next]);
            row.next = row.memory.next_token(mask_by(&mut row.guide).as_ref());
            row.sampled_tokens += 1;
        }
        self.in_flight = true;
        self.note_batch();
        self.journal.open().step_rows.push(self.batch.len());
        let waited = self.take_time(Call::Step, self.batch.len(), self.width_tokens() as usize);
        Ok(Stepped { said, waited, ..Stepped::default() })
    }

    fn flush(&mut self) -> Result<Vec<Said>> {
        self.batch_call(Call::Flush, &self.ids())?;
        let said = self.read();
        self.in_flight = false;
        Ok(said)
    }

    fn filter(&mut self, keep: &[usize]) -> Result<()> {
        assert!(keep.is_sorted_by(|left, right| left < right), "not ascending: {keep:?}");
        assert!(keep.iter().all(|index| *index < self.batch.len()), "out of range: {keep:?}");
        assert!(keep.len() < self.batch.len(), "a filter that drops nothing");
        let kept: Vec<String> =
            keep.iter().map(|index| self.batch[*index].spec.id.clone()).collect();
        self.batch_call(Call::Filter, &kept)?;
        let mut index = 0..;
        self.batch.retain(|_| index.next().is_some_and(|index| keep.contains(&index)));
        self.in_flight &= !self.batch.is_empty();
        self.note_batch();
        Ok(())
    }

    fn reset(&mut self) {
        self.batch.clear();
        self.in_flight = false;
        self.broken = false;
        self.note_batch();
    }

    fn solo_kv_bytes(&self, solo: &Solo) -> u64 {
        solo.memory.kv_bytes() + solo.stored.len() as u64 * TOKEN_KV_BYTES
    }

    fn batch_kv_bytes(&self) -> u64 {
        self.batch.len() as u64 * self.width_tokens() * TOKEN_KV_BYTES
    }

    fn memory(&self) -> MemorySnapshot {
        MemorySnapshot { active_bytes: self.batch_kv_bytes(), ..MemorySnapshot::default() }
    }
}

/// What a row remembers of the tokens fed to it, in place of its KV caches.
#[derive(Debug, Clone)]
struct Memory {
    /// Of the tokens.
    hash: u64,
    tokens: Vec<u32>,
    /// The row's seed, which is part of what it will say.
    seed: u64,
}

/// What is kept of a row: the tokens that it was fed.
#[derive(Debug, Clone)]
pub struct Kept {
    tokens: Vec<u32>,
    untrimmable: bool,
}

impl Snapshot for Kept {
    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn bytes(&self) -> u64 {
        self.tokens.len() as u64 * TOKEN_KV_BYTES
    }

    fn can_trim(&self) -> bool {
        !self.untrimmable
    }

    fn share(&self) -> Self {
        self.clone()
    }

    fn trim(&mut self, tokens: usize) -> Result<()> {
        assert!(!self.untrimmable, "a state was taken back");
        self.tokens.truncate(self.tokens.len() - tokens);
        Ok(())
    }

    fn write_down(&self) -> Result<Written> {
        let pieces = self.tokens.chunks(self.tokens.len().div_ceil(STORED_PIECES).max(1));
        let tensors = pieces.map(|tokens| {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| stored_bytes(*token)).collect();
            let tensor = Tensor { dtype: "U32".to_owned(), shape: vec![tokens.len(), 4], bytes };
            UnreadTensor { spec: tensor.spec(), read: Box::new(move || Ok(tensor)) }
        });
        Ok(Written { state: Value::from(self.untrimmable), tensors: tensors.collect() })
    }
}

/// Tensors of a stored row at most.
const STORED_PIECES: usize = 5;

/// A token, in as many bytes as its caches take.
fn stored_bytes(token: u32) -> [u8; TOKEN_KV_BYTES as usize] {
    let mut bytes = [0; TOKEN_KV_BYTES as usize];
    bytes[..4].copy_from_slice(&token.to_le_bytes());
    bytes
}

fn stored_tokens(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let tokens = bytes.chunks_exact(TOKEN_KV_BYTES as usize);
    tokens.map(|token| u32::from_le_bytes([token[0], token[1], token[2], token[3]]))
}

impl Memory {
    /// Nothing was fed.
    fn new(spec: &RowSpec) -> Self {
        Self { hash: 0, tokens: Vec::new(), seed: spec.sampling.seed.unwrap_or(0) }
    }

    fn feed(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.hash =
                mix(self.hash ^ (u64::from(*token) + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
        }
        self.tokens.extend(tokens);
    }

    fn fed_tokens(&self) -> usize {
        self.tokens.len()
    }

    fn kv_bytes(&self) -> u64 {
        self.tokens.len() as u64 * TOKEN_KV_BYTES
    }

    /// Numbers that tell all that was fed, the first `dimensions` of them.
    fn vector(&self, dimensions: Option<usize>) -> Vec<f32> {
        let bits = mix(self.hash);
        let numbers = [0, 16, 32, 48].map(|shift| (bits >> shift & 0xffff) as f32);
        numbers[..dimensions.unwrap_or(numbers.len())].to_vec()
    }

    /// What it says next, among what `mask` allows if there is one.
    fn next_token(&self, mask: Option<&Mask>) -> u32 {
        let bits = mix(self.hash ^ self.seed);
        let Some(mask) = mask else {
            return (bits % VOCABULARY) as u32;
        };
        let allowed: Vec<u32> = mask.allowed().collect();
        let closing: Vec<u32> = allowed.iter().copied().filter(|token| closes(*token)).collect();
        let choices = if bits >> 63 == 0 && !closing.is_empty() { closing } else { allowed };
        choices[(bits % choices.len() as u64) as usize]
    }
}

/// The token, and what it made of the answer by the row's grammar.
fn said(token: u32, guide: Option<&mut Guide>) -> Said {
    let sampled = Sampled::from(token);
    let Some(guide) = guide else {
        return sampled.into();
    };
    guide.take(token, workers());
    let answer = match guide.outcome() {
        Outcome::Open(_) => Standing::Open,
        Outcome::Satisfied => Standing::Whole,
        Outcome::Stuck(error) => Standing::Stuck(error.clone()),
    };
    Said { sampled, answer }
}

/// The mask of a row, if it has a grammar and its answer goes on.
fn mask_by(guide: &mut Option<Guide>) -> Option<Mask> {
    match guide.as_mut()?.outcome() {
        Outcome::Open(mask) => Some(mask.clone()),
        Outcome::Satisfied | Outcome::Stuck(_) => None,
    }
}

impl Solo {
    fn feed(&mut self, tokens: &[u32]) {
        self.memory.feed(tokens);
        self.lease.hold(self.memory.kv_bytes());
        self.lease.journal.open().counts.prompt_tokens += tokens.len() as u64;
    }
}

/// Counts a row as present on the device for as long as it lives, and what it holds by itself.
#[derive(Debug)]
struct Lease {
    journal: SharedJournal,
    kv_bytes: u64,
}

impl Lease {
    fn new(journal: &SharedJournal) -> Self {
        journal.open().counts.device_rows += 1;
        Self { journal: journal.clone(), kv_bytes: 0 }
    }

    fn hold(&mut self, kv_bytes: u64) {
        let counts = &mut self.journal.open().counts;
        counts.solo_kv_bytes = counts.solo_kv_bytes - self.kv_bytes + kv_bytes;
        self.kv_bytes = kv_bytes;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.hold(0);
        self.journal.open().counts.device_rows -= 1;
    }
}
