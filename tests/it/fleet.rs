//! Several models on one engine thread, by script and in virtual time.
//!
//! A seed chooses when models are loaded and unloaded, which loads and which calls fail, which rows come for which
//! model, and when their clients leave. All share one budget. `SLIPSTREAM_SEED=n` replays one seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slipstream_engine::clock::Clock;
use slipstream_engine::config::{MemoryPlan, SchedulerConfig};
use slipstream_engine::error::{Code, Error};
use slipstream_engine::gateway::{
    Docked, Fleet, FleetThread, Health, LoadMeter, LoadOrder, ModelNumber, ModelRows, Roster, Rows,
};
use slipstream_engine::limits;
use slipstream_engine::mlx::thread::{Activity, RebuildPause};
use slipstream_engine::scheduler::{Board, RowEvent, RowSpec};

use slipstream_tests::client::Client;
use slipstream_tests::fleet::{Course, ScriptedLoader, plan, source};
use slipstream_tests::random::Random;
use slipstream_tests::script::{
    Call, Fault, Script, ScriptedExecutor, TOKEN_KV_BYTES, answer, kv_bytes, row,
};

use tokio::sync::oneshot;

const SEEDS: u64 = 600;
/// Ticks of all seeds together at least, so that the simulation cannot shrink unnoticed.
const TICKS_MIN: u64 = 60_000;
const TICKS_MAX: u64 = 5_000;
const NAMES: [&str; 3] = ["ant", "bee", "cat"];
/// Bytes of each model's weights, in tokens of the budget.
const WEIGHTS_TOKENS: [u64; 3] = [40, 60, 80];
/// What the budget holds without any model.
const BUDGET_TOKENS: u64 = 260;

#[test]
fn models_come_and_go_and_every_row_hears_its_own_answer_or_one_error() {
    if let Some(seed) = std::env::var("SLIPSTREAM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        World::new(seed).run();
        return;
    }
    let mut ticks = 0;
    let mut tally = Tally::default();
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| World::new(seed).run());
        let (made, told) = outcome.unwrap_or_else(|_| {
            panic!(
                "seed {seed} failed; replay: SLIPSTREAM_SEED={seed} cargo test -p slipstream-tests \
                 --no-default-features --test it fleet"
            )
        });
        ticks += made;
        tally.add(&told);
    }
    println!("{SEEDS} seeds made {ticks} ticks: {tally:?}");
    assert!(ticks > TICKS_MIN, "only {ticks} ticks");
    let Tally { answered, failed, loads, lost_loads, unloads, beside_rows } = tally;
    for count in [answered, failed, loads, lost_loads, unloads, beside_rows] {
        assert!(count > 100, "something hardly happens: {tally:?}");
    }
}

/// What happened, so that the simulation cannot become harmless unnoticed.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    answered: u64,
    failed: u64,
    loads: u64,
    lost_loads: u64,
    unloads: u64,
    /// Ticks in which a model was being loaded beside live rows.
    beside_rows: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.loads += other.loads;
        self.lost_loads += other.lost_loads;
        self.unloads += other.unloads;
        self.beside_rows += other.beside_rows;
    }
}

fn weights_bytes(model: usize) -> u64 {
    WEIGHTS_TOKENS[model] * TOKEN_KV_BYTES
}

fn number(model: usize) -> ModelNumber {
    ModelNumber(model as u32)
}

/// A row and its client.
struct Guest {
    model: usize,
    spec: RowSpec,
    client: Client,
    leaves_after: usize,
    /// Whether its model was made to go while the row lived.
    stranded: bool,
}

/// What the test knows of a model.
enum Berth {
    Absent,
    Loading(oneshot::Receiver<Result<Docked, Error>>),
    Ready,
    Leaving(oneshot::Receiver<()>),
}

