//! Random events for few models that do not fit together, held against a machine that keeps flat lists and thinks
//! of everything anew at each event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::clock::Time;
use crate::error::{Code, Error};
use crate::gateway::catalogue::Source;
use crate::gateway::residency::machine::{Answer, Bounds, Effect, Keeping, Machine, Stage, Ticket};

const RUNS: u64 = 200;
const EVENTS: usize = 1_000;
const ROOM_BYTES: u64 = 9;
/// Bytes of each model; the last one never fits beside another.
const MODELS: [u64; 4] = [3, 4, 5, 9];
const S: Duration = Duration::from_secs(1);

const BOUNDS: Bounds = Bounds {
    weights_bytes_max: Some(ROOM_BYTES),
    waiters_max: 3,
    load_wait: Duration::from_secs(40),
    room_wait: Duration::from_secs(15),
    failure_pause: Duration::from_secs(5),
};

#[test]
fn the_machine_does_what_a_naive_one_does_and_every_request_hears_one_end() {
    let mut seen = Seen::default();
    for seed in 0..RUNS {
        let mut world = World::new(seed);
        for event in 0..EVENTS {
            world.step();
            world.compare(&format!("seed {seed}, event {event}"));
        }
        world.wind_up(&format!("seed {seed}"));
        seen.add(&world.seen);
    }
    seen.check();
}

fn source(model: usize) -> Source {
    let id = format!("m{model}").into();
    Source { id, directory: "/m".into(), weights_bytes: MODELS[model], download: None }
}

fn index(id: &str) -> usize {
    id[1..].parse().unwrap()
}

fn failure() -> Error {
    Error::new(Code::BadModel, "scripted")
}

/// How often each kind of thing happened, so that the test cannot shrink unnoticed.
#[derive(Debug, Default)]
struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    fn check(&self) {
        for what in [
            "granted", "refused", "waits", "load", "unload", "drop", "end", "grant", "refuse",
            "lost", "fail", "draining", "expired",
        ] {
            let count = self.0.get(what).copied().unwrap_or_default();
            assert!(count > 50, "{what} happened {count} times: {self:?}");
        }
    }
}

