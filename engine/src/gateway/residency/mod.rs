//! Several models in one server: which of them are loaded, who uses them, and when they go.
//!
//! [`machine`] decides and knows neither clock nor thread; this file is the one place of effects: it tells the
//! machine what happened, under one lock, and does what that says to a [`Host`], which loads and unloads. A
//! request takes a [`Lease`] of its model first, waiting for a load if need be, and holds it until its last token
//! was told. Dropping the future that waits gives the request's place up.

mod host;
mod machine;
mod models;
mod prompts;
mod selection;
mod status;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use super::card::ModelCard;
use super::catalogue::{Catalogue, Directories, Source};
use super::engine::{Commons, Engine};
use super::fleet::{FleetThread, LoadMeter};
use super::generation;
use super::settings::ModelSettings;
use crate::clock::{Clock, Time};
use crate::config::ByteCount;
use crate::error::{Code, Error, Result};
use crate::limits;
use crate::scheduler::Executor;

use host::{FixedHost, FleetHost, Host, Hosted};
use machine::{Answer, Bounds, Effect, Keeping, Machine, Stage, Ticket};
use selection::{Selection, select};

pub use selection::Asked;
pub use status::{ModelStatus, Overview};

/// Every model of a server. Clones share it.
#[derive(Clone)]
pub struct Residency(Arc<Inner>);

/// How models are kept.
#[derive(Debug, Clone)]
pub struct ResidencyConfig {
    /// The model that requests mean which name none; it is pinned unless the settings say otherwise. Without one
    /// they mean the model that was used last, else the only one there is.
    pub default_id: Option<Arc<str>>,
    /// How long other models stay after their last use; `None` is for ever.
    pub ttl: Option<Duration>,
    /// What weights of all models may take together; `None` is no bound.
    pub weights_bytes_max: Option<u64>,
    /// What is said of single models.
    pub settings: ModelSettings,
}

struct Inner {
    commons: Commons,
    catalogue: Arc<dyn Catalogue>,
    config: ResidencyConfig,
    host: Arc<dyn Host>,
    state: Mutex<State>,
    /// Counts what changed in the list of models.
    changes: watch::Sender<u64>,
    /// Tells the task that watches the time that the next deadline may be another.
    deadline: Arc<Notify>,
    runtime: Option<Handle>,
}

struct State {
    machine: Machine,
    loaded: HashMap<Arc<str>, Hosted>,
    /// What models were when they were last loaded.
    cards: HashMap<Arc<str>, Arc<ModelCard>>,
    loads: HashMap<Arc<str>, Load>,
    waiters: HashMap<Ticket, oneshot::Sender<Result<(Engine, Lease)>>>,
}

/// A load that goes on.
struct Load {
    meter: Arc<LoadMeter>,
    _give_up: oneshot::Sender<()>,
}

/// Keeps a model loaded. Dropping it lets it go.
pub(super) struct Lease {
    residency: Weak<Inner>,
    id: Arc<str>,
}

impl Residency {
    /// The models of `catalogue`, loaded on `thread` as they are asked for.
    ///
    /// # Panics
    /// Outside of a tokio runtime, where nothing could ever be loaded.
    pub fn new<E: Executor + 'static>(
        thread: &Arc<FleetThread<E>>,
        catalogue: Arc<dyn Catalogue>,
        config: ResidencyConfig,
        clock: Clock,
    ) -> Self {
        let commons = Commons::new(clock);
        let essential = config.default_id.clone();
        let host = Arc::new(FleetHost::new(Arc::clone(thread), commons.clone(), essential));
        let residency = Self::on(host.clone(), catalogue, config, commons);
        let inner = Arc::downgrade(&residency.0);
        thread.roster().tell_losses(move |number, error| {
            if let (Some(inner), Some(id)) = (inner.upgrade(), host.id_of(number)) {
                let stale = inner.state.lock().loaded.remove(&id);
                drop(stale);
                inner.note(|machine, now| machine.lost(now, &id, &error));
            }
        });
        residency
    }

    fn on(
        host: Arc<dyn Host>,
        catalogue: Arc<dyn Catalogue>,
        config: ResidencyConfig,
        commons: Commons,
    ) -> Self {
        let runtime = Handle::current();
        let inner = Inner::new(host, catalogue, config, commons, Some(runtime.clone()));
        runtime.spawn(watch_time(Arc::downgrade(&inner)));
        Self(inner)
    }

    /// The engine of the model that `asked` means, once it is loaded. It stays loaded for as long as that engine
    /// or a generation of it lives.
    ///
    /// # Errors
    /// `ModelNotFound` with all names, `ModelUnavailable` when it cannot be loaded now, what its load failed with,
    /// `QueueFull` when too many requests wait for it, `ShuttingDown`.
    pub async fn lease(&self, asked: Asked<'_>) -> Result<Engine> {
        let inner = &self.0;
        inner.commons.check_serving()?;
        let Selection { source, profile } = inner.look_for(asked).await?;
        inner.check_whole(&source)?;
        let (engine, lease) = match inner.ask(&source)? {
            Asking::Granted(engine, lease) => (engine, lease),
            Asking::Waits(place, heard) => {
                let granted = tokio::select! {
                    biased;
                    granted = heard => granted.unwrap_or_else(|_| Err(generation::engine_gone())),
                    () = inner.commons.drained() => Err(generation::shutting_down()),
                };
                drop(place);
                granted?
            }
        };
        Ok(engine.leased(lease, profile.as_ref()))
    }

    /// The clock that everything here goes by.
    pub fn clock(&self) -> &Clock {
        &self.0.commons.clock
    }

    /// Resolves when no requests are taken any more.
    pub async fn drained(&self) {
        self.0.commons.drained().await;
    }

    /// Refuses new requests; live ones go on, and those that wait for a model end.
    pub fn drain(&self) {
        self.0.commons.drain();
    }

    /// Ends live requests with `ShuttingDown`.
    pub fn stop(&self) {
        self.0.commons.stop();
    }
}

