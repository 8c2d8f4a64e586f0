//! Models on their way into memory, and again after a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::roster::Ready;
use super::{Docked, Fleet, LoadStep, Loading, ModelNumber};
use crate::clock::Time;
use crate::config::{ByteBudget, ByteCount};
use crate::error::{Code, Error, Result};
use crate::gateway::catalogue::Source;
use crate::limits;
use crate::scheduler::{Board, Executor};

/// A model to load.
#[derive(Debug)]
pub struct LoadOrder {
    /// Names it from now on.
    pub model: ModelNumber,
    /// Where it lies.
    pub source: Source,
    /// Whether the engine is nothing without it: then a failed engine comes back with it or not at all.
    pub essential: bool,
    /// Where its snapshots hang.
    pub board: Board,
    /// Where it tells how far it is.
    pub meter: Arc<LoadMeter>,
    /// Hears when it is ready, or why not; dropped when the engine fails. Whoever drops the other end gives up.
    pub reply: oneshot::Sender<Result<Docked>>,
}

/// How far a load is.
#[derive(Debug, Default)]
pub struct LoadMeter {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl LoadMeter {
    /// Bytes of weights in memory, and of all its weights; 0 of 0 before it has begun.
    pub fn read(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes.load(Ordering::Relaxed))
    }

    fn note(&self, done_bytes: u64, total_bytes: u64) {
        self.done_bytes.store(done_bytes, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
    }
}

pub(super) struct Arrival<E> {
    order: LoadOrder,
    asked_at: Time,
    /// None while there is no room for it.
    loading: Option<Box<dyn Loading<E>>>,
}

impl<E> Arrival<E> {
    pub(super) fn new(order: LoadOrder, asked_at: Time) -> Self {
        Self { order, asked_at, loading: None }
    }

    pub(super) fn model(&self) -> ModelNumber {
        self.order.model
    }

    pub(super) fn is_begun(&self) -> bool {
        self.loading.is_some()
    }

    /// Bytes of the weights that are being read.
    pub(super) fn weights_bytes(&self) -> u64 {
        self.loading.as_ref().map_or(0, |loading| loading.weights_bytes())
    }
}

/// What becomes of the first arrival.
enum Next<E> {
    /// It goes on, or waits.
    Stays,
    Failed(Error),
    Landed(Box<super::Landed<E>>),
}

impl<E: Executor> Fleet<E> {
    /// Gives the first arrival the time of a slice.
    pub(super) fn advance_arrivals(&mut self) {
        let abandoned = |arrival: &Arrival<E>| arrival.order.reply.is_closed();
        if self.arrivals.front().is_some_and(abandoned) {
            self.arrivals.pop_front();
            self.loader.dropped();
            self.shown_at = None;
        }
        let next = self.advance_first();
        if matches!(next, Next::Stays) {
            return;
        }
        let Some(mut arrival) = self.arrivals.pop_front() else { return };
        let weights_bytes = arrival.weights_bytes();
        arrival.loading = None;
        let docked = match next {
            Next::Landed(landed) => {
                let ready = arrival.order.ready(weights_bytes);
                self.moor(&ready, *landed).inspect(|_| self.roster.add(ready))
            }
            Next::Failed(error) => Err(error),
            Next::Stays => unreachable!("an arrival that stays was left where it is"),
        };
        if docked.is_err() {
            self.loader.dropped();
        }
        // Whoever hears of it may look at the budget at once.
        self.shown_at = None;
        self.show_memory();
        // Whoever gave up does not want to know.
        let _ = arrival.order.reply.send(docked);
    }

    fn advance_first(&mut self) -> Next<E> {
        let Some(arrival) = self.arrivals.front_mut() else { return Next::Stays };
        let Some(loading) = &mut arrival.loading else {
            return self.begin_first();
        };
        let total_bytes = loading.weights_bytes();
        match loading.advance() {
            Ok(LoadStep::More { done_bytes }) => {
                arrival.order.meter.note(done_bytes, total_bytes);
                Next::Stays
            }
            Ok(LoadStep::Done(landed)) => Next::Landed(landed),
            Err(error) => Next::Failed(error),
        }
    }

