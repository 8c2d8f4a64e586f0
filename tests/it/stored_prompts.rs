//! Prompts on disk, as a scheduler uses them: conversations go on after restarts, whatever happened to the files.
//!
//! The model has no arrays, the folder and its files are real. `SLIPSTREAM_SEED=n` replays one seed.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use slipstream_engine::clock::Clock;
use slipstream_engine::config::SchedulerConfig;
use slipstream_engine::error::{Code, Error};
use slipstream_engine::limits::{CACHE_FLUSH_MS, DISK_SETTLE_MS};
use slipstream_engine::mlx::thread::Activity;
use slipstream_engine::prompt_cache::disk::{DiskConfig, DiskTier};
use slipstream_engine::prompt_cache::{Origin, PromptId};
use slipstream_engine::scheduler::{
    Board, CacheCommand, Cleared, Flushed, KeptPrompt, KeptPrompts, Reply, RowSpec, Scheduler,
};
use slipstream_engine::telemetry::DiskCacheSnapshot;
use tokio::sync::oneshot;

use slipstream_tests::client::{Client, serve_all};
use slipstream_tests::random::Random;
use slipstream_tests::script::{
    Call, Fault, Script, ScriptedExecutor, SharedJournal, answer, kv_bytes, row,
};

const IDENTITY: &str = "0123456789abcdef";
const SEEDS: u64 = 40;

/// A process with a folder: its scheduler, clock and journal.
struct Process {
    scheduler: Scheduler<ScriptedExecutor>,
    clock: Clock,
    journal: SharedJournal,
}

fn disk(folder: &Path) -> DiskConfig {
    DiskConfig {
        folder: folder.to_owned(),
        max_bytes: 64 << 20,
        day_limit_bytes: None,
        queue_bytes: 1 << 20,
    }
}

fn config(prompt_cache_bytes: u64) -> SchedulerConfig {
    SchedulerConfig { prompt_cache_bytes, kept_prompt_tokens_min: 4, ..SchedulerConfig::default() }
}

impl Process {
    fn start(folder: &Path) -> Self {
        Self::configured(disk(folder), config(1 << 20), Script::default())
    }

    fn configured(disk: DiskConfig, config: SchedulerConfig, script: Script) -> Self {
        let (clock, journal) = (Clock::manual(), SharedJournal::default());
        let tier = DiskTier::open(disk, IDENTITY, clock.clone()).unwrap();
        let executor = ScriptedExecutor::new(script, journal.clone());
        let scheduler = Scheduler::new(config, executor, clock.clone(), Board::new());
        Self { scheduler: scheduler.with_disk(tier), clock, journal }
    }

    /// Has all of `specs` answered at once, as the model answers each alone, and says what was cached of each.
    #[track_caller]
    fn answer(&mut self, specs: &[RowSpec]) -> Vec<usize> {
        let mut clients = serve_all(&mut self.scheduler, specs.iter().cloned(), 0);
        clients.iter_mut().zip(specs).map(|(client, spec)| check_answer(client, spec)).collect()
    }

    /// The answer to a command that is answered at once.
    fn ask<T>(&mut self, command: impl FnOnce(Reply<T>) -> CacheCommand) -> T {
        let (reply, mut answer) = oneshot::channel();
        self.scheduler.command(command(reply));
        answer.try_recv().expect("it is answered at once")
    }

    fn listed(&mut self) -> KeptPrompts {
        self.ask(|reply| CacheCommand::List { reply })
    }

    /// The one prompt of exactly `tokens`.
    #[track_caller]
    fn kept(&mut self, tokens: &[u32]) -> Option<KeptPrompt> {
        let id = PromptId::of(tokens);
        self.listed().prompts.into_iter().find(|prompt| prompt.id == id)
    }

    fn pin(&mut self, tokens: &[u32], pinned: bool) -> bool {
        let id = PromptId::of(tokens);
        self.ask(|reply| CacheCommand::Pin { id, pinned, reply })
    }

    fn delete(&mut self, tokens: &[u32]) -> bool {
        let id = PromptId::of(tokens);
        self.ask(|reply| CacheCommand::Delete { id, reply })
    }