struct World {
    random: Random,
    clock: Clock,
    plan: MemoryPlan,
    loader: Arc<ScriptedLoader>,
    fleet: Fleet<ScriptedExecutor>,
    boards: [Board; NAMES.len()],
    berths: [Berth; NAMES.len()],
    guests: Vec<Guest>,
    arrivals_left: usize,
    tick: u64,
    tally: Tally,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let clock = Clock::manual();
        let config = SchedulerConfig {
            batch_rows_max: random.size(1, 4),
            prefill_rows_max: random.size(1, 2),
            prefill_chunk_tokens: *random.pick(&[1, 4, 16]),
            kept_prompt_tokens_min: *random.pick(&[1, 8]),
            ..SchedulerConfig::default()
        };
        let faults = random_faults(&mut random);
        let script = move |_: &str| Script { faults: faults.clone(), ..Script::default() };
        let loader = Arc::new(ScriptedLoader::new(config, script));
        let plan = plan(BUDGET_TOKENS * TOKEN_KV_BYTES);
        let fleet = Fleet::new(clock.clone(), plan, loader.clone(), Arc::<Roster>::default());
        Self {
            arrivals_left: random.size(5, 40),
            random,
            clock,
            plan,
            loader,
            fleet,
            boards: std::array::from_fn(|_| Board::new()),
            berths: [Berth::Absent, Berth::Absent, Berth::Absent],
            guests: Vec::new(),
            tick: 0,
            tally: Tally::default(),
        }
    }

    /// Runs until every row has ended, and lets every model go; returns how many ticks that took.
    fn run(mut self) -> (u64, Tally) {
        loop {
            self.tick += 1;
            assert!(self.tick < TICKS_MAX, "the run does not end");
            self.act();
            self.tick_once();
            self.clock.advance(Duration::from_millis(self.random.between(0, 300)));
            if self.arrivals_left == 0 && self.guests.iter().all(Guest::is_over) {
                break;
            }
        }
        for model in 0..NAMES.len() {
            self.unload(model);
        }
        while self.tick_once() != Activity::Idle {
            self.tick += 1;
            assert!(self.tick < TICKS_MAX, "models do not go");
            self.clock.advance(Duration::from_millis(20));
        }
        self.check_end();
        (self.tick, self.tally)
    }

    /// Does what comes from outside.
    fn act(&mut self) {
        let model = self.random.size(0, NAMES.len() - 1);
        match self.random.between(0, 19) {
            0..=5 => self.load(model),
            6 => self.unload(model),
            7..=12 => self.submit(model),
            _ => {}
        }
        for guest in &mut self.guests {
            if guest.client.tokens().len() >= guest.leaves_after {
                guest.client.leave();
            }
        }
    }

    fn load(&mut self, model: usize) {
        if !matches!(self.berths[model], Berth::Absent) {
            return;
        }
        let slices = self.random.between(1, 12);
        let fails_at = self.random.once_in(4).then(|| self.random.between(0, slices));
        let course = Course { slices, fails_at, panics: false };
        self.loader.yard().courses.insert(NAMES[model].to_owned(), course);
        let (reply, docked) = oneshot::channel();
        self.fleet.load(LoadOrder {
            model: number(model),
            source: source(NAMES[model], weights_bytes(model)),
            essential: false,
            board: self.boards[model].clone(),
            meter: Arc::<LoadMeter>::default(),
            reply,
        });
        self.berths[model] = Berth::Loading(docked);
    }

    /// Lets a model go, or gives its load up, whatever it does.
    fn unload(&mut self, model: usize) {
        if matches!(self.berths[model], Berth::Absent | Berth::Leaving(_)) {
            return;
        }
        let (gone, when_gone) = oneshot::channel();
        self.fleet.unload(number(model), gone);
        self.berths[model] = Berth::Leaving(when_gone);
        for guest in self.guests.iter_mut().filter(|guest| guest.model == model) {
            guest.stranded |= !guest.is_over();
        }
        self.tally.unloads += 1;
    }

    fn submit(&mut self, model: usize) {
        if self.arrivals_left == 0 {
            return;
        }
        self.arrivals_left -= 1;
        // Two letters, so that prompts begin alike and are kept for each other.
        let prompt = (0..self.random.size(1, 30)).map(|_| self.random.between(1, 2) as u32);
        let (prompt, max_tokens) = (prompt.collect(), self.random.size(1, 30));
        let spec = row(self.guests.len().to_string(), prompt, max_tokens);
        let (client, events) = Client::new(max_tokens);
        self.fleet.submit(number(model), spec.clone(), events, self.clock.now());
        let leaves_after = match self.random.once_in(5) {
            true => self.random.size(0, max_tokens),
            false => usize::MAX,
        };
        let stranded = matches!(self.berths[model], Berth::Leaving(_));
        self.guests.push(Guest { model, spec, client, leaves_after, stranded });
    }

    fn tick_once(&mut self) -> Activity {
        let activity = self.fleet.tick();
        self.fleet.check_integrity();
        for guest in &mut self.guests {
            guest.client.listen();
        }
        self.hear_of_berths();
        self.check_memory();
        activity
    }

    fn hear_of_berths(&mut self) {
        for model in 0..self.berths.len() {
            if let Some(next) = self.heard_of(model) {
                self.berths[model] = next;
            }
        }
    }

    /// What becomes of a model, if anything was heard of it.
    fn heard_of(&mut self, model: usize) -> Option<Berth> {
        use oneshot::error::TryRecvError;
        match &mut self.berths[model] {
            Berth::Absent | Berth::Ready => None,
            Berth::Loading(docked) => match docked.try_recv() {
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Closed) => panic!("a load without an end"),
                Ok(Ok(docked)) => {
                    assert_eq!(docked.card.id, NAMES[model]);
                    self.tally.loads += 1;
                    Some(Berth::Ready)
                }
                Ok(Err(error)) => {
                    let known = [Code::BadModel, Code::ModelUnavailable, Code::InvalidRequest];
                    assert!(known.contains(&error.code()), "{error}");
                    self.tally.lost_loads += 1;
                    Some(Berth::Absent)
                }
            },
            Berth::Leaving(gone) => match gone.try_recv() {
                Err(TryRecvError::Empty) => None,
                _ => Some(Berth::Absent),
            },
        }
    }

    /// No model is there twice, what all hold fits the budget, and what is shown is what the device holds.
    fn check_memory(&mut self) {
        let held = self.loader.yard().held.clone();
        assert!(held.values().all(|count| *count == 1), "loaded twice: {held:?}");
        let shown: Vec<_> = self.boards.iter().map(Board::read).collect();
        let weights_bytes = self.fleet.weights_bytes();
        let budget_bytes = self.plan.kv_bytes(weights_bytes).unwrap();
        let device_bytes = self.loader.yard().kv_bytes();
        assert!(device_bytes <= budget_bytes, "{device_bytes} of {budget_bytes}");
        let loads = self.berths.iter().any(|berth| matches!(berth, Berth::Loading(_)));
        let live = shown.iter().any(|shown| !shown.rows.is_empty());
        self.tally.beside_rows += u64::from(loads && live);
    }

    fn check_end(&mut self) {
        let yard = self.loader.yard();
        assert_eq!(yard.device_rows(), 0, "rows were left behind");
        assert!(yard.held.is_empty(), "models were left behind");
        assert_eq!((self.fleet.models().len(), self.fleet.weights_bytes()), (0, 0));
        for guest in &self.guests {
            guest.check(yard.was_hit(&guest.spec.id), &mut self.tally);
        }
        let shown = self.boards.iter().map(Board::read);
        let (submitted, finished) = shown.fold((0, 0), |(submitted, finished), shown| {
            assert!(shown.rows.is_empty(), "a row is shown that is gone");
            (submitted + shown.batch.submitted_rows, finished + shown.totals.finished_rows)
        });
        assert_eq!(submitted, finished, "a row was lost or doubled");
    }
}

