//! Which models are loaded, as a pure state machine: events in, effects out, no clock and no thread.
//!
//! Life of a model:
//! 1. *absent*: known, not in memory. A request or a person asks for it.
//! 2. *waiting*: for memory. In the order in which they were asked for, models wait until their weights fit beside
//!    those that are loaded; others are unloaded for that which nobody uses, holds or has pinned, those used least
//!    recently first, but only if that is enough. It is bounded: then whoever waits hears what holds the memory.
//! 3. *loading*: its weights count. Requests that came since wait for it.
//! 4. *ready*: requests take leases.
//! 5. *draining*: it is to go, and leases are out. Those end in peace; requests that come now wait for it to be
//!    loaded again.
//! 6. *unloading*: its memory is on its way back. Then it is absent, or waits again if requests do.
//! 7. *failed*: it could not be loaded. For a while requests hear why; the next one after that tries again.
//!
//! Invariants, asserted by [`Machine::check_integrity`]: tickets wait in stages 2, 3, 5 and 6 alone; leases are out
//! in *ready* and *draining* (and of a lost load, until they end); the weights of what is loaded, loading or on its
//! way out fit the memory. Every ticket hears exactly one grant or refusal, unless it leaves before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Time;
use crate::config::ByteCount;
use crate::error::{Code, Error, Result};
use crate::gateway::catalogue::Source;

/// Names a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket(pub(super) u64);

/// What a machine holds to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// What weights may take together; `None` is no bound.
    pub(super) weights_bytes_max: Option<u64>,
    /// Requests that wait for one model at most.
    pub(super) waiters_max: usize,
    /// How long a request waits.
    pub(super) load_wait: Duration,
    /// How long a model waits for memory.
    pub(super) room_wait: Duration,
    /// How long a failure stands.
    pub(super) failure_pause: Duration,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// Load it; [`Machine::loaded`] says what came of that.
    Load(Source),
    /// Give the load up; [`Machine::unloaded`] says when its memory is back.
    DropLoad(Arc<str>),
    /// Unload it; [`Machine::unloaded`] says when its memory is back.
    Unload(Arc<str>),
    /// End its live requests.
    EndRequests(Arc<str>),
    /// The request has a lease of this model.
    Grant(Ticket, Arc<str>),
    /// The request hears this.
    Refuse(Ticket, Error),
}

/// What a request for a model hears at once.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// It has a lease.
    Granted,
    /// It hears later.
    Waits(Ticket),
    /// It will not have one.
    Refused(Error),
}

/// How a model is treated that nobody asked anything about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keeping {
    /// Whether it only goes when a person says so.
    pub(super) pinned: bool,
    /// How long it stays after its last use; `None` is for ever.
    pub(super) ttl: Option<Duration>,
}

/// Where a model stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    Absent,
    Waiting { since: Time, turn: u64 },
    Loading { drains: bool },
    Ready,
    Draining,
    Unloading,
    Failed { error: Error, since: Time },
}

/// A model that was asked for at least once.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) source: Source,
    pub(super) keeping: Keeping,
    pub(super) stage: Stage,
    pub(super) leases: usize,
    pub(super) waiters: VecDeque<Waiter>,
    /// When it was asked for, or a lease of it ended, last.
    pub(super) used_at: Time,
    pub(super) weights_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) until: Time,
}

/// See the module's words.
#[derive(Debug)]
pub(super) struct Machine {
    bounds: Bounds,
    models: BTreeMap<Arc<str>, Model>,
    effects: Vec<Effect>,
    tickets: u64,
    turns: u64,
}

impl Machine {
    pub(super) fn new(bounds: Bounds) -> Self {
        let models = BTreeMap::new();
        Self { bounds, models, effects: Vec::new(), tickets: 0, turns: 0 }
    }

    /// A request for the model of `source` comes.
    pub(super) fn ask(&mut self, now: Time, source: &Source, keeping: Keeping) -> Answer {
        let (pause, waiters_max) = (self.bounds.failure_pause, self.bounds.waiters_max);
        let model = self.model(source, keeping);
        model.used_at = now;
        match &model.stage {
            Stage::Ready => {
                model.leases += 1;
                return Answer::Granted;
            }
            Stage::Failed { error, since } if now < *since + pause => {
                return Answer::Refused(error.clone());
            }
            _ if model.waiters.len() >= waiters_max => {
                let message = format!("{waiters_max} requests wait for `{}`", source.id);
                let error = Error::new(Code::QueueFull, message).with_hint("try again later");
                return Answer::Refused(error);
            }
            _ => {}
        }
        let until = now + self.bounds.load_wait;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let model = self.model(source, keeping);
        model.waiters.push_back(Waiter { ticket, until });
        if matches!(model.stage, Stage::Absent | Stage::Failed { .. }) {
            self.enqueue(&source.id, now);
        }
        self.settle(now);
        Answer::Waits(ticket)
    }