    fn clear(&mut self, pinned: bool) -> Cleared {
        self.ask(|reply| CacheCommand::Clear { pinned, reply })
    }

    /// Asks for a flush and ticks until it is answered, without letting time pass.
    fn flush(&mut self) -> Flushed {
        let mut answer = self.ask_flush();
        loop {
            self.scheduler.tick();
            match answer.try_recv() {
                Ok(flushed) => return flushed.expect("it has a disk"),
                Err(oneshot::error::TryRecvError::Empty) => std::thread::yield_now(),
                Err(closed) => panic!("{closed}"),
            }
        }
    }

    fn ask_flush(&mut self) -> oneshot::Receiver<Result<Flushed, Error>> {
        let (reply, answer) = oneshot::channel();
        self.scheduler.command(CacheCommand::Flush { reply });
        answer
    }

    /// Prompt tokens that were computed.
    fn computed_tokens(&self) -> u64 {
        self.journal.open().counts.prompt_tokens
    }

    /// Lets time pass until nothing is left to do.
    fn rest(&mut self) {
        for _ in 0..100_000 {
            match self.scheduler.tick() {
                Activity::Idle => return,
                Activity::Busy => {}
                Activity::Resting(pause) => {
                    self.clock.advance(pause);
                    std::thread::yield_now();
                }
            }
        }
        panic!("it never rests");
    }

    fn stats(&self) -> DiskCacheSnapshot {
        self.scheduler.snapshot().disk_cache.expect("it has a disk")
    }

    /// Ends it in good order.
    fn retire(mut self) {
        self.scheduler.retire();
    }
}

#[track_caller]
fn check_answer(client: &mut Client, spec: &RowSpec) -> usize {
    let expected = answer(spec);
    assert_eq!(client.tokens(), expected.tokens, "{}", spec.id);
    let (reason, usage) = client.finish().expect("the row ended without an error");
    assert_eq!(reason, expected.reason);
    usage.cached_tokens
}

fn prompt(seed: u64, tokens: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..tokens).map(|_| random.between(0, 60) as u32).collect()
}

/// `spec` and what the model answered, and what its user says then.
fn next_turn(spec: &RowSpec, seed: u64, tokens: usize) -> RowSpec {
    let mut next = spec.prompt.clone();
    next.extend(answer(spec).tokens);
    next.extend(prompt(seed, tokens));
    row(format!("{}+", spec.id), next, spec.max_tokens)
}

fn entry_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join(IDENTITY)).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_none_or(|end| end != "pin"));
    files.sort();
    files
}

#[test]
fn a_conversation_goes_on_after_a_restart_without_being_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let first = row("a", prompt(1, 300), 20);
    let mut process = Process::start(folder.path());
    assert_eq!(process.answer(std::slice::from_ref(&first)), [0]);
    process.retire();
    let mut process = Process::start(folder.path());
    let second = next_turn(&first, 2, 7);
    // The last token that was said was never fed.
    assert_eq!(process.answer(std::slice::from_ref(&second)), [319]);
    assert_eq!(process.computed_tokens(), 8);
    let stats = process.stats();
    assert_eq!((stats.restored, stats.restored_tokens), (1, 319));
    let third = next_turn(&second, 3, 5);
    assert_eq!(
        process.answer(&[third]),
        [second.prompt.len() + 19],
        "what was restored is in memory"
    );
    assert_eq!(process.stats().restored, 1);
}

#[test]
fn what_nobody_uses_for_a_while_is_written_down_and_what_is_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path());
    let mut turn = row("a", prompt(1, 100), 10);
    for seed in 0..5 {
        process.answer(std::slice::from_ref(&turn));
        process.clock.advance(Duration::from_millis(DISK_SETTLE_MS - 100));
        turn = next_turn(&turn, seed, 6);
    }
    assert_eq!(process.stats().written_bytes, 0, "the conversation is in use");
    process.rest();
    let stats = process.stats();
    assert_eq!((stats.saved, stats.entries, entry_files(folder.path()).len()), (1, 1, 1));
    // No retirement: a process that is killed now has lost nothing.
    drop(process);
    let mut process = Process::start(folder.path());
    assert!(process.answer(&[turn])[0] > 100);
}