impl Guest {
    fn is_over(&self) -> bool {
        self.client.has_left() || self.client.end().is_some() || self.client.is_cut()
    }

    /// Holds what it heard against what the model says to a row that runs alone.
    fn check(&self, hit: bool, tally: &mut Tally) {
        let expected = answer(&self.spec);
        let id = &self.spec.id;
        assert!(
            expected.tokens.starts_with(self.client.tokens()),
            "row {id} heard another's tokens"
        );
        match self.client.end() {
            Some(RowEvent::Finished { reason, .. }) => {
                assert_eq!(self.client.tokens(), expected.tokens, "row {id}");
                assert_eq!(*reason, expected.reason, "row {id}");
                tally.answered += 1;
            }
            Some(RowEvent::Failed(error)) => {
                let known = matches!(error.code(), Code::ModelUnavailable | Code::OverBudget);
                assert!(hit || known, "row {id}: {error}");
                tally.failed += 1;
            }
            Some(other) => panic!("row {id} ended in {other:?}"),
            None => {
                let dropped = self.client.is_cut() && self.stranded;
                assert!(dropped || self.client.has_left(), "row {id} heard no end");
            }
        }
    }
}

fn random_faults(random: &mut Random) -> Vec<(Call, u64, Fault)> {
    let calls = [Call::Open, Call::Prefill, Call::FirstToken, Call::Step, Call::Join];
    let faults = random.size(0, 2);
    (0..faults).map(|_| (*random.pick(&calls), random.between(1, 30), Fault::Error)).collect()
}

