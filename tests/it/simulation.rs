//! The production scheduler against a scripted model, thousands of times.
//!
//! A seed chooses the caps and the KV budget, the rows with their lanes and priorities, when they
//! arrive, which of them have grammars or are for vectors, when their clients leave (between two ticks, or in the middle of a call of the executor),
//! which calls fail, how fast the device is, how time passes, and what is switched off. Every row's
//! tokens are held against what the naive model says to a row that runs alone, and the invariants
//! below against every tick. `SLIPSTREAM_SEED=n` replays one seed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slipstream_engine::clock::Clock;
use slipstream_engine::config::{Levers, SchedulerConfig};
use slipstream_engine::error::Code;
use slipstream_engine::limits::{OVERTAKES_MAX, PREFILL_GRANULE_TOKENS};
use slipstream_engine::mlx::thread::Activity;
use slipstream_engine::sampling::SamplingParams;
use slipstream_engine::scheduler::{
    Board, EventSender, Lane, Priority, RowEvent, RowSpec, Scheduler,
};
use slipstream_engine::telemetry::{RowSnapshot, Snapshot};

use slipstream_tests::client::Client;
use slipstream_tests::grammar;
use slipstream_tests::random::Random;
use slipstream_tests::script::{
    self, Answer, Call, Counts, Fault, Pace, Script, ScriptedExecutor, SharedJournal, answer, row,
};

const SEEDS: u64 = 8_500;
/// Ticks that all seeds together make at least, so that the simulation cannot shrink unnoticed.
const TICKS_MIN: u64 = 1_000_000;
/// Ticks after which a run counts as stuck; the longest that was seen takes a tenth of this.
const TICKS_MAX: u64 = 20_000;

#[test]
fn every_row_gets_its_own_answer_whatever_happens_around_it() {
    if let Some(seed) = std::env::var("SLIPSTREAM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        World::new(seed).run();
        return;
    }
    let (next, ticks) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                for seed in seeds.take_while(|seed| *seed < SEEDS) {
                    ticks.fetch_add(run_reporting(seed), Ordering::Relaxed);
                }
            });
        }
    });
    let ticks = ticks.into_inner();
    println!("{SEEDS} seeds made {ticks} ticks");
    assert!(ticks > TICKS_MIN, "only {ticks} ticks");
}

/// Runs one seed and says how to run it again if it fails.
fn run_reporting(seed: u64) -> u64 {
    let outcome = std::panic::catch_unwind(|| World::new(seed).run());
    outcome.unwrap_or_else(|_| {
        panic!(
            "seed {seed} failed; replay: SLIPSTREAM_SEED={seed} cargo test -p slipstream-tests \
             --no-default-features --test it simulation"
        )
    })
}

/// A row to come, live or gone, and its client.
struct Guest {
    spec: RowSpec,
    answer: Answer,
    client: Client,
    /// Until it is submitted.
    events: Option<EventSender>,
    arrives_tick: u64,
    leaves: Leaves,
}

/// When a client hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    Never,
    /// Before the tick, perhaps before the row was submitted.
    BeforeTick(u64),
    /// Once it heard this many tokens.
    AfterTokens(usize),
    /// While the executor runs its call of this number.
    DuringCall(u64),
}

/// What a row meets while it waits.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// Rows that waited when it came.
    ahead: usize,
    /// Those of them that were of its priority.
    ahead_of_its_kind: usize,
    /// Rows that started since.
    starts: usize,
    /// Those of them that came later.
    overtakes: usize,
}

/// What a row was doing after the last tick.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    state: &'static str,
    prefilled_tokens: usize,
    /// The last tick in which that changed.
    tick: u64,
}