    /// Begins to read the first arrival, if there is room for it.
    fn begin_first(&mut self) -> Next<E> {
        let Some(arrival) = self.arrivals.front() else { return Next::Stays };
        let wants_bytes = arrival.order.source.weights_bytes;
        let patience = Duration::from_millis(limits::ROOM_WAIT_MS);
        if let Some(held_bytes) = self.crowded(wants_bytes) {
            return match self.clock.now() < arrival.asked_at + patience {
                true => Next::Stays,
                false => Next::Failed(no_room(&arrival.order.source, held_bytes)),
            };
        }
        let begun = self.loader.begin(&arrival.order.source);
        let Some(arrival) = self.arrivals.front_mut() else { return Next::Stays };
        match begun {
            // Its estimate may have been wrong.
            Ok(loading) if loading.weights_bytes() > wants_bytes => {
                arrival.order.source.weights_bytes = loading.weights_bytes();
                if let Some(held_bytes) = self.crowded(loading.weights_bytes()) {
                    drop(loading);
                    self.loader.dropped();
                    tracing::info!(held_bytes, "a model turned out larger and waits for live rows");
                    return Next::Stays;
                }
                self.settle(loading)
            }
            Ok(loading) => self.settle(loading),
            Err(error) => Next::Failed(error),
        }
    }

    /// From now on the first arrival's weights are a part of the account.
    fn settle(&mut self, loading: Box<dyn Loading<E>>) -> Next<E> {
        let Some(arrival) = self.arrivals.front_mut() else { return Next::Stays };
        arrival.order.meter.note(0, loading.weights_bytes());
        arrival.loading = Some(loading);
        self.shown_at = None;
        for index in 0..self.berths.len() {
            self.share_memory_with(index);
        }
        if let Some(last) = self.berths.len().checked_sub(1) {
            self.take_back_prompts(last);
        }
        self.wake_all();
        Next::Stays
    }

    /// What live rows may come to, if that leaves no room for `weights_bytes` more weights.
    fn crowded(&self, weights_bytes: u64) -> Option<u64> {
        if self.plan.kv_budget != ByteBudget::Auto || self.berths.is_empty() {
            return None;
        }
        let budget_bytes = self.plan.kv_bytes(self.weights_bytes() + weights_bytes)?;
        let holdings = || self.berths.iter().map(|berth| berth.scheduler.holdings());
        let live_bytes: u64 = holdings().map(|held| held.projected_bytes).sum();
        let held_bytes: u64 = holdings().map(|held| held.held_bytes).sum();
        let waiting_bytes = holdings().map(|held| held.waiting_bytes).max().unwrap_or(0);
        let most = live_bytes.max(held_bytes).max(waiting_bytes);
        (most > budget_bytes).then_some(most)
    }

    /// Loads again what was ready when the engine failed, without pause.
    ///
    /// # Errors
    /// Why an essential model could not be loaded. Others are lost, which the roster tells.
    pub(super) fn restore(&mut self) -> Result<()> {
        for ready in self.roster.ready() {
            ready.board.bury_rows();
            let model = ready.model;
            if ready.trying && !ready.essential {
                let message = "the engine failed again while it loaded this model";
                self.roster.lose(model, Error::new(Code::EngineFailed, message));
                continue;
            }
            self.roster.set_trying(model, true);
            let restored = self.load_at_once(&ready);
            self.roster.set_trying(model, false);
            match restored {
                Err(error) if ready.essential => return Err(error),
                Err(error) => self.roster.lose(model, error),
                // It was unloaded meanwhile.
                Ok(_) if !self.roster.has(model) => self.berths.retain(|one| one.model != model),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    fn load_at_once(&mut self, ready: &Ready) -> Result<Docked> {
        let mut loading = self.loader.begin(&ready.source)?;
        loop {
            if let LoadStep::Done(landed) = loading.advance()? {
                return self.moor(ready, *landed);
            }
        }
    }
}

impl LoadOrder {
    fn ready(&self, weights_bytes: u64) -> Ready {
        Ready {
            model: self.model,
            source: self.source.clone(),
            board: self.board.clone(),
            weights_bytes,
            essential: self.essential,
            trying: false,
        }
    }
}

fn no_room(source: &Source, held_bytes: u64) -> Error {
    let (id, weights, held) = (&source.id, ByteCount(source.weights_bytes), ByteCount(held_bytes));
    let message = format!(
        "failed to load `{id}`: its weights take {weights}, and live requests of other models hold {held}"
    );
    let hint = "try again when they have ended, or unload a model";
    Error::new(Code::ModelUnavailable, message).with_hint(hint)
}