impl From<Engine> for Residency {
    /// The residency of one model that is always there.
    fn from(engine: Engine) -> Self {
        let id: Arc<str> = engine.card().id.as_str().into();
        let commons = engine.commons().clone();
        let config = ResidencyConfig {
            default_id: Some(Arc::clone(&id)),
            ttl: None,
            weights_bytes_max: None,
            settings: ModelSettings::default(),
        };
        let source = Source {
            id: Arc::clone(&id),
            directory: Default::default(),
            weights_bytes: engine.snapshot().memory.weights_bytes,
            download: None,
        };
        let catalogue = Directories::new(vec![source.clone()]).unwrap_or_default();
        let card = Arc::new(engine.card().clone());
        let host = Arc::new(FixedHost::new(engine.clone()));
        let inner = Inner::new(host, Arc::new(catalogue), config, commons, None);
        inner.settle_fixed(&source, engine, card);
        Self(inner)
    }
}

/// What asking for a model came to.
enum Asking {
    Granted(Engine, Lease),
    Waits(Place, oneshot::Receiver<Result<(Engine, Lease)>>),
}

/// A request's place among those that wait. Dropping it gives it up.
struct Place {
    residency: Arc<Inner>,
    id: Arc<str>,
    ticket: Ticket,
}

impl Drop for Place {
    fn drop(&mut self) {
        let waits = self.residency.state.lock().waiters.remove(&self.ticket).is_some();
        // One that was heard is no longer in the queue.
        if waits {
            self.residency.note(|machine, now| machine.leave(now, &self.id, self.ticket));
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(inner) = self.residency.upgrade() {
            inner.note(|machine, now| machine.release(now, &self.id));
        }
    }
}

/// What is said to a request after the lock is gone: its receiver may be gone too, and a lease with it.
type Saying = (oneshot::Sender<Result<(Engine, Lease)>>, Result<(Engine, Lease)>);

impl Inner {
    fn new(
        host: Arc<dyn Host>,
        catalogue: Arc<dyn Catalogue>,
        config: ResidencyConfig,
        commons: Commons,
        runtime: Option<Handle>,
    ) -> Arc<Self> {
        let milliseconds = Duration::from_millis;
        let machine = Machine::new(Bounds {
            weights_bytes_max: config.weights_bytes_max,
            waiters_max: limits::LOAD_WAITERS_MAX,
            load_wait: milliseconds(limits::LOAD_WAIT_MS),
            room_wait: milliseconds(limits::ROOM_WAIT_MS),
            failure_pause: milliseconds(limits::LOAD_FAILURE_PAUSE_MS),
        });
        let state = State {
            machine,
            loaded: HashMap::new(),
            cards: HashMap::new(),
            loads: HashMap::new(),
            waiters: HashMap::new(),
        };
        Arc::new(Self {
            commons,
            catalogue,
            config,
            host,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            deadline: Arc::default(),
            runtime,
        })
    }