struct World {
    random: Random,
    config: SchedulerConfig,
    clock: Clock,
    journal: SharedJournal,
    scheduler: Scheduler<ScriptedExecutor>,
    /// In the order of their arrival; a row's id is its index.
    guests: Rc<RefCell<Vec<Guest>>>,
    tick: u64,
    pulses: BTreeMap<usize, Pulse>,
    /// The rows that wait.
    waits: BTreeMap<usize, Wait>,
    /// The last tick in which a row started, or none waited.
    queue_moved: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let config = random_config(&mut random);
        let guests = Rc::new(RefCell::new(random_guests(&mut random)));
        let clock = Clock::manual();
        let journal = SharedJournal::default();
        let script = Script {
            faults: random_faults(&mut random),
            chunk_tokens: config.max_gap.is_none().then_some(config.prefill_chunk_tokens),
            no_tail_split: config.levers.no_tail_split,
            untrimmable: random.once_in(2),
            pace: Some(random_pace(&mut random, &clock)),
            interrupt: Some(departures_during_calls(&guests)),
        };
        let executor = ScriptedExecutor::new(script, journal.clone());
        let scheduler = Scheduler::new(config.clone(), executor, clock.clone(), Board::new());
        let (pulses, waits) = (BTreeMap::new(), BTreeMap::new());
        Self {
            random,
            config,
            clock,
            journal,
            scheduler,
            guests,
            tick: 0,
            pulses,
            waits,
            queue_moved: 0,
        }
    }

    /// Runs to the end of the last row; returns how many ticks that took.
    fn run(mut self) -> u64 {
        loop {
            self.tick += 1;
            assert!(self.tick < TICKS_MAX, "the run does not end");
            let arrivals_left = self.admit_arrivals();
            self.hang_up();
            let activity = self.tick_once();
            self.clock.advance(Duration::from_micros(self.random.between(0, 400_000)));
            if activity == Activity::Idle && !arrivals_left {
                break;
            }
        }
        self.check_end();
        self.tick
    }

    /// Submits the rows whose time has come; says whether others are still to come.
    fn admit_arrivals(&mut self) -> bool {
        let mut guests = self.guests.borrow_mut();
        let due = |(_, guest): &(usize, &mut Guest)| guest.arrives_tick <= self.tick;
        for (index, guest) in guests.iter_mut().enumerate().take_while(due) {
            if let Some(events) = guest.events.take() {
                self.waits.insert(index, wait_of(guest.spec.priority, &self.scheduler));
                self.scheduler.submit(guest.spec.clone(), events);
            }
        }
        guests.iter().any(|guest| guest.events.is_some())
    }

    /// Lets the clients go whose time has come between two ticks.
    fn hang_up(&mut self) {
        for guest in self.guests.borrow_mut().iter_mut() {
            let leaves = match guest.leaves {
                Leaves::BeforeTick(tick) => tick <= self.tick,
                Leaves::AfterTokens(tokens) => guest.client.tokens().len() >= tokens,
                Leaves::Never | Leaves::DuringCall(_) => false,
            };
            if leaves {
                guest.client.leave();
            }
        }
    }

    fn tick_once(&mut self) -> Activity {
        let before = self.journal.open().counts;
        let opened_before = self.journal.open().opened.len();
        let shown_before = self.scheduler.snapshot();
        let live_before = self.scheduler.live_rows();
        let heard_before = self.tokens_heard();
        let departed = self.departed();
        let waits = |row: &RowSnapshot| row.state == "waiting";
        let waiting: Vec<usize> =
            shown_before.rows.iter().filter(|row| waits(row)).map(|row| index(&row.id)).collect();
        // Refused rows never waited, and rows without a client wait no more.
        self.waits.retain(|index, _| waiting.contains(index) && !departed.contains(index));

        let activity = self.scheduler.tick();

        for guest in self.guests.borrow_mut().iter_mut() {
            guest.client.listen();
        }
        self.scheduler.check_integrity();
        let snapshot = self.scheduler.snapshot();
        let after = self.journal.open().counts;
        let ended = snapshot.rows.len() < live_before;
        let worked = after.calls_total() > before.calls_total() || ended;
        assert!(worked || live_before == 0, "a tick with live rows did nothing");
        self.check_device(before, after, &shown_before, &snapshot);
        self.check_bytes(after, &snapshot);
        self.check_caps_and_order(&snapshot);
        self.check_turns(opened_before, &snapshot);
        self.check_departed(&departed, &snapshot);
        self.check_heard(&heard_before);
        self.check_pulses(&snapshot);
        activity
    }

    fn tokens_heard(&self) -> Vec<usize> {
        self.guests.borrow().iter().map(|guest| guest.client.tokens().len()).collect()
    }

    /// Submitted rows whose client is gone already.
    fn departed(&self) -> Vec<usize> {
        let guests = self.guests.borrow();
        let departed = |guest: &Guest| guest.events.is_none() && guest.client.has_left();
        (0..guests.len()).filter(|index| departed(&guests[*index])).collect()
    }

    /// One tick runs a chunk of prompt tokens at most, a paced one while rows decode, and leaves on
    /// the device exactly the rows that are live there.
    fn check_device(&self, before: Counts, after: Counts, earlier: &Snapshot, snapshot: &Snapshot) {
        let prompt_tokens = after.prompt_tokens - before.prompt_tokens;
        let guests = self.guests.borrow();
        // Rows that left or failed may have done so before the prompts ran.
        let stays = |row: &&RowSnapshot| {
            let client = &guests[index(&row.id)].client;
            !client.has_left() && !matches!(client.end(), Some(RowEvent::Failed(_)))
        };
        let decoding = |row: &RowSnapshot| row.state == "decoding";
        let somebody_waits = earlier.rows.iter().filter(stays).any(decoding);
        let chunk_tokens = match somebody_waits {
            true => earlier.batch.prefill_chunk_tokens,
            false => self.config.prefill_chunk_tokens,
        };
        assert!(prompt_tokens <= chunk_tokens as u64, "{prompt_tokens} of {chunk_tokens}");
        let on_device = snapshot.rows.iter().filter(|row| row.state != "waiting").count();
        assert_eq!(after.device_rows, on_device);
    }

    /// What is shown is what the device holds; that is no more than was projected, and that no more
    /// than the budget.
    fn check_bytes(&self, after: Counts, snapshot: &Snapshot) {
        let batch = &snapshot.batch;
        assert_eq!(batch.kv_bytes, after.kv_bytes());
        assert!(batch.kv_bytes <= batch.kv_projected_bytes, "{batch:?}");
        assert_eq!(batch.kv_budget_bytes, self.config.kv_budget_bytes);
        assert!(batch.kv_projected_bytes <= batch.kv_budget_bytes.unwrap_or(u64::MAX), "{batch:?}");
        let cache = &snapshot.prompt_cache;
        assert!(cache.bytes <= self.config.prompt_cache_bytes, "{cache:?}");
        let ceiling_bytes = batch.kv_budget_bytes.unwrap_or(u64::MAX);
        assert!(batch.kv_bytes + cache.bytes <= ceiling_bytes, "{batch:?} beside {cache:?}");
        let rows: u64 = snapshot.rows.iter().map(|row| row.kv_bytes).sum();
        assert!(rows <= batch.kv_bytes && (rows > 0 || batch.kv_bytes == 0));
        let live = snapshot.rows.iter().any(|row| row.state != "waiting");
        assert!(live || batch.kv_projected_bytes == 0, "bytes are projected for nobody");
    }

    fn check_caps_and_order(&self, snapshot: &Snapshot) {
        let count = |state: &str| snapshot.rows.iter().filter(|row| row.state == state).count();
        let (prefilling, decoding) = (count("prefilling"), count("decoding"));
        assert!(prefilling <= self.config.prefill_rows_max);
        assert!(prefilling + decoding <= self.config.batch_rows_max);
        let started = |row: &&RowSnapshot| row.state != "waiting";
        let serial = snapshot.rows.iter().filter(started).any(|row| row.lane == "serial");
        assert!(!serial || prefilling + decoding == 1, "a serial row has company");
        for class in self.classes() {
            let class = |row: &&RowSnapshot| class.contains(&row.priority);
            let waiting = snapshot.rows.iter().filter(class).skip_while(started);
            assert!(waiting.clone().all(|row| !started(&row)), "a row was overtaken");
            assert!(waiting.is_sorted_by_key(|row| row.queue_place), "shown out of turn");
        }
        for row in &snapshot.rows {
            assert_eq!(row.waiting_reason.is_some(), row.state == "waiting", "{row:?}");
        }
        let mut places: Vec<_> = snapshot.rows.iter().filter_map(|row| row.queue_place).collect();
        places.sort_unstable();
        assert_eq!(places, (1..=count("waiting")).collect::<Vec<_>>());
        assert_eq!(snapshot.batch.active_rows, decoding);
        assert_eq!(snapshot.batch.pending_rows, count("waiting") + prefilling);
    }

    /// The names of the priorities whose rows must not overtake each other.
    fn classes(&self) -> Vec<Vec<&'static str>> {
        let names = Priority::ALL.map(Priority::name);
        match self.config.batch_rows_max {
            1 => vec![names.to_vec()],
            _ => names.map(|name| vec![name]).to_vec(),
        }
    }

    /// Nobody starves. A row sees no more rows start before it than waited when it came, and if it is
    /// a background row its overtakes on top; those have their bound; and while rows wait, the next
    /// start is no farther away than the end of the longest row.
    fn check_turns(&mut self, opened_before: usize, snapshot: &Snapshot) {
        let journal = self.journal.open();
        let guests = self.guests.borrow();
        for id in &journal.opened[opened_before..] {
            let started = index(id);
            self.queue_moved = self.tick;
            self.waits.remove(&started);
            for (index, wait) in &mut self.waits {
                wait.starts += 1;
                wait.overtakes += usize::from(started > *index);
                let priority = guests[*index].spec.priority;
                let background = priority == Priority::Background && self.config.batch_rows_max > 1;
                let turns = if background { wait.ahead_of_its_kind + 1 } else { 0 };
                assert!(wait.overtakes <= turns * OVERTAKES_MAX, "row {index}: {wait:?}");
                assert!(wait.starts <= wait.ahead + wait.overtakes, "row {index}: {wait:?}");
            }
        }
        if snapshot.rows.iter().all(|row| row.state != "waiting") {
            self.queue_moved = self.tick;
        }
        let longest = guests.iter().map(|guest| self.ticks_max(&guest.spec)).max().unwrap_or(0);
        assert!(self.tick - self.queue_moved <= longest, "the queue stands still");
    }

    /// Ticks that a row may be live, from its start.
    fn ticks_max(&self, spec: &RowSpec) -> u64 {
        let chunk_tokens = match self.config.max_gap {
            Some(_) => self.config.prefill_chunk_tokens.min(PREFILL_GRANULE_TOKENS),
            None => self.config.prefill_chunk_tokens,
        };
        let slices = spec.prompt.len().div_ceil(chunk_tokens) + 1;
        let slices = slices + spec.boundaries.len();
        (slices * (self.config.prefill_rows_max + 1) + spec.max_tokens + 1) as u64
    }

    /// A client who had left before the tick has no row after it.
    fn check_departed(&self, departed: &[usize], snapshot: &Snapshot) {
        let mut live = snapshot.rows.iter().map(|row| index(&row.id));
        assert!(!live.any(|row| departed.contains(&row)), "{departed:?} were not evicted");
    }

    /// What was heard is the start of the right answer; a row that decoded before the tick heard one
    /// more token in it or ended.
    fn check_heard(&self, heard_before: &[usize]) {
        for (index, guest) in self.guests.borrow().iter().enumerate() {
            let tokens = guest.client.tokens();
            assert!(guest.answer.tokens.starts_with(tokens), "row {index} heard {tokens:?}");
            let decoded = self.pulses.get(&index).is_some_and(|pulse| pulse.state == "decoding");
            if decoded && !guest.client.has_left() && guest.client.end().is_none() {
                assert_eq!(tokens.len(), heard_before[index] + 1, "row {index} lost its turn");
            }
        }
    }

    /// No prefilling row stands still for longer than a round of turns.
    fn check_pulses(&mut self, snapshot: &Snapshot) {
        let mut pulses = BTreeMap::new();
        for row in &snapshot.rows {
            let index = index(&row.id);
            let state = row.state;
            let old = self
                .pulses
                .get(&index)
                .filter(|old| (old.state, old.prefilled_tokens) == (state, row.prefilled_tokens));
            let tick = old.map_or(self.tick, |old| old.tick);
            let pulse = Pulse { state, prefilled_tokens: row.prefilled_tokens, tick };
            let still = self.tick - pulse.tick;
            let turns = self.config.prefill_rows_max as u64 + 1;
            assert!(state != "prefilling" || still <= turns, "row {index} starves");
            pulses.insert(index, pulse);
        }
        self.pulses = pulses;
    }

    /// Every row ended once, the way it should.
    fn check_end(&self) {
        let snapshot = self.scheduler.snapshot();
        let journal = self.journal.open();
        let guests = self.guests.borrow();
        assert!(snapshot.rows.is_empty());
        assert_eq!(snapshot.batch.submitted_rows, guests.len() as u64);
        assert_eq!(snapshot.totals.finished_rows, guests.len() as u64);
        let batch = &snapshot.batch;
        assert_eq!(
            (batch.kv_bytes, batch.kv_projected_bytes, journal.counts.kv_bytes()),
            (0, 0, 0)
        );
        let opened = journal.opened.iter().map(|id| index(id));
        for class in self.classes() {
            let class = |index: &usize| class.contains(&guests[*index].spec.priority.name());
            let opened: Vec<usize> = opened.clone().filter(class).collect();
            assert!(opened.is_sorted_by(|left, right| left < right), "started as {opened:?}");
        }
        let mut failed_rows = 0;
        for (index, guest) in guests.iter().enumerate() {
            if guest.client.has_left() {
                continue;
            }
            match guest.client.end() {
                Some(RowEvent::Finished { reason, usage }) => {
                    assert_eq!(*reason, guest.answer.reason, "row {index}");
                    assert_eq!(guest.client.tokens(), guest.answer.tokens, "row {index}");
                    assert_eq!(
                        guest.client.vector(),
                        guest.answer.vector.as_deref(),
                        "row {index}"
                    );
                    assert_eq!(usage.generated_tokens, guest.answer.generated_tokens);
                    assert_eq!(usage.prompt_tokens, guest.spec.prompt.len());
                    assert!(!journal.hit.contains(&guest.spec.id), "row {index} was hit");
                    assert!(!self.is_too_large(&guest.spec), "row {index} is over the budget");
                    check_prefilled(guest);
                }
                Some(RowEvent::Failed(error)) => {
                    failed_rows += 1;
                    let opened = journal.opened.contains(&guest.spec.id);
                    let refused = match error.code() {
                        Code::QueueFull => !opened,
                        Code::OverBudget => !opened && self.is_too_large(&guest.spec),
                        _ => false,
                    };
                    assert!(
                        refused || journal.hit.contains(&guest.spec.id),
                        "row {index}: {error}"
                    );
                }
                other => panic!("row {index} ended with {other:?}"),
            }
        }
        assert!(snapshot.totals.failed_rows >= failed_rows);
    }

    fn is_too_large(&self, spec: &RowSpec) -> bool {
        self.config.kv_budget_bytes.is_some_and(|budget| spec.kv_bytes > budget)
    }
}