    /// A request that waits for `id` leaves.
    pub(super) fn leave(&mut self, now: Time, id: &str, ticket: Ticket) {
        if let Some(model) = self.models.get_mut(id) {
            model.waiters.retain(|waiter| waiter.ticket != ticket);
        }
        self.settle(now);
    }

    /// A lease of `id` ends.
    pub(super) fn release(&mut self, now: Time, id: &str) {
        if let Some(model) = self.models.get_mut(id) {
            model.leases -= 1;
            model.used_at = now;
        }
        self.settle(now);
    }

    /// Somebody wants the model of `source` loaded, whatever failed before.
    pub(super) fn load(&mut self, now: Time, source: &Source, keeping: Keeping) {
        let model = self.model(source, keeping);
        model.used_at = now;
        match &mut model.stage {
            Stage::Absent | Stage::Failed { .. } => self.enqueue(&source.id, now),
            Stage::Loading { drains } => *drains = false,
            // It is not unloaded yet.
            stage @ Stage::Draining => {
                *stage = Stage::Ready;
                self.grant_waiters(&source.id);
            }
            Stage::Waiting { .. } | Stage::Ready | Stage::Unloading => {}
        }
        self.settle(now);
    }

    /// Somebody wants `id` unloaded; with `force`, its live and waiting requests end now.
    pub(super) fn unload(&mut self, now: Time, id: &str, force: bool) {
        let Some(model) = self.models.get_mut(id) else { return };
        match model.stage {
            Stage::Absent | Stage::Unloading => {}
            Stage::Failed { .. } | Stage::Waiting { .. } => model.stage = Stage::Absent,
            Stage::Loading { .. } if force || model.waiters.is_empty() => {
                model.stage = Stage::Unloading;
                self.effects.push(Effect::DropLoad(Arc::clone(&model.source.id)));
            }
            Stage::Loading { ref mut drains } => *drains = true,
            Stage::Ready | Stage::Draining => {
                model.stage = Stage::Draining;
                if force && model.leases > 0 {
                    self.effects.push(Effect::EndRequests(Arc::clone(&model.source.id)));
                }
            }
        }
        let asked = matches!(model.stage, Stage::Absent) || force;
        if asked {
            let message = format!("`{id}` was unloaded while the request waited for it");
            self.refuse_waiters(id, &Error::new(Code::ModelUnavailable, message));
        }
        self.settle(now);
    }

    /// Somebody says how the model of `source` is to be kept from now on.
    pub(super) fn keep(&mut self, now: Time, source: &Source, keeping: Keeping) {
        self.model(source, keeping).keeping = keeping;
        self.settle(now);
    }

    /// The load of `id` ended: with what its weights take, or an error.
    pub(super) fn loaded(&mut self, now: Time, id: &str, outcome: Result<u64>) {
        let Some(model) = self.models.get_mut(id) else { return };
        // One that was given up is told by its end in memory.
        let Stage::Loading { drains } = model.stage else { return };
        match outcome {
            Ok(weights_bytes) => {
                model.weights_bytes = weights_bytes;
                model.stage = if drains { Stage::Draining } else { Stage::Ready };
                model.used_at = now;
                self.grant_waiters(id);
            }
            Err(error) => {
                model.stage = Stage::Failed { error: error.clone(), since: now };
                self.refuse_waiters(id, &error);
            }
        }
        self.settle(now);
    }

    /// The memory of `id` is back.
    pub(super) fn unloaded(&mut self, now: Time, id: &str) {
        let Some(model) = self.models.get_mut(id) else { return };
        if model.stage != Stage::Unloading {
            return;
        }
        model.stage = Stage::Absent;
        if !model.waiters.is_empty() {
            self.enqueue(id, now);
        }
        self.settle(now);
    }

    /// The engine failed and came back without `id`.
    pub(super) fn lost(&mut self, now: Time, id: &str, error: &Error) {
        let Some(model) = self.models.get_mut(id) else { return };
        if matches!(model.stage, Stage::Ready | Stage::Draining) {
            model.stage = Stage::Failed { error: error.clone(), since: now };
            self.refuse_waiters(id, error);
        }
        self.settle(now);
    }

    /// Time has passed.
    pub(super) fn wake(&mut self, now: Time) {
        self.settle(now);
    }

    /// When time alone changes something next.
    pub(super) fn due_at(&self) -> Option<Time> {
        let waits = self.models.values().flat_map(|model| {
            let first = model.waiters.front().map(|waiter| waiter.until);
            let room = match model.stage {
                Stage::Waiting { since, .. } => Some(since + self.bounds.room_wait),
                _ => None,
            };
            first.into_iter().chain(room).chain(model.expires_at())
        });
        waits.min()
    }