    fn select(&self, asked: Asked<'_>) -> Result<Selection> {
        select(asked, &*self.catalogue, &self.config.settings, &|| self.default_id())
    }

    /// As [`Inner::select`]; a name that is not known is looked for once more.
    async fn look_for(&self, asked: Asked<'_>) -> Result<Selection> {
        match self.select(asked) {
            Err(error) if error.code() == Code::ModelNotFound && self.catalogue.refresh().await => {
                self.select(asked)
            }
            selected => selected,
        }
    }

    /// The model that requests mean which name none.
    fn default_id(&self) -> Option<Arc<str>> {
        self.config.default_id.clone().or_else(|| self.last_used()).or_else(|| {
            match &self.catalogue.sources()[..] {
                [only] => Some(Arc::clone(&only.id)),
                _ => None,
            }
        })
    }

    /// Of the models that there are still, the one that was asked for last.
    fn last_used(&self) -> Option<Arc<str>> {
        let mut used: Vec<(Time, Arc<str>)> = {
            let state = self.state.lock();
            let models = state.machine.models().filter(|model| model.used_at > Time::ZERO);
            models.map(|model| (model.used_at, Arc::clone(&model.source.id))).collect()
        };
        used.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let there = |id: &Arc<str>| self.catalogue.find(id).is_some_and(|source| source.id == *id);
        used.into_iter().map(|(_, id)| id).find(there)
    }

    fn check_whole(&self, source: &Source) -> Result<()> {
        let Some(download) = source.download else { return Ok(()) };
        let [done, total] = [download.done_bytes, download.total_bytes].map(ByteCount);
        let message = format!("`{}` is being downloaded: {done} of {total}", source.id);
        Err(Error::new(Code::ModelUnavailable, message).with_hint("try again when it is whole"))
    }

    /// How the model `id` is kept unless somebody said otherwise since the start.
    fn keeping(&self, id: &str) -> Keeping {
        let is_default = self.config.default_id.as_deref() == Some(id);
        let said = self.config.settings.of_model(id);
        let pinned = said.and_then(|one| one.pinned).unwrap_or(is_default);
        let ttl = said.and_then(|one| one.ttl);
        Keeping { pinned, ttl: ttl.unwrap_or(if is_default { None } else { self.config.ttl }) }
    }

    /// Asks for a lease.
    fn ask(self: &Arc<Self>, source: &Source) -> Result<Asking> {
        let keeping = self.keeping(&source.id);
        let (asking, sayings) = {
            let mut state = self.state.lock();
            let answer = state.machine.ask(self.now(), source, keeping);
            let asking = match answer {
                Answer::Refused(error) => Err(error),
                Answer::Granted => state
                    .granted(self, &source.id)
                    .map(|(engine, lease)| Asking::Granted(engine, lease)),
                Answer::Waits(ticket) => {
                    let (sender, heard) = oneshot::channel();
                    state.waiters.insert(ticket, sender);
                    let (residency, id) = (Arc::clone(self), Arc::clone(&source.id));
                    Ok(Asking::Waits(Place { residency, id, ticket }, heard))
                }
            };
            (asking, self.act(&mut state))
        };
        self.finish(sayings);
        asking
    }

    /// Tells the machine of something, and does what that comes to.
    fn note(self: &Arc<Self>, event: impl FnOnce(&mut Machine, Time)) {
        let sayings = {
            let mut state = self.state.lock();
            event(&mut state.machine, self.now());
            self.act(&mut state)
        };
        self.finish(sayings);
    }

    fn finish(&self, sayings: Vec<Saying>) {
        for (sender, said) in sayings {
            // Dropping a lease that nobody wants comes back here, so there must be no lock.
            drop(sender.send(said));
        }
        self.changes.send_modify(|changes| *changes += 1);
        self.deadline.notify_one();
    }

    fn now(&self) -> Time {
        self.commons.clock.now()
    }

    /// Does what the machine says.
    fn act(self: &Arc<Self>, state: &mut State) -> Vec<Saying> {
        let mut sayings = Vec::new();
        for effect in state.machine.take_effects() {
            match effect {
                Effect::Load(source) => self.begin_load(state, source),
                // The task hears that nobody holds its other end, and goes on to unload.
                Effect::DropLoad(id) => drop(state.loads.remove(&id)),
                Effect::Unload(id) => {
                    state.loaded.remove(&id);
                    self.begin_unload(id);
                }
                Effect::EndRequests(id) => {
                    if let Some(hosted) = state.loaded.get(&id) {
                        hosted.engine.cancel_all();
                    }
                }
                Effect::Grant(ticket, id) => {
                    let granted = state.granted(self, &id);
                    sayings.extend(state.waiters.remove(&ticket).map(|sender| (sender, granted)));
                }
                Effect::Refuse(ticket, error) => {
                    let refused = Err(error);
                    sayings.extend(state.waiters.remove(&ticket).map(|sender| (sender, refused)));
                }
            }
        }
        sayings
    }