/// What a row that is about to be submitted has ahead of it.
fn wait_of(priority: Priority, scheduler: &Scheduler<ScriptedExecutor>) -> Wait {
    let rows = scheduler.snapshot().rows;
    let waiting = rows.iter().filter(|row| row.state == "waiting");
    let ahead_of_its_kind = waiting.clone().filter(|row| row.priority == priority.name());
    Wait {
        ahead: waiting.count(),
        ahead_of_its_kind: ahead_of_its_kind.count(),
        starts: 0,
        overtakes: 0,
    }
}

/// What was told with token 0 is what the end tells.
fn check_prefilled(guest: &Guest) {
    let (_, usage) = guest.client.finish().expect("it finished");
    let Some(RowEvent::Prefilled { cached_tokens, queue_ms, prefill_ms, .. }) =
        guest.client.prefilled()
    else {
        panic!("it did not tell that its prompt was done")
    };
    assert_eq!(*cached_tokens, usage.cached_tokens);
    assert_eq!((*queue_ms, *prefill_ms), (usage.queue_ms, usage.prefill_ms));
    assert!(*cached_tokens < guest.spec.prompt.len(), "the last token always runs");
}

fn index(id: &str) -> usize {
    id.parse().expect("a row's id is its index")
}

fn random_config(random: &mut Random) -> SchedulerConfig {
    SchedulerConfig {
        batch_rows_max: *random.pick(&[1, 2, 3, 4, 8]),
        prefill_rows_max: *random.pick(&[1, 1, 2, 3]),
        prefill_chunk_tokens: *random.pick(&[1, 2, 3, 5, 8, 16, 64]),
        max_gap: (*random.pick(&[None, None, Some(5), Some(100)])).map(Duration::from_millis),
        kv_budget_bytes: *random.pick(&[None, None, Some(500), Some(3_000), Some(8_000)]),
        waiting_rows_max: *random.pick(&[3, 16, 64, 64]),
        levers: Levers {
            no_pipeline: random.once_in(5),
            no_tail_split: random.once_in(5),
            ..Levers::default()
        },
        prompt_cache_bytes: *random.pick(&[0, 600, 4_000, 1 << 40]),
        kept_prompt_tokens_min: *random.pick(&[1, 8, 64]),
    }
}