#[test]
fn sub_agents_restore_the_system_prompt_that_they_share() {
    let folder = tempfile::tempdir().unwrap();
    let system = prompt(1, 200);
    let agent = |index: u32| {
        let mut tokens = system.clone();
        tokens.extend([index, 7, 7]);
        RowSpec { boundaries: vec![200], ..row(format!("{index}"), tokens, 5) }
    };
    for untrimmable in [false, true] {
        let folder = folder.path().join(format!("{untrimmable}"));
        let script = || Script { untrimmable, ..Script::default() };
        let mut process = Process::configured(disk(&folder), config(1 << 20), script());
        process.answer(&[agent(0)]);
        process.retire();
        let mut process = Process::configured(disk(&folder), config(1 << 20), script());
        let agents: Vec<RowSpec> = (1..5).map(agent).collect();
        assert_eq!(process.answer(&agents), [200; 4]);
        assert_eq!((process.computed_tokens(), process.stats().restored), (12, 1));
    }
}

#[test]
fn an_entry_that_no_memory_holds_is_spilled_and_serves_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let small = config(kv_bytes(50, 0));
    let mut process = Process::configured(disk(folder.path()), small.clone(), Script::default());
    let spec = row("a", prompt(1, 100), 5);
    process.answer(std::slice::from_ref(&spec));
    process.rest();
    assert_eq!(process.stats().saved, 1);
    let next = next_turn(&spec, 2, 4);
    assert_eq!(process.answer(&[next]), [104]);
}

#[test]
fn what_is_evicted_before_its_time_is_spilled() {
    let folder = tempfile::tempdir().unwrap();
    let one = config(kv_bytes(150, 0));
    let mut process = Process::configured(disk(folder.path()), one, Script::default());
    let specs: Vec<RowSpec> =
        (0..3).map(|seed| row(format!("{seed}"), prompt(seed, 100), 5)).collect();
    for spec in &specs {
        process.answer(std::slice::from_ref(spec));
    }
    process.rest();
    assert_eq!(process.stats().saved, 3);
    for (seed, spec) in specs.iter().enumerate() {
        assert_eq!(process.answer(&[next_turn(spec, 10 + seed as u64, 3)]), [104]);
    }
}

#[test]
fn an_entry_that_does_not_fit_beside_the_live_rows_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let long = row("long", prompt(1, 1000), 5);
    let mut process = Process::start(folder.path());
    process.answer(std::slice::from_ref(&long));
    process.retire();
    let short = row("short", long.prompt[..500].to_vec(), 5);
    let budget = |bytes| SchedulerConfig { kv_budget_bytes: Some(bytes), ..config(1 << 20) };
    for (bytes, cached_tokens) in [(kv_bytes(600, 0), 0), (kv_bytes(1100, 0), 499)] {
        let mut process =
            Process::configured(disk(folder.path()), budget(bytes), Script::default());
        assert_eq!(process.answer(std::slice::from_ref(&short)), [cached_tokens], "{bytes}");
    }
}

#[test]
fn a_long_entry_is_not_read_for_a_short_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let long = row("long", prompt(1, 1000), 5);
    let mut process = Process::start(folder.path());
    process.answer(std::slice::from_ref(&long));
    process.retire();
    let mut process = Process::start(folder.path());
    assert_eq!(process.answer(&[row("short", long.prompt[..40].to_vec(), 5)]), [0]);
    assert_eq!(process.answer(&[row("longer", long.prompt[..120].to_vec(), 5)]), [119]);
}