/// Both machines, and whoever loads, unloads and asks.
struct World {
    random: StdRng,
    now: Time,
    machine: Machine,
    naive: Naive,
    loading: BTreeSet<usize>,
    unloading: BTreeSet<usize>,
    /// Tickets that wait, and for what.
    waiting: BTreeMap<u64, usize>,
    leases: Vec<usize>,
    pinned: [bool; MODELS.len()],
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            now: S,
            machine: Machine::new(BOUNDS),
            naive: Naive::default(),
            loading: BTreeSet::new(),
            unloading: BTreeSet::new(),
            waiting: BTreeMap::new(),
            leases: Vec::new(),
            pinned: [false; MODELS.len()],
            seen: Seen::default(),
        }
    }

    fn keeping(&self, model: usize) -> Keeping {
        Keeping { pinned: self.pinned[model], ttl: (model != 1).then_some(7 * S) }
    }

    fn step(&mut self) {
        let model = self.random.random_range(0..MODELS.len());
        match self.random.random_range(0..100) {
            0..30 => self.ask(model),
            30..34 => self.leave(),
            34..52 => self.release(),
            52..70 => self.end_load(),
            70..84 => self.end_unload(),
            84..87 => self.route_unload(model),
            87..89 => self.route_load(model),
            89..91 => self.pin(model),
            91..92 => self.lose(model),
            _ => self.pass_time(),
        }
    }

    fn ask(&mut self, model: usize) {
        let keeping = self.keeping(model);
        let answer = self.machine.ask(self.now, &source(model), keeping);
        let expected = self.naive.ask(self.now, model, keeping);
        match (&answer, expected) {
            (Answer::Granted, "granted") => self.leases.push(model),
            (Answer::Waits(Ticket(ticket)), "waits") => {
                self.naive.ticket(*ticket, model, self.now);
                assert!(self.waiting.insert(*ticket, model).is_none());
            }
            (Answer::Refused(_), "refused") => {}
            (_, expected) => panic!("{answer:?}, expected {expected}"),
        }
        self.seen.note(expected);
        self.naive.settle(self.now);
    }

    fn leave(&mut self) {
        let Some((ticket, model)) = self.pick_waiting() else { return };
        self.waiting.remove(&ticket);
        self.machine.leave(self.now, &source(model).id, Ticket(ticket));
        self.naive.tickets.retain(|waiter| waiter.ticket != ticket);
        self.naive.settle(self.now);
    }

    fn pick_waiting(&mut self) -> Option<(u64, usize)> {
        let nth = self.random.random_range(0..self.waiting.len().max(1));
        self.waiting.iter().nth(nth).map(|(ticket, model)| (*ticket, *model))
    }

    fn release(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let nth = self.random.random_range(0..self.leases.len());
        let model = self.leases.swap_remove(nth);
        self.machine.release(self.now, &source(model).id);
        self.naive.release(self.now, model);
    }

    fn end_load(&mut self) {
        let Some(model) = self.loading.pop_first() else { return };
        let fails = self.random.random_range(0..4) == 0;
        let outcome = if fails { Err(failure()) } else { Ok(MODELS[model]) };
        self.seen.note(if fails { "fail" } else { "loaded" });
        self.naive.loaded(self.now, model, !fails);
        self.machine.loaded(self.now, &source(model).id, outcome);
    }

    fn end_unload(&mut self) {
        let Some(model) = self.unloading.pop_last() else { return };
        self.naive.unloaded(self.now, model);
        self.machine.unloaded(self.now, &source(model).id);
    }

    fn route_unload(&mut self, model: usize) {
        let force = self.random.random_range(0..2) == 0;
        self.naive.unload(self.now, model, force);
        self.machine.unload(self.now, &source(model).id, force);
    }

    fn route_load(&mut self, model: usize) {
        let keeping = self.keeping(model);
        self.naive.load(self.now, model, keeping);
        self.machine.load(self.now, &source(model), keeping);
    }

    fn pin(&mut self, model: usize) {
        self.pinned[model] ^= true;
        let keeping = self.keeping(model);
        self.naive.keep(self.now, model, keeping);
        self.machine.keep(self.now, &source(model), keeping);
    }

    fn lose(&mut self, model: usize) {
        self.seen.note("lost");
        self.naive.lose(self.now, model);
        self.machine.lost(self.now, &source(model).id, &failure());
    }

    fn pass_time(&mut self) {
        self.now += S * self.random.random_range(0..6);
        self.naive.settle(self.now);
        self.machine.wake(self.now);
    }

    /// Holds what both did against each other, and does it.
    fn compare(&mut self, when: &str) {
        let effects = self.machine.take_effects();
        let told: Vec<Told> = effects.iter().map(Told::of).collect();
        let mut expected = std::mem::take(&mut self.naive.told);
        let mut sorted = told.clone();
        sorted.sort();
        expected.sort();
        assert_eq!(sorted, expected, "{when}");
        for told in told {
            self.obey(told, when);
        }
        self.machine.check_integrity();
        for model in 0..MODELS.len() {
            let Some(real) = self.machine.get(&source(model).id) else { continue };
            let naive = &self.naive.models[model];
            let stage = if matches!(real.stage, Stage::Waiting { .. }) {
                "waiting"
            } else {
                real.stage.name()
            };
            assert_eq!((stage, real.leases), (naive.stage, naive.leases), "{when}: m{model}");
            let ours = self.leases.iter().filter(|lease| **lease == model).count();
            assert_eq!(real.leases, ours, "{when}: a lease of m{model} was lost or doubled");
            if stage == "draining" {
                self.seen.note("draining");
            }
        }
        let waits: usize = self.machine.models().map(|model| model.waiters.len()).sum();
        assert_eq!(waits, self.waiting.len(), "{when}: a request was lost or doubled");
        let held: Vec<usize> = (0..MODELS.len()).filter(|model| self.naive.held(*model)).collect();
        let bytes: u64 = held.iter().map(|model| MODELS[*model]).sum();
        assert!(bytes <= ROOM_BYTES || held.len() == 1, "{when}: {held:?} are in memory");
        let due = self.machine.due_at();
        assert!(due.is_none_or(|due| due > self.now), "{when}: something is overdue");
    }

    fn obey(&mut self, told: Told, when: &str) {
        match told {
            Told::Load(model) => {
                assert!(self.loading.insert(model), "{when}: two loads of m{model}");
                assert!(!self.unloading.contains(&model), "{when}: loaded while it goes");
                self.seen.note("load");
            }
            Told::DropLoad(model) => {
                assert!(self.loading.remove(&model), "{when}: no load to give up");
                assert!(self.unloading.insert(model), "{when}");
                self.seen.note("drop");
            }
            Told::Unload(model) => {
                assert!(self.unloading.insert(model), "{when}: unloaded twice");
                self.seen.note("unload");
            }
            Told::End(_) => self.seen.note("end"),
            Told::Grant(ticket, model) => {
                assert_eq!(self.waiting.remove(&ticket), Some(model), "{when}: heard twice");
                self.leases.push(model);
                self.seen.note("grant");
            }
            Told::Refuse(ticket) => {
                assert!(self.waiting.remove(&ticket).is_some(), "{when}: heard twice");
                self.seen.note("refuse");
            }
        }
    }

    /// Lets everything end: then nobody waits, nothing is leased, and only what is pinned or kept for ever stays.
    fn wind_up(&mut self, when: &str) {
        let expired = self.seen.0.get("unload").copied().unwrap_or_default();
        for _ in 0..200 {
            self.release();
            self.compare(when);
            self.end_load();
            self.compare(when);
            self.end_unload();
            self.compare(when);
            self.pass_time();
            self.compare(when);
        }
        assert!(self.waiting.is_empty() && self.leases.is_empty(), "{when}: {:?}", self.waiting);
        for model in 0..MODELS.len() {
            let stays = self.pinned[model] || self.keeping(model).ttl.is_none();
            assert!(stays || !self.naive.held(model), "{when}: m{model} was never unloaded");
        }
        if self.seen.0.get("unload").copied().unwrap_or_default() > expired {
            self.seen.note("expired");
        }
    }
}

