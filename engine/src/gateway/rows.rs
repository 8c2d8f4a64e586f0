//! How the rest of the process reaches the engine thread.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::{Code, Error, Result};
use crate::scheduler::{EventSender, RowSpec};
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

/// A text that is to become a vector.
#[derive(Debug)]
pub struct EmbedJob {
    /// Its tokens; never empty.
    pub tokens: Vec<u32>,
    /// Leading numbers of the vector to keep; `None` is all of them.
    pub dimensions: Option<usize>,
    /// Where the vector goes. Its other end is dropped when nobody waits any more.
    pub reply: oneshot::Sender<Result<Vec<f32>>>,
}

/// The engine thread as seen from outside: plain data goes in, plain data comes back.
pub trait Rows: Send + Sync {
    /// Queues a row; what becomes of it arrives on the other end of `events`.
    ///
    /// # Errors
    /// `QueueFull` when the bounded queue is full, `EngineFailed` while the engine is down.
    fn submit(&self, spec: RowSpec, events: EventSender) -> Result<()>;

    /// Queues a text that is to become a vector; the vector goes to the job's `reply`.
    ///
    /// # Errors
    /// `Unsupported` where nothing makes vectors, and as [`Rows::submit`].
    fn embed(&self, job: EmbedJob) -> Result<()> {
        drop(job);
        Err(Error::new(Code::Unsupported, "nothing here makes embeddings").with_param("model"))
    }

    /// The last published snapshot; never waits for the engine thread.
    fn snapshot(&self) -> Arc<Snapshot>;

    /// Whether the engine makes progress.
    fn health(&self) -> Health;
}