#[test]
fn a_client_that_leaves_while_its_prompt_is_restored_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let first = row("a", prompt(1, 300), 5);
    let mut process = Process::start(folder.path());
    process.answer(std::slice::from_ref(&first));
    process.retire();
    // Each tensor takes longer than a tick may.
    let clock = Clock::manual();
    let passing = clock.clone();
    let cost = move |call, _, _| match call {
        Call::Restore => Duration::from_millis(50),
        _ => Duration::ZERO,
    };
    let pace = slipstream_tests::script::Pace { clock: passing, cost: Box::new(cost) };
    let journal = SharedJournal::default();
    let script = Script { pace: Some(pace), ..Script::default() };
    let executor = ScriptedExecutor::new(script, journal.clone());
    let tier = DiskTier::open(disk(folder.path()), IDENTITY, clock.clone()).unwrap();
    let scheduler = Scheduler::new(config(1 << 20), executor, clock, Board::new());
    let mut scheduler = scheduler.with_disk(tier);
    let second = next_turn(&first, 2, 5);
    let (mut client, events) = Client::new(second.max_tokens);
    scheduler.submit(second.clone(), events);
    scheduler.tick();
    let rows = scheduler.snapshot().rows;
    assert_eq!((rows.len(), rows[0].state), (1, "restoring"));
    assert!(rows[0].kv_bytes > 0);
    client.leave();
    scheduler.tick();
    assert_eq!((scheduler.live_rows(), journal.open().counts.device_rows), (0, 0));
    let mut again = serve_all(&mut scheduler, [second.clone()], 0);
    assert_eq!(check_answer(&mut again[0], &second), 304);
}

#[test]
fn caches_that_the_device_does_not_take_are_read_anew_and_their_file_goes() {
    let folder = tempfile::tempdir().unwrap();
    let first = row("a", prompt(1, 300), 5);
    let mut process = Process::start(folder.path());
    process.answer(std::slice::from_ref(&first));
    process.retire();
    let script = Script { faults: vec![(Call::Restore, 3, Fault::Error)], ..Script::default() };
    let mut process = Process::configured(disk(folder.path()), config(1 << 20), script);
    assert_eq!(process.answer(&[next_turn(&first, 2, 5)]), [0]);
    process.rest();
    assert_eq!(process.stats().entries, 1, "the one that was read anew");
}

/// What is kept of a row that ended: the last token that it said was never fed.
fn kept_tokens(spec: &RowSpec) -> Vec<u32> {
    let mut tokens = spec.prompt.clone();
    tokens.extend(answer(spec).tokens);
    tokens.pop();
    tokens
}

#[test]
fn a_prompt_is_listed_once_whichever_tiers_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let spec = RowSpec { boundaries: vec![80], ..row("a", prompt(1, 100), 5) };
    let tokens = kept_tokens(&spec);
    let script = || Script { untrimmable: true, ..Script::default() };
    let mut process = Process::configured(disk(folder.path()), config(1 << 20), script());
    process.answer(std::slice::from_ref(&spec));
    process.clock.advance(Duration::from_secs(2));
    process.answer(&[next_turn(&spec, 2, 4)]);
    process.clock.advance(Duration::from_secs(1));
    let listed = process.listed();
    assert_eq!(listed.prompts.len(), 3, "the boundary, and two ends");
    assert!(listed.prompts.is_sorted_by_key(|prompt| prompt.idle));
    assert_eq!((listed.memory.entries, listed.disk.unwrap().entries), (3, 0));
    let kept = process.kept(&tokens).unwrap();
    let seconds = Duration::from_secs;
    assert_eq!((kept.age, kept.idle, kept.hits), (seconds(3), seconds(1), 1));
    assert_eq!((kept.tokens, kept.origin, kept.pinned), (104, Origin::Finished, false));
    assert_eq!((kept.memory_bytes, kept.disk_bytes), (Some(kv_bytes(104, 0)), None));
    assert_eq!(kept.first_tokens, tokens[..kept.first_tokens.len()]);
    assert_eq!(kept.last_tokens, tokens[104 - kept.last_tokens.len()..]);
    assert_eq!(process.kept(&spec.prompt[..80]).unwrap().origin, Origin::Boundary);
    process.flush();
    assert_eq!(process.listed().prompts.len(), 3);
    assert!(process.kept(&tokens).unwrap().disk_bytes.is_some());
    process.retire();
    let mut process = Process::configured(disk(folder.path()), config(1 << 20), script());
    assert_eq!(process.listed().prompts.len(), 3);
    let kept = process.kept(&tokens).unwrap();
    assert_eq!((kept.memory_bytes, kept.tokens, kept.hits), (None, 104, 0));
    assert_eq!(kept.first_tokens, tokens[..kept.first_tokens.len()]);
    assert_eq!(kept.last_tokens, tokens[104 - kept.last_tokens.len()..]);
    let boundary = process.kept(&spec.prompt[..80]).unwrap();
    assert_eq!((boundary.origin, kept.origin), (Origin::Boundary, Origin::Finished));
    process.answer(&[RowSpec { boundaries: vec![80], ..row("b", spec.prompt[..90].to_vec(), 1) }]);
    let boundary = process.kept(&spec.prompt[..80]).unwrap();
    assert!(boundary.memory_bytes.is_some() && boundary.disk_bytes.is_some());
    assert_eq!((boundary.origin, boundary.hits), (Origin::Boundary, 1));
}