/// An effect, so that two lists of them can be compared whatever their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Load(usize),
    DropLoad(usize),
    Unload(usize),
    End(usize),
    Grant(u64, usize),
    Refuse(u64),
}

impl Told {
    fn of(effect: &Effect) -> Self {
        let model = |id: &Arc<str>| index(id);
        match effect {
            Effect::Load(source) => Self::Load(model(&source.id)),
            Effect::DropLoad(id) => Self::DropLoad(model(id)),
            Effect::Unload(id) => Self::Unload(model(id)),
            Effect::EndRequests(id) => Self::End(model(id)),
            Effect::Grant(Ticket(ticket), id) => Self::Grant(*ticket, model(id)),
            Effect::Refuse(Ticket(ticket), _) => Self::Refuse(*ticket),
        }
    }
}

/// The same rules, thought through from flat lists each time.
#[derive(Default)]
struct Naive {
    models: [NaiveModel; MODELS.len()],
    /// All that wait, in the order in which they came.
    tickets: Vec<NaiveTicket>,
    /// Models that wait for memory, in order, with the time since when.
    queue: Vec<(usize, Time)>,
    told: Vec<Told>,
}

#[derive(Clone, Copy)]
struct NaiveModel {
    stage: &'static str,
    leases: usize,
    used_at: Time,
    failed_at: Time,
    drains: bool,
    keeping: Keeping,
    known: bool,
}

impl Default for NaiveModel {
    fn default() -> Self {
        let (stage, keeping) = ("absent", Keeping { pinned: false, ttl: None });
        let (used_at, failed_at) = (Time::ZERO, Time::ZERO);
        Self { stage, leases: 0, used_at, failed_at, drains: false, keeping, known: false }
    }
}

struct NaiveTicket {
    ticket: u64,
    model: usize,
    until: Time,
}

impl Naive {
    fn know(&mut self, model: usize, keeping: Keeping) -> &mut NaiveModel {
        let one = &mut self.models[model];
        if !one.known {
            (one.known, one.keeping) = (true, keeping);
        }
        one
    }

    fn held(&self, model: usize) -> bool {
        ["loading", "ready", "draining", "unloading"].contains(&self.models[model].stage)
    }