// --- stories ---

/// A fleet whose models have weights of 40 tokens and take `slices` to load, and its journal.
fn fleet_of(
    models: usize,
    plan: MemoryPlan,
    config: SchedulerConfig,
) -> (Fleet<ScriptedExecutor>, Arc<ScriptedLoader>, Vec<Board>) {
    let script = |_: &str| Script::default();
    let loader = Arc::new(ScriptedLoader::new(config, script));
    let mut fleet = Fleet::new(Clock::manual(), plan, loader.clone(), Arc::<Roster>::default());
    let boards: Vec<Board> = (0..models).map(|_| Board::new()).collect();
    for (model, board) in boards.iter().enumerate() {
        let docked = load(&mut fleet, model, board);
        while fleet.models().len() == model {
            fleet.tick();
        }
        drop(docked);
    }
    (fleet, loader, boards)
}

fn load(
    fleet: &mut Fleet<ScriptedExecutor>,
    model: usize,
    board: &Board,
) -> oneshot::Receiver<Result<Docked, Error>> {
    let (reply, docked) = oneshot::channel();
    fleet.load(LoadOrder {
        model: number(model),
        source: source(&format!("m{model}"), 40 * TOKEN_KV_BYTES),
        essential: false,
        board: board.clone(),
        meter: Arc::default(),
        reply,
    });
    docked
}

fn submit(fleet: &mut Fleet<ScriptedExecutor>, model: usize, spec: &RowSpec) -> Client {
    let (client, events) = Client::new(spec.max_tokens);
    fleet.submit(number(model), spec.clone(), events, Duration::ZERO);
    client
}

#[test]
fn rows_of_two_models_take_a_step_each_between_two_slices_of_a_third() {
    let budget = plan(10_000 * TOKEN_KV_BYTES);
    let (mut fleet, loader, _boards) = fleet_of(2, budget, SchedulerConfig::default());
    let specs = [row("one", vec![1], 200), row("two", vec![2], 200)];
    let mut clients: Vec<Client> =
        (0..2).map(|model| submit(&mut fleet, model, &specs[model])).collect();
    for _ in 0..3 {
        fleet.tick();
    }
    let course = Course { slices: 50, ..Course::default() };
    loader.yard().courses.insert("m2".to_owned(), course);
    let board = Board::new();
    let mut docked = load(&mut fleet, 2, &board);
    let heard = |clients: &mut Vec<Client>| -> Vec<usize> {
        clients.iter_mut().for_each(Client::listen);
        clients.iter().map(|client| client.tokens().len()).collect()
    };
    let mut before = heard(&mut clients);
    let mut slices = loader.yard().slices;
    while docked.try_recv().is_err() {
        fleet.tick();
        let now = heard(&mut clients);
        assert_eq!(now, [before[0] + 1, before[1] + 1], "both took a step");
        let read = loader.yard().slices;
        assert!(read <= slices + 1, "a tick reads one slice");
        (before, slices) = (now, read);
    }
    assert!(before[0] >= 50, "{before:?}");
}

#[test]
fn an_idle_model_gives_up_its_prompts_for_the_rows_of_another() {
    // 300 tokens beside the weights of both: half of that for prompts.
    let budget = plan(380 * TOKEN_KV_BYTES);
    let config = SchedulerConfig { kept_prompt_tokens_min: 1, ..SchedulerConfig::default() };
    let (mut fleet, _, boards) = fleet_of(2, budget, config);
    let run = |fleet: &mut Fleet<ScriptedExecutor>, model, spec: &RowSpec| {
        let mut client = submit(fleet, model, spec);
        while fleet.tick() != Activity::Idle {}
        client.listen();
        assert_eq!(client.tokens(), answer(spec).tokens);
    };
    run(&mut fleet, 0, &row("kept", vec![1; 80], 20));
    assert!(boards[0].read().prompt_cache.bytes > 0);
    run(&mut fleet, 1, &row("small", vec![2; 20], 10));
    assert!(boards[0].read().prompt_cache.bytes > 0, "there is room for both");
    run(&mut fleet, 1, &row("large", vec![3; 200], 90));
    // It is told with the next tick of its own, which the next row brings.
    run(&mut fleet, 0, &row("next", vec![2], 1));
    assert_eq!(boards[0].read().prompt_cache.hits, 0);
    fleet.check_integrity();
}