#[test]
fn a_pin_holds_in_memory_and_on_disk_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let two = config(kv_bytes(220, 0));
    let specs: Vec<RowSpec> =
        (0..6).map(|seed| row(format!("{seed}"), prompt(seed, 100), 5)).collect();
    let tokens = kept_tokens(&specs[0]);
    let mut process = Process::configured(disk(folder.path()), two.clone(), Script::default());
    process.answer(&specs[..1]);
    assert!(process.pin(&tokens, true), "in memory only");
    for spec in &specs[1..] {
        process.answer(std::slice::from_ref(spec));
    }
    let kept = process.kept(&tokens).unwrap();
    assert!(kept.pinned && kept.memory_bytes.is_some(), "{kept:?}");
    process.rest();
    let kept = process.kept(&tokens).unwrap();
    assert!(kept.pinned && kept.disk_bytes.is_some(), "{kept:?}");
    let file_bytes = kept.disk_bytes.unwrap();
    process.retire();
    // There is room for two files only: all but the pinned one and the one used last go.
    let small = DiskConfig { max_bytes: 2 * file_bytes, ..disk(folder.path()) };
    let mut process = Process::configured(small.clone(), two.clone(), Script::default());
    assert_eq!(process.listed().prompts.len(), 2);
    let kept = process.kept(&tokens).unwrap();
    assert_eq!((kept.pinned, kept.memory_bytes), (true, None));
    assert_eq!(process.answer(&[next_turn(&specs[0], 9, 3)]), [104]);
    assert!(process.kept(&tokens).is_some_and(|kept| kept.pinned && kept.memory_bytes.is_some()));
    for spec in &specs[1..] {
        process.answer(std::slice::from_ref(spec));
        process.rest();
    }
    let kept = process.kept(&tokens).unwrap();
    assert!(kept.pinned && kept.memory_bytes.is_some() && kept.disk_bytes.is_some(), "{kept:?}");
    assert!(process.pin(&tokens, false));
    process.retire();
    let mut process = Process::configured(small, two, Script::default());
    assert!(process.kept(&tokens).is_some_and(|kept| !kept.pinned));
    assert!(process.pin(&tokens, true), "on disk only");
    assert!(process.kept(&tokens).is_some_and(|kept| kept.pinned));
    assert!(!process.pin(&[1, 2, 3], true), "there is no such prompt");
}

#[test]
fn what_is_deleted_is_gone_from_both_tiers_and_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let specs: Vec<RowSpec> =
        (0..2).map(|seed| row(format!("{seed}"), prompt(seed, 100), 5)).collect();
    let [tokens, other] = [0, 1].map(|index: usize| kept_tokens(&specs[index]));
    let mut process = Process::start(folder.path());
    process.answer(&specs);
    process.flush();
    assert!(process.pin(&tokens, true), "a pin does not keep it from being deleted");
    assert!(process.delete(&tokens) && !process.delete(&tokens));
    assert!(process.kept(&tokens).is_none() && process.kept(&other).is_some());
    let next = next_turn(&specs[0], 5, 3);
    assert_eq!(process.answer(&[next]), [0]);
    process.retire();
    assert_eq!(entry_files(folder.path()).len(), 2, "the other one, and what was read anew");
    let mut process = Process::start(folder.path());
    assert!(process.kept(&tokens).is_none() && process.delete(&other));
    assert_eq!(process.answer(&[next_turn(&specs[1], 5, 3)]), [0]);
}