    fn ask(&mut self, now: Time, model: usize, keeping: Keeping) -> &'static str {
        let waiters = self.tickets.iter().filter(|waiter| waiter.model == model).count();
        let one = self.know(model, keeping);
        one.used_at = now;
        match one.stage {
            "ready" => {
                one.leases += 1;
                "granted"
            }
            "failed" if now < one.failed_at + BOUNDS.failure_pause => "refused",
            _ if waiters == BOUNDS.waiters_max => "refused",
            _ => "waits",
        }
    }

    fn ticket(&mut self, ticket: u64, model: usize, now: Time) {
        self.tickets.push(NaiveTicket { ticket, model, until: now + BOUNDS.load_wait });
        self.want(model, now);
    }

    /// Puts the model in the queue if nothing of it is under way.
    fn want(&mut self, model: usize, now: Time) {
        if ["absent", "failed"].contains(&self.models[model].stage) {
            self.models[model].stage = "waiting";
            self.queue.push((model, now));
        }
    }

    fn release(&mut self, now: Time, model: usize) {
        self.models[model].leases -= 1;
        self.models[model].used_at = now;
        self.settle(now);
    }

    fn load(&mut self, now: Time, model: usize, keeping: Keeping) {
        self.know(model, keeping).used_at = now;
        self.want(model, now);
        self.models[model].drains = false;
        if self.models[model].stage == "draining" {
            self.models[model].stage = "ready";
            self.grant(model);
        }
        self.settle(now);
    }

    fn keep(&mut self, now: Time, model: usize, keeping: Keeping) {
        self.know(model, keeping).keeping = keeping;
        self.settle(now);
    }

    fn unload(&mut self, now: Time, model: usize, force: bool) {
        if !self.models[model].known {
            return;
        }
        let waits = self.tickets.iter().any(|waiter| waiter.model == model);
        let leased = self.models[model].leases > 0;
        match self.models[model].stage {
            "failed" | "waiting" => {
                self.queue.retain(|(other, _)| *other != model);
                self.models[model].stage = "absent";
                self.refuse(model);
            }
            "loading" if waits && !force => self.models[model].drains = true,
            "loading" => {
                self.models[model].stage = "unloading";
                self.told.push(Told::DropLoad(model));
            }
            "ready" | "draining" => {
                self.models[model].stage = "draining";
                self.told.extend((force && leased).then_some(Told::End(model)));
            }
            _ => {}
        }
        if force {
            self.refuse(model);
        }
        self.settle(now);
    }

    fn loaded(&mut self, now: Time, model: usize, well: bool) {
        if well {
            let drains = self.models[model].drains;
            self.models[model].stage = if drains { "draining" } else { "ready" };
            self.models[model].used_at = now;
            self.grant(model);
        } else {
            self.models[model].stage = "failed";
            self.models[model].failed_at = now;
            self.refuse(model);
        }
        self.settle(now);
    }

    fn unloaded(&mut self, now: Time, model: usize) {
        self.models[model].stage = "absent";
        if self.tickets.iter().any(|waiter| waiter.model == model) {
            self.want(model, now);
        }
        self.settle(now);
    }

    fn lose(&mut self, now: Time, model: usize) {
        if ["ready", "draining"].contains(&self.models[model].stage) {
            self.models[model].stage = "failed";
            self.models[model].failed_at = now;
            self.refuse(model);
        }
        self.settle(now);
    }

    fn grant(&mut self, model: usize) {
        for waiter in self.tickets.extract_if(.., |waiter| waiter.model == model) {
            self.models[model].leases += 1;
            self.told.push(Told::Grant(waiter.ticket, model));
        }
    }

    fn refuse(&mut self, model: usize) {
        let gone = self.tickets.extract_if(.., |waiter| waiter.model == model);
        self.told.extend(gone.map(|waiter| Told::Refuse(waiter.ticket)));
    }

    fn settle(&mut self, now: Time) {
        let late = self.tickets.extract_if(.., |waiter| waiter.until <= now);
        self.told.extend(late.map(|waiter| Told::Refuse(waiter.ticket)));
        for (index, one) in self.models.iter_mut().enumerate() {
            let free = one.leases == 0;
            let old = one.keeping.ttl.is_some_and(|ttl| one.used_at + ttl <= now);
            let expired = one.stage == "ready" && free && old && !one.keeping.pinned;
            if expired || (one.stage == "draining" && free) {
                one.stage = "unloading";
                self.told.push(Told::Unload(index));
            }
        }
        while let Some((model, since)) = self.queue.first().copied() {
            let bytes = |models: &[usize]| models.iter().map(|model| MODELS[*model]).sum::<u64>();
            let held: Vec<usize> = (0..MODELS.len()).filter(|other| self.held(*other)).collect();
            if held.is_empty() || bytes(&held) + MODELS[model] <= ROOM_BYTES {
                self.queue.remove(0);
                self.models[model].stage = "loading";
                self.models[model].drains = false;
                self.told.push(Told::Load(model));
                continue;
            }
            let staying: Vec<usize> =
                held.into_iter().filter(|other| self.models[*other].stage != "unloading").collect();
            let fixed: Vec<usize> = staying
                .iter()
                .copied()
                .filter(|other| self.models[*other].keeping.pinned)
                .collect();
            if bytes(&fixed) + MODELS[model] > ROOM_BYTES || now >= since + BOUNDS.room_wait {
                self.queue.remove(0);
                self.models[model].stage = "absent";
                self.refuse(model);
                continue;
            }
            self.evict(&staying, model);
            break;
        }
    }

    /// Unloads the fewest, the least recently used first, if that makes room for `model`.
    fn evict(&mut self, staying: &[usize], model: usize) {
        let idle = |other: &&usize| {
            let one = &self.models[**other];
            one.stage == "ready" && one.leases == 0 && !one.keeping.pinned
        };
        let mut victims: Vec<usize> = staying.iter().filter(idle).copied().collect();
        victims.sort_by_key(|other| self.models[*other].used_at);
        let all: u64 = staying.iter().map(|other| MODELS[*other]).sum();
        let without = |count: usize| all - victims[..count].iter().map(|m| MODELS[*m]).sum::<u64>();
        let enough =
            (0..=victims.len()).find(|count| without(*count) + MODELS[model] <= ROOM_BYTES);
        for victim in victims.into_iter().take(enough.unwrap_or(0)) {
            self.models[victim].stage = "unloading";
            self.told.push(Told::Unload(victim));
        }
    }
}