#[test]
fn a_row_that_waits_for_bytes_is_not_overtaken_by_later_rows_of_another_model() {
    let budget = plan(180 * TOKEN_KV_BYTES);
    let config = SchedulerConfig { batch_rows_max: 2, ..SchedulerConfig::default() };
    let (mut fleet, ..) = fleet_of(2, budget, config);
    let clock_free = |fleet: &mut Fleet<ScriptedExecutor>, model, spec: &RowSpec, at: u64| {
        let (client, events) = Client::new(spec.max_tokens);
        fleet.submit(number(model), spec.clone(), events, Duration::from_secs(at));
        client
    };
    let first = row("first", vec![1; 20], 30);
    let mut first_client = clock_free(&mut fleet, 0, &first, 0);
    fleet.tick();
    // 50 of 100 are taken: this one has to wait for them.
    let large = row("large", vec![2; 40], 40);
    let mut large_client = clock_free(&mut fleet, 1, &large, 1);
    fleet.tick();
    let mut late: Vec<Client> = (0..6)
        .map(|index| {
            let spec = row(format!("late {index}"), vec![3; 10], 20);
            clock_free(&mut fleet, 0, &spec, 2 + index)
        })
        .collect();
    while large_client.tokens().is_empty() {
        fleet.tick();
        large_client.listen();
        for client in &mut late {
            client.listen();
            assert!(client.tokens().is_empty(), "a later row went first");
        }
    }
    first_client.listen();
    assert_eq!(first_client.tokens(), answer(&first).tokens);
    while fleet.tick() != Activity::Idle {}
    late.iter_mut().for_each(Client::listen);
    assert!(late.iter().all(|client| client.end().is_some()));
}

#[test]
fn a_load_waits_for_live_rows_and_gives_up_when_they_do_not_end() {
    // Beside two models there is room for 20 tokens.
    let budget = plan(100 * TOKEN_KV_BYTES);
    let (clock, config) = (Clock::manual(), SchedulerConfig::default());
    let script = |_: &str| Script::default();
    let loader = Arc::new(ScriptedLoader::new(config, script));
    let mut fleet = Fleet::new(clock.clone(), budget, loader, Arc::<Roster>::default());
    drop(load(&mut fleet, 9, &Board::new()));
    let board = Board::new();
    let first = load(&mut fleet, 0, &board);
    while fleet.tick() != Activity::Idle {}
    assert!(first.blocking_recv().unwrap().is_ok());
    let endless = row("endless", vec![1; 10], 40);
    let mut client = submit(&mut fleet, 0, &endless);
    fleet.tick();
    let mut second = load(&mut fleet, 1, &Board::new());
    for _ in 0..5 {
        fleet.tick();
    }
    assert!(second.try_recv().is_err(), "it waits");
    clock.advance(Duration::from_millis(limits::ROOM_WAIT_MS));
    fleet.tick();
    let error = second.try_recv().unwrap().unwrap_err();
    assert_eq!(error.code(), Code::ModelUnavailable);
    let held = format!("hold {} B", kv_bytes(10, 40));
    assert!(error.message().contains(&held), "{error}");
    let third = load(&mut fleet, 1, &Board::new());
    while fleet.tick() != Activity::Idle {}
    assert!(third.blocking_recv().unwrap().is_ok(), "the row has ended");
    client.listen();
    assert_eq!(client.tokens(), answer(&endless).tokens);
}

// --- failures of the thread ---

const PAUSE: RebuildPause =
    RebuildPause { first: Duration::from_millis(1), longest: Duration::from_millis(2) };

/// A thread whose first executor of `m0` panics at its third step, and its loader.
fn failing_thread() -> (Arc<FleetThread<ScriptedExecutor>>, Arc<ScriptedLoader>) {
    let made = AtomicU64::new(0);
    let script = move |id: &str| {
        let first = id == "m0" && made.fetch_add(1, Ordering::SeqCst) == 0;
        let faults = if first { vec![(Call::Step, 3, Fault::Panic)] } else { Vec::new() };
        Script { faults, ..Script::default() }
    };
    let config = SchedulerConfig::default();
    let loader = Arc::new(ScriptedLoader::new(config, script));
    let budget = plan(100_000 * TOKEN_KV_BYTES);
    let thread = FleetThread::start(Clock::monotonic(), PAUSE, budget, loader.clone()).unwrap();
    (Arc::new(thread), loader)
}