#[test]
fn what_is_deleted_on_its_way_to_the_disk_does_not_come_back() {
    for ticks in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        // The memory holds neither, so both are spilled.
        let small = config(kv_bytes(50, 0));
        let mut process = Process::configured(disk(folder.path()), small, Script::default());
        let specs: Vec<RowSpec> =
            (0..2).map(|seed| row(format!("{seed}"), prompt(seed, 100), 5)).collect();
        process.answer(&specs);
        for _ in 0..ticks {
            process.scheduler.tick();
        }
        let tokens = kept_tokens(&specs[0]);
        process.delete(&tokens);
        process.rest();
        process.retire();
        let mut process = Process::start(folder.path());
        assert!(process.kept(&tokens).is_none(), "after {ticks} ticks");
        assert!(process.kept(&kept_tokens(&specs[1])).is_some(), "after {ticks} ticks");
    }
}

#[test]
fn what_is_deleted_while_a_row_restores_it_does_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let first = row("a", prompt(1, 300), 5);
    let tokens = kept_tokens(&first);
    let mut process = Process::start(folder.path());
    process.answer(std::slice::from_ref(&first));
    process.retire();
    let clock = Clock::manual();
    let passing = clock.clone();
    let cost = move |call, _, _| match call {
        Call::Restore => Duration::from_millis(50),
        _ => Duration::ZERO,
    };
    let pace = slipstream_tests::script::Pace { clock: passing, cost: Box::new(cost) };
    let script = Script { pace: Some(pace), ..Script::default() };
    let journal = SharedJournal::default();
    let executor = ScriptedExecutor::new(script, journal.clone());
    let tier = DiskTier::open(disk(folder.path()), IDENTITY, clock.clone()).unwrap();
    let scheduler = Scheduler::new(config(1 << 20), executor, clock.clone(), Board::new());
    let mut process = Process { scheduler: scheduler.with_disk(tier), clock, journal };
    let second = next_turn(&first, 2, 5);
    let (mut client, events) = Client::new(second.max_tokens);
    process.scheduler.submit(second.clone(), events);
    process.scheduler.tick();
    assert_eq!(process.scheduler.snapshot().rows[0].state, "restoring");
    assert!(process.delete(&tokens));
    while process.scheduler.live_rows() > 0 {
        process.scheduler.tick();
        assert!(process.kept(&tokens).is_none());
    }
    client.listen();
    assert_eq!(check_answer(&mut client, &second), 304, "the row had it open");
}

