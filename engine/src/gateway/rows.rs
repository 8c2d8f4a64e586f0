//! How the rest of the process reaches the engine thread.

use std::sync::Arc;

use crate::error::Result;
use crate::scheduler::{CacheCommand, EventSender, RowSpec};
use crate::telemetry::Snapshot;

/// Whether the engine thread makes progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It does, or has nothing to do.
    Serving,
    /// It failed and is being rebuilt, or it has live rows and has not stepped for too long.
    Unavailable {
        /// What happened.
        reason: String,
    },
}

/// The engine thread as seen from outside: plain data goes in, plain data comes back.
pub trait Rows: Send + Sync {
    /// Queues a row; what becomes of it arrives on the other end of `events`.
    ///
    /// # Errors
    /// `QueueFull` when the bounded queue is full, `EngineFailed` while the engine is down.
    fn submit(&self, spec: RowSpec, events: EventSender) -> Result<()>;

    /// Queues a command about kept prompts; the answer comes to the reply that it carries, which is dropped if the
    /// engine fails before.
    ///
    /// # Errors
    /// `QueueFull`, `EngineFailed` or `ShuttingDown` when the engine cannot be asked now.
    fn command(&self, command: CacheCommand) -> Result<()>;

    /// The last published snapshot; never waits for the engine thread.
    fn snapshot(&self) -> Arc<Snapshot>;

    /// Whether the engine makes progress.
    fn health(&self) -> Health;

    /// The KV budget as it is now, given what it was when the model was loaded: other models may come and go.
    fn kv_budget_bytes(&self, at_load: Option<u64>) -> Option<u64> {
        at_load
    }
}