    fn begin_load(self: &Arc<Self>, state: &mut State, source: Source) {
        let meter = Arc::<LoadMeter>::default();
        let (give_up, given_up) = oneshot::channel();
        let load = Load { meter: Arc::clone(&meter), _give_up: give_up };
        state.loads.insert(Arc::clone(&source.id), load);
        let Some(runtime) = &self.runtime else { return };
        let inner = Arc::clone(self);
        runtime.spawn(async move {
            let id = Arc::clone(&source.id);
            let loading = inner.host.load(source, meter);
            tokio::select! {
                outcome = loading => inner.end_load(&id, outcome),
                _ = given_up => inner.unload(id).await,
            }
        });
    }

    fn end_load(self: &Arc<Self>, id: &Arc<str>, outcome: Result<Hosted>) {
        if let Err(error) = &outcome {
            // Whoever asked for it hears it, and so does the list of models.
            tracing::warn!(%error, "`{id}` was not loaded");
        }
        let sayings = {
            let mut state = self.state.lock();
            let weights_bytes = outcome.map(|hosted| {
                let card = Arc::new(hosted.engine.card().clone());
                state.cards.insert(Arc::clone(id), card);
                let weights_bytes = hosted.weights_bytes;
                state.loaded.insert(Arc::clone(id), hosted);
                weights_bytes
            });
            // It was given up in the very moment in which it was done.
            if state.loads.remove(id).is_none() {
                state.loaded.remove(id);
                self.begin_unload(Arc::clone(id));
            }
            state.machine.loaded(self.now(), id, weights_bytes);
            self.act(&mut state)
        };
        self.finish(sayings);
    }

    fn begin_unload(self: &Arc<Self>, id: Arc<str>) {
        let Some(runtime) = &self.runtime else { return };
        let inner = Arc::clone(self);
        runtime.spawn(async move { inner.unload(id).await });
    }

    async fn unload(self: &Arc<Self>, id: Arc<str>) {
        self.host.unload(&id).await;
        self.note(|machine, now| machine.unloaded(now, &id));
    }

    /// Puts the one model in that is always there.
    fn settle_fixed(self: &Arc<Self>, source: &Source, engine: Engine, card: Arc<ModelCard>) {
        let keeping = self.keeping(&source.id);
        let mut state = self.state.lock();
        let weights_bytes = source.weights_bytes;
        state.machine.load(self.now(), source, keeping);
        state.machine.loaded(self.now(), &source.id, Ok(weights_bytes));
        state.machine.take_effects();
        state.cards.insert(Arc::clone(&source.id), card);
        state.loaded.insert(Arc::clone(&source.id), Hosted { engine, weights_bytes });
    }
}

impl State {
    /// The engine and the lease that the machine has counted already.
    fn granted(&mut self, inner: &Arc<Inner>, id: &Arc<str>) -> Result<(Engine, Lease)> {
        let lease = Lease { residency: Arc::downgrade(inner), id: Arc::clone(id) };
        match self.loaded.get(id) {
            Some(hosted) => Ok((hosted.engine.clone(), lease)),
            None => {
                // The machine would count it out under the lock that is held here.
                self.machine.release(inner.now(), id);
                std::mem::forget(lease);
                Err(generation::engine_gone())
            }
        }
    }
}

/// Wakes the machine when time alone changes something, for as long as the residency lives.
async fn watch_time(residency: Weak<Inner>) {
    while let Some(inner) = residency.upgrade() {
        let due = inner.state.lock().machine.due_at().unwrap_or(Time::MAX);
        let (clock, deadline) = (inner.commons.clock.clone(), Arc::clone(&inner.deadline));
        drop(inner);
        tokio::select! {
            () = deadline.notified() => {}
            () = clock.sleep_until(due) => {
                if let Some(inner) = residency.upgrade() {
                    inner.note(Machine::wake);
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.deadline.notify_one();
    }
}

impl fmt::Debug for Residency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default_id = &self.0.config.default_id;
        formatter.debug_struct("Residency").field("default", default_id).finish_non_exhaustive()
    }
}