#[test]
fn emptying_spares_what_either_tier_has_pinned_unless_that_is_meant_too() {
    let folder = tempfile::tempdir().unwrap();
    let specs: Vec<RowSpec> =
        (0..4).map(|seed| row(format!("{seed}"), prompt(seed, 100), 5)).collect();
    let mut process = Process::start(folder.path());
    process.answer(&specs[..2]);
    assert!(process.pin(&kept_tokens(&specs[0]), true));
    process.retire();
    let mut process = Process::start(folder.path());
    process.answer(&specs[2..]);
    assert!(process.pin(&kept_tokens(&specs[2]), true));
    let cleared = Cleared { deleted: 2, deleted_pinned: 0, kept_pinned: 2 };
    assert_eq!(process.clear(false), cleared);
    let left: Vec<bool> =
        specs.iter().map(|spec| process.kept(&kept_tokens(spec)).is_some()).collect();
    assert_eq!(left, [true, false, true, false]);
    let cleared = Cleared { deleted: 2, deleted_pinned: 2, kept_pinned: 0 };
    assert_eq!(process.clear(true), cleared);
    assert_eq!((process.listed().prompts.len(), process.clear(true)), (0, Cleared::default()));
    process.retire();
    assert_eq!(entry_files(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_flush_writes_at_once_what_has_not_rested_and_offers_again_what_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let specs: Vec<RowSpec> =
        (0..5).map(|seed| row(format!("{seed}"), prompt(seed, 100), 5)).collect();
    let mut process = Process::start(folder.path());
    process.answer(&specs);
    let flushed = process.flush();
    assert_eq!((flushed.complete, flushed.saved, flushed.unsaved), (true, 5, 0));
    assert_eq!((flushed.disk.entries, entry_files(folder.path()).len()), (5, 5));
    assert_eq!(process.flush().saved, 0);
    // Somebody else removed a file.
    let id = process.listed().prompts[0].id;
    drop(process);
    let mut process = Process::start(folder.path());
    process.answer(&[next_turn(&specs[0], 7, 3)]);
    assert_eq!(process.flush().saved, 1);
    assert!(process.listed().prompts.iter().any(|prompt| prompt.id == id));
    // A day without bytes: all are refused, and offered again when the next one begins.
    let folder = tempfile::tempdir().unwrap();
    let poor = DiskConfig { day_limit_bytes: Some(0), ..disk(folder.path()) };
    let mut process = Process::configured(poor, config(1 << 20), Script::default());
    process.answer(&specs);
    let flushed = process.flush();
    assert_eq!((flushed.complete, flushed.saved, flushed.unsaved), (true, 0, 5));
    let day = DiskConfig { day_limit_bytes: Some(1 << 30), ..disk(folder.path()) };
    let tier = DiskTier::open(day, IDENTITY, process.clock.clone()).unwrap();
    process.scheduler = process.scheduler.with_disk(tier);
    assert_eq!(process.flush().saved, 5);
}

#[test]
fn a_flush_is_answered_in_the_end_and_refused_without_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path());
    let spec = row("a", prompt(1, 100), 50);
    process.answer(std::slice::from_ref(&spec));
    // Its tensors are read at the pace that a live row allows, which is none here: no time passes.
    let (_client, events) = Client::new(1 << 20);
    process.scheduler.submit(row("b", prompt(2, 100), 1 << 20), events);
    let mut answer = process.ask_flush();
    process.clock.advance(Duration::from_millis(CACHE_FLUSH_MS));
    process.scheduler.tick();
    let flushed = answer.try_recv().expect("it is answered in time").unwrap();
    assert!(!flushed.complete, "{flushed:?}");
    let (clock, journal) = (Clock::manual(), SharedJournal::default());
    let executor = ScriptedExecutor::new(Script::default(), journal.clone());
    let scheduler = Scheduler::new(config(0), executor, clock.clone(), Board::new());
    let mut process = Process { scheduler, clock, journal };
    let refusal = process.ask_flush().try_recv().unwrap().unwrap_err();
    assert_eq!(refusal.code(), Code::Unsupported);
    assert_eq!(
        (process.listed(), process.clear(true)),
        (KeptPrompts::default(), Cleared::default())
    );
    assert!(!process.pin(&[1], true) && !process.delete(&[1]));
}

/// Has all of `specs` answered, and between the ticks asks this and that of what is kept.
fn answer_among_commands(process: &mut Process, specs: &[RowSpec], random: &mut Random) {
    let mut clients = Vec::new();
    for spec in specs {
        let (client, events) = Client::new(spec.max_tokens);
        process.scheduler.submit(spec.clone(), events);
        clients.push(client);
    }
    while process.scheduler.live_rows() > 0 {
        if random.once_in(3) {
            command(process, random);
        }
        process.scheduler.tick();
    }
    for (client, spec) in clients.iter_mut().zip(specs) {
        client.listen();
        check_answer(client, spec);
    }
}