    /// Takes what is to be done, in order.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The model of that id, if it was ever asked for.
    pub(super) fn get(&self, id: &str) -> Option<&Model> {
        self.models.get(id)
    }

    /// All models that were ever asked for.
    pub(super) fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.values()
    }

    /// Bytes of the weights that are in memory or on their way.
    pub(super) fn weights_bytes(&self) -> u64 {
        self.models.values().map(Model::held_bytes).sum()
    }

    /// Asserts the module's invariants.
    ///
    /// # Panics
    /// When one does not hold.
    #[cfg(test)]
    pub(super) fn check_integrity(&self) {
        for (id, model) in &self.models {
            let stage = &model.stage;
            let settled = matches!(stage, Stage::Absent | Stage::Ready | Stage::Failed { .. });
            assert!(!settled || model.waiters.is_empty(), "requests wait for `{id}`: {stage:?}");
            assert!(*stage != Stage::Draining || model.leases > 0, "`{id}` drains for nobody");
        }
        assert!(self.effects.is_empty(), "somebody left effects behind");
    }
}

impl Machine {
    fn model(&mut self, source: &Source, keeping: Keeping) -> &mut Model {
        let model = self.models.entry(Arc::clone(&source.id)).or_insert_with(|| Model {
            source: source.clone(),
            keeping,
            stage: Stage::Absent,
            leases: 0,
            waiters: VecDeque::new(),
            used_at: Time::ZERO,
            weights_bytes: source.weights_bytes,
        });
        // What lies on disk may have changed since; what is in memory has not.
        if matches!(model.stage, Stage::Absent | Stage::Failed { .. }) {
            model.source = source.clone();
            model.weights_bytes = source.weights_bytes;
        }
        model
    }

    fn enqueue(&mut self, id: &str, now: Time) {
        self.turns += 1;
        if let Some(model) = self.models.get_mut(id) {
            model.stage = Stage::Waiting { since: now, turn: self.turns };
        }
    }

    fn grant_waiters(&mut self, id: &str) {
        let Some(model) = self.models.get_mut(id) else { return };
        for waiter in model.waiters.drain(..) {
            model.leases += 1;
            self.effects.push(Effect::Grant(waiter.ticket, Arc::clone(&model.source.id)));
        }
    }

    fn refuse_waiters(&mut self, id: &str, error: &Error) {
        let Some(model) = self.models.get_mut(id) else { return };
        for waiter in model.waiters.drain(..) {
            self.effects.push(Effect::Refuse(waiter.ticket, error.clone()));
        }
    }

    /// Does what the state asks for at `now`.
    fn settle(&mut self, now: Time) {
        self.refuse_late_waiters(now);
        self.unload_what_may_go(now);
        while let Some(id) = self.next_in_turn() {
            if !self.start_or_wait(now, &id) {
                break;
            }
        }
    }

    fn refuse_late_waiters(&mut self, now: Time) {
        for model in self.models.values_mut() {
            while let Some(waiter) = model.waiters.pop_front_if(|waiter| waiter.until <= now) {
                let message =
                    format!("`{}` was not loaded in the time that requests wait", model.source.id);
                let error = Error::new(Code::ModelUnavailable, message);
                self.effects.push(Effect::Refuse(waiter.ticket, error));
            }
        }
    }

    fn unload_what_may_go(&mut self, now: Time) {
        for model in self.models.values_mut() {
            let drained = model.stage == Stage::Draining && model.leases == 0;
            if drained || model.expires_at().is_some_and(|at| at <= now) {
                model.stage = Stage::Unloading;
                self.effects.push(Effect::Unload(Arc::clone(&model.source.id)));
            }
        }
    }

    /// The model that has waited longest for memory.
    fn next_in_turn(&self) -> Option<Arc<str>> {
        let waiting = self.models.values().filter_map(|model| match model.stage {
            Stage::Waiting { turn, .. } => Some((turn, &model.source.id)),
            _ => None,
        });
        waiting.min().map(|(_, id)| Arc::clone(id))
    }

    /// Starts to load the next model if it fits, or makes room for it; `false` when it has to wait.
    fn start_or_wait(&mut self, now: Time, id: &str) -> bool {
        let Some(model) = self.models.get(id) else { return false };
        let Stage::Waiting { since, .. } = model.stage else { return false };
        let wants_bytes = model.weights_bytes;
        let room_bytes = self.bounds.weights_bytes_max.unwrap_or(u64::MAX);
        let held_bytes = self.weights_bytes();
        // Whether a model alone leaves room for its rows is for the account of memory to say, in its own words.
        if held_bytes == 0 || held_bytes.saturating_add(wants_bytes) <= room_bytes {
            self.start(id);
            return true;
        }
        let fixed_bytes = self.pinned_bytes(id);
        let never = fixed_bytes.saturating_add(wants_bytes) > room_bytes;
        if never || now >= since + self.bounds.room_wait {
            let error = self.no_room(id, room_bytes);
            if let Some(model) = self.models.get_mut(id) {
                model.stage = Stage::Absent;
            }
            self.refuse_waiters(id, &error);
            return true;
        }
        self.make_room(wants_bytes, room_bytes);
        false
    }

