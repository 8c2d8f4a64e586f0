//! What the engine thread has of models, as seen from outside, and what it is to have again after a failure.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ModelNumber;
use crate::error::Error;
use crate::gateway::catalogue::Source;
use crate::scheduler::Board;
use crate::telemetry::MemorySnapshot;

/// Told of a model that was ready and could not be loaded again after the engine had failed.
pub(super) type OnLost = Box<dyn Fn(ModelNumber, Error) + Send + Sync>;

/// The models that are ready. It outlives the fleet.
#[derive(Default)]
pub struct Roster {
    ready: Mutex<Vec<Ready>>,
    shown: Mutex<Shown>,
    on_lost: Mutex<Option<OnLost>>,
}

/// A model that is ready.
#[derive(Debug, Clone)]
pub(super) struct Ready {
    pub(super) model: ModelNumber,
    pub(super) source: Source,
    pub(super) board: Board,
    pub(super) weights_bytes: u64,
    /// Whether the engine is nothing without it.
    pub(super) essential: bool,
    /// Whether it was being loaded again when the engine failed once more.
    pub(super) trying: bool,
}

/// The last figures of the whole thread.
#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    memory: MemorySnapshot,
    kv_budget_bytes: Option<u64>,
}

impl Roster {
    /// Has `on_lost` told of models that are lost.
    pub fn tell_losses(&self, on_lost: impl Fn(ModelNumber, Error) + Send + Sync + 'static) {
        *self.on_lost.lock() = Some(Box::new(on_lost));
    }

    /// The allocator's figures.
    pub fn memory(&self) -> MemorySnapshot {
        self.shown.lock().memory
    }

    /// The KV budget of all models together, beside the weights that are loaded.
    pub fn kv_budget_bytes(&self) -> Option<u64> {
        self.shown.lock().kv_budget_bytes
    }

    pub(super) fn show(&self, memory: MemorySnapshot, kv_budget_bytes: Option<u64>) {
        *self.shown.lock() = Shown { memory, kv_budget_bytes };
    }

    pub(super) fn add(&self, ready: Ready) {
        self.ready.lock().push(ready);
    }

    pub(super) fn remove(&self, model: ModelNumber) {
        self.ready.lock().retain(|ready| ready.model != model);
    }

    pub(super) fn has(&self, model: ModelNumber) -> bool {
        self.ready.lock().iter().any(|ready| ready.model == model)
    }

    pub(super) fn ready(&self) -> Vec<Ready> {
        self.ready.lock().clone()
    }

    /// Notes whether `model` is being loaded again.
    pub(super) fn set_trying(&self, model: ModelNumber, trying: bool) {
        let mut ready = self.ready.lock();
        ready
            .iter_mut()
            .filter(|ready| ready.model == model)
            .for_each(|ready| ready.trying = trying);
    }

    /// Takes `model` off, and tells that it is lost.
    pub(super) fn lose(&self, model: ModelNumber, error: Error) {
        self.remove(model);
        if let Some(on_lost) = &*self.on_lost.lock() {
            on_lost(model, error);
        }
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let models: Vec<Arc<str>> =
            self.ready.lock().iter().map(|ready| Arc::clone(&ready.source.id)).collect();
        formatter.debug_struct("Roster").field("ready", &models).finish_non_exhaustive()
    }
}