/// A device with a cost per call, per prompt token, and per token that a prompt has before.
fn random_pace(random: &mut Random, clock: &Clock) -> Pace {
    let call_micros = *random.pick(&[0, 50, 5_000]);
    let token_micros = *random.pick(&[0, 10, 2_000]);
    let cost = move |call: Call, tokens: usize, fed_tokens: usize| match call {
        Call::Prefill | Call::FirstToken | Call::Vector => {
            let micros = call_micros + tokens * (token_micros + fed_tokens / 10);
            Duration::from_micros(micros as u64)
        }
        Call::Step => Duration::from_micros(call_micros as u64),
        Call::Open | Call::Restore | Call::Join | Call::Flush | Call::Filter => Duration::ZERO,
    };
    Pace { clock: clock.clone(), cost: Box::new(cost) }
}

fn random_guests(random: &mut Random) -> Vec<Guest> {
    let rows = random.size(1, 24);
    let serial_once_in = *random.pick(&[2, 5, 1000]);
    let background_once_in = *random.pick(&[1, 2, 4, 1000]);
    let grammar_once_in = *random.pick(&[1, 2, 4, 1000, 1000]);
    let vector_once_in = *random.pick(&[2, 4, 1000, 1000]);
    let leaves_once_in = *random.pick(&[2, 4, 1000]);
    let arrivals_spread = *random.pick(&[0, 10, 100]);
    let mut arrives_tick = 1;
    let mut guests = Vec::new();
    for index in 0..rows {
        arrives_tick += random.between(0, arrivals_spread) / rows as u64;
        let mut spec = random_spec(random, index, serial_once_in);
        if random.once_in(background_once_in) {
            spec.priority = Priority::Background;
        }
        if random.once_in(grammar_once_in) {
            spec.grammar = Some(random.pick(grammar::cases()).grammar.clone());
            spec.stop_tokens = [grammar::END].into();
        }
        if random.once_in(vector_once_in) {
            let dimensions = random.once_in(2).then(|| random.size(1, 4));
            spec = script::for_vector(spec, dimensions);
        }
        let leaves = match random.once_in(leaves_once_in) {
            true => random_departure(random, arrives_tick),
            false => Leaves::Never,
        };
        let (client, events) = Client::new(spec.max_tokens);
        let (answer, events) = (answer(&spec), Some(events));
        guests.push(Guest { spec, answer, client, events, arrives_tick, leaves });
    }
    guests
}