    fn start(&mut self, id: &str) {
        let Some(model) = self.models.get_mut(id) else { return };
        model.stage = Stage::Loading { drains: false };
        self.effects.push(Effect::Load(model.source.clone()));
    }

    /// Unloads as many as it takes of those that nobody uses, if they are enough.
    fn make_room(&mut self, wants_bytes: u64, room_bytes: u64) {
        let staying = |model: &Model| model.stage != Stage::Unloading;
        let stays = self.models.values().filter(|model| staying(model));
        let mut stays_bytes: u64 = stays.map(Model::held_bytes).sum();
        let mut idle: Vec<(Time, Arc<str>, u64)> = self
            .models
            .values()
            .filter(|model| model.is_evictable())
            .map(|model| (model.used_at, Arc::clone(&model.source.id), model.held_bytes()))
            .collect();
        idle.sort();
        let fits = |bytes: u64| bytes.saturating_add(wants_bytes) <= room_bytes;
        let idle_bytes: u64 = idle.iter().map(|(_, _, bytes)| bytes).sum();
        if !fits(stays_bytes - idle_bytes) {
            return;
        }
        for (_, id, bytes) in idle {
            if fits(stays_bytes) {
                return;
            }
            stays_bytes -= bytes;
            if let Some(model) = self.models.get_mut(&id) {
                model.stage = Stage::Unloading;
                self.effects.push(Effect::Unload(id));
            }
        }
    }

    /// What never gives way to the model `id`.
    fn pinned_bytes(&self, id: &str) -> u64 {
        let pinned = self.models.values().filter(|model| model.keeping.pinned);
        let others = pinned.filter(|model| *model.source.id != *id);
        others.filter(|model| model.stage != Stage::Unloading).map(Model::held_bytes).sum()
    }

    fn no_room(&self, id: &str, room_bytes: u64) -> Error {
        let wants = ByteCount(self.models.get(id).map_or(0, |model| model.weights_bytes));
        let holders: Vec<String> = self
            .models
            .values()
            .filter(|model| model.held_bytes() > 0)
            .map(Model::described)
            .collect();
        let (room, held) = (ByteCount(room_bytes), holders.join(", "));
        let held = if held.is_empty() { "nothing".to_owned() } else { held };
        let message = format!(
            "failed to load `{id}`: its weights take {wants} of the {room} that there are for models, and \
             these are held by {held}"
        );
        let hint = "unload one, wait for its requests to end, or take a smaller model";
        Error::new(Code::ModelUnavailable, message).with_hint(hint)
    }
}

impl Model {
    /// When it is unloaded if nobody uses it before.
    pub(super) fn expires_at(&self) -> Option<Time> {
        let idle = self.stage == Stage::Ready && self.leases == 0 && !self.keeping.pinned;
        let ttl = self.keeping.ttl.filter(|_| idle)?;
        Some(self.used_at.saturating_add(ttl))
    }

    /// Bytes of its weights that are in memory or on their way.
    pub(super) fn held_bytes(&self) -> u64 {
        match self.stage {
            Stage::Loading { .. } | Stage::Ready | Stage::Draining | Stage::Unloading => {
                self.weights_bytes
            }
            Stage::Absent | Stage::Waiting { .. } | Stage::Failed { .. } => 0,
        }
    }

    /// Whether its files are, or are to be, read.
    pub(super) fn is_wanted(&self) -> bool {
        self.leases > 0 || !matches!(self.stage, Stage::Absent | Stage::Failed { .. })
    }

    fn is_evictable(&self) -> bool {
        self.stage == Stage::Ready && self.leases == 0 && !self.keeping.pinned
    }

    fn described(&self) -> String {
        let (id, bytes) = (&self.source.id, ByteCount(self.weights_bytes));
        match (self.keeping.pinned, self.leases) {
            (true, _) => format!("`{id}` ({bytes}, pinned)"),
            (false, 0) => format!("`{id}` ({bytes})"),
            (false, leases) => format!("`{id}` ({bytes}, requests: {leases})"),
        }
    }
}

impl Stage {
    /// The stage's name in statistics. A model that waits for memory is one that loads.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Waiting { .. } | Self::Loading { .. } => "loading",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Unloading => "unloading",
            Self::Failed { .. } => "failed",
        }
    }
}