fn load_on(
    thread: &Arc<FleetThread<ScriptedExecutor>>,
    model: usize,
) -> (ModelRows<ScriptedExecutor>, Result<Docked, Option<Error>>) {
    let (board, (reply, docked)) = (Board::new(), oneshot::channel());
    let order = LoadOrder {
        model: number(model),
        source: source(&format!("m{model}"), 40 * TOKEN_KV_BYTES),
        essential: model == 0,
        board: board.clone(),
        meter: Arc::default(),
        reply,
    };
    thread.load(order).unwrap();
    let outcome = docked.blocking_recv().map_err(|_| None).and_then(|end| end.map_err(Some));
    (ModelRows::new(Arc::clone(thread), number(model), board), outcome)
}

fn run_on(rows: &impl Rows, spec: &RowSpec) -> Client {
    loop {
        let (mut client, events) = Client::new(spec.max_tokens);
        match rows.submit(spec.clone(), events) {
            Ok(()) => {
                client.listen_to_the_end();
                return client;
            }
            Err(error) => assert_eq!(error.code(), Code::EngineFailed, "{error}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_panic_fails_the_rows_of_all_models_and_all_that_were_ready_come_back() {
    let (thread, loader) = failing_thread();
    let (one, first) = load_on(&thread, 0);
    let (two, second) = load_on(&thread, 1);
    assert!(first.is_ok() && second.is_ok());
    let (mut beside, events) = Client::new(10_000);
    two.submit(row("beside", vec![2], 10_000), events).unwrap();
    let lost = run_on(&one, &row("lost", vec![1], 50));
    beside.listen_to_the_end();
    assert_eq!(
        (lost.end(), beside.end()),
        (None, None),
        "a channel that closes means EngineFailed"
    );
    for rows in [&one, &two] {
        let spec = row("next", vec![1, 2], 50);
        assert_eq!(run_on(rows, &spec).tokens(), answer(&spec).tokens);
        assert_eq!(rows.health(), Health::Serving);
    }
    let held: BTreeMap<String, usize> =
        [("m0".to_owned(), 1), ("m1".to_owned(), 1)].into_iter().collect();
    assert_eq!(loader.yard().held, held);
    assert_eq!(loader.yard().journals.len(), 4);
}

#[test]
fn a_model_whose_load_panics_is_not_tried_again_and_the_others_come_back() {
    let (thread, loader) = failing_thread();
    let (rows, first) = load_on(&thread, 1);
    assert!(first.is_ok());
    let course = Course { slices: 3, fails_at: Some(2), panics: true };
    loader.yard().courses.insert("m2".to_owned(), course);
    let (_, lost) = load_on(&thread, 2);
    assert_eq!(lost.map(drop), Err(None), "its end of the reply was dropped");
    let spec = row("next", vec![1, 2], 50);
    assert_eq!(run_on(&rows, &spec).tokens(), answer(&spec).tokens);
    assert_eq!(loader.yard().journals.len(), 3);
}

#[test]
fn a_model_that_cannot_come_back_is_told_as_lost_and_the_others_serve() {
    let (thread, loader) = failing_thread();
    let (told, lost) = std::sync::mpsc::channel();
    thread.roster().tell_losses(move |model, error| told.send((model, error.code())).unwrap());
    let (one, first) = load_on(&thread, 0);
    let (_two, second) = load_on(&thread, 1);
    assert!(first.is_ok() && second.is_ok());
    let broken = Course { fails_at: Some(0), ..Course::default() };
    loader.yard().courses.insert("m1".to_owned(), broken);
    let gone = run_on(&one, &row("lost", vec![1], 50));
    assert_eq!(gone.end(), None);
    assert_eq!(lost.recv().unwrap(), (number(1), Code::BadModel));
    let spec = row("next", vec![1, 2], 50);
    assert_eq!(run_on(&one, &spec).tokens(), answer(&spec).tokens);
}

#[test]
fn a_thread_that_unloads_everything_holds_nothing() {
    let (thread, loader) = failing_thread();
    let (_rows, loaded) = load_on(&thread, 1);
    assert!(loaded.is_ok());
    assert_eq!(thread.roster().memory().weights_bytes, 40 * TOKEN_KV_BYTES);
    thread.unload(number(1)).unwrap().blocking_recv().unwrap_err();
    assert!(loader.yard().held.is_empty());
    assert_eq!(thread.roster().memory().weights_bytes, 0);
}