fn random_spec(random: &mut Random, index: usize, serial_once_in: u64) -> RowSpec {
    let prompt_tokens = match random.between(0, 9) {
        0 => 1,
        1 => 2,
        2..=7 => random.size(1, 24),
        _ => random.size(1, 200),
    };
    let max_tokens = match random.between(0, 9) {
        0 => 1,
        1 => 2,
        2..=8 => random.size(1, 40),
        _ => random.size(1, 160),
    };
    let stop_tokens: &[u32] = random.pick::<&[u32]>(&[&[], &[7], &[3, 9, 11, 40]]);
    // Two words only, so that rows often share a beginning; half of them have a long one in common.
    let mut prompt: Vec<u32> = (0..prompt_tokens).map(|_| random.between(0, 1) as u32).collect();
    if random.once_in(2) {
        let common = random.size(0, prompt_tokens);
        prompt[..common].fill(random.between(0, 1) as u32);
    }
    let mut boundaries: Vec<usize> =
        (0..random.size(0, 2)).map(|_| random.size(0, prompt_tokens)).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    RowSpec {
        boundaries,
        lane: if random.once_in(serial_once_in) { Lane::Serial } else { Lane::Continuous },
        stop_tokens: stop_tokens.into(),
        sampling: SamplingParams {
            seed: random.once_in(2).then(|| random.between(0, 3)),
            ..SamplingParams::default()
        },
        ..row(index.to_string(), prompt, max_tokens)
    }
}

fn random_departure(random: &mut Random, arrives_tick: u64) -> Leaves {
    match random.between(0, 3) {
        0 => Leaves::BeforeTick(random.between(arrives_tick.saturating_sub(2), arrives_tick + 4)),
        1 => Leaves::BeforeTick(random.between(1, arrives_tick + 100)),
        2 => Leaves::AfterTokens(random.size(1, 12)),
        _ => Leaves::DuringCall(random.between(1, 300)),
    }
}

fn random_faults(random: &mut Random) -> Vec<(Call, u64, Fault)> {
    let faults = random.between(0, 6).saturating_sub(3);
    let fault = |_| (*random.pick(&Call::ALL), random.between(1, 25), Fault::Error);
    (0..faults).map(fault).collect()
}

fn departures_during_calls(guests: &Rc<RefCell<Vec<Guest>>>) -> Box<dyn FnMut(u64)> {
    let guests = Rc::clone(guests);
    Box::new(move |call| {
        for guest in guests.borrow_mut().iter_mut() {
            if guest.leaves == Leaves::DuringCall(call) {
                guest.client.leave();
            }
        }
    })
}