/// Does something to a random prompt, or all of them, and holds the list to it.
fn command(process: &mut Process, random: &mut Random) {
    let listed = process.listed().prompts;
    let ids: BTreeSet<PromptId> = listed.iter().map(|prompt| prompt.id).collect();
    assert_eq!(ids.len(), listed.len(), "a prompt is listed twice");
    let held = |prompt: &KeptPrompt| prompt.memory_bytes.or(prompt.disk_bytes).is_some();
    assert!(listed.iter().all(held));
    let Some(prompt) = (!listed.is_empty()).then(|| random.pick(&listed)) else { return };
    let id = prompt.id;
    // Files make room for others on a thread of their own, so one may go between two commands.
    let may_be_gone = prompt.memory_bytes.is_none();
    match random.between(0, 9) {
        0..=3 => {
            let pinned = random.once_in(2);
            let found = process.ask(|reply| CacheCommand::Pin { id, pinned, reply });
            let now = process.listed().prompts.into_iter().find(|prompt| prompt.id == id);
            assert!(may_be_gone || found && now.is_some());
            assert!(now.is_none_or(|now| (now.pinned, now.tokens) == (pinned, prompt.tokens)));
        }
        4..=6 => {
            let found = process.ask(|reply| CacheCommand::Delete { id, reply });
            assert!(found || may_be_gone);
            assert!(process.listed().prompts.iter().all(|prompt| prompt.id != id));
        }
        7 => {
            let pinned = random.once_in(2);
            let cleared = process.clear(pinned);
            let left = process.listed().prompts;
            assert!(left.iter().all(|prompt| prompt.pinned && !pinned), "{cleared:?}");
            assert!(cleared.kept_pinned >= left.len(), "{cleared:?}");
        }
        // Nobody need wait for it.
        _ => drop(process.ask_flush()),
    }
}

/// One life of a folder: processes that come and go, ask, are killed, and find their files changed.
fn live(seed: u64) {
    let mut random = Random::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let untrimmable = random.once_in(3);
    let mut turns: Vec<RowSpec> = (0..3)
        .map(|index| {
            let tokens = random.size(1, 80);
            row(format!("{index}"), prompt(random.bits() % 4, tokens), 6)
        })
        .collect();
    for _ in 0..4 {
        let bytes = kv_bytes(random.size(20, 400), 0);
        let budget = random.once_in(2).then(|| kv_bytes(random.size(500, 3000), 0));
        let config = SchedulerConfig {
            kv_budget_bytes: budget,
            batch_rows_max: random.size(1, 4),
            prefill_rows_max: random.size(1, 2),
            ..config(bytes)
        };
        let max_bytes = 1 << random.between(17, 22);
        let limits = DiskConfig { max_bytes, ..disk(folder.path()) };
        let script = Script { untrimmable, ..Script::default() };
        let mut process = Process::configured(limits, config, script);
        for _ in 0..random.size(1, 4) {
            let asked: Vec<usize> = (0..turns.len()).filter(|_| random.once_in(2)).collect();
            let specs: Vec<RowSpec> = asked.iter().map(|index| turns[*index].clone()).collect();
            answer_among_commands(&mut process, &specs, &mut random);
            process.scheduler.check_integrity();
            for index in asked {
                turns[index] = next_turn(&turns[index], random.bits(), random.size(1, 12));
            }
            match random.between(0, 2) {
                0 => process.rest(),
                1 => process.clock.advance(Duration::from_secs(random.between(0, 5))),
                _ => {}
            }
        }
        match random.once_in(2) {
            true => process.retire(),
            false => drop(process),
        }
        damage(&mut random, folder.path());
    }
}

/// Flips a byte of a file, or cuts one off.
fn damage(random: &mut Random, folder: &Path) {
    let files = entry_files(folder);
    if files.is_empty() || random.once_in(3) {
        return;
    }
    let path = random.pick(&files);
    let mut bytes = fs::read(path).unwrap();
    let place = random.size(0, bytes.len() - 1);
    match random.once_in(4) {
        true => bytes.truncate(place),
        false => bytes[place] ^= 1 << random.between(0, 7),
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn whatever_becomes_of_processes_and_files_every_row_says_what_it_says_alone() {
    let replay = std::env::var("SLIPSTREAM_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in replay.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| live(seed))) {
            eprintln!(
                "replay: SLIPSTREAM_SEED={seed} cargo test -p slipstream-tests stored_prompts"
            );
            resume_unwind(panic);
        }
    }
}
