//! How models stand, for people.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::gateway::card::ModelCard;
use crate::gateway::catalogue::Download;
use crate::telemetry::{MemorySnapshot, Snapshot};

/// How a model stands.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelStatus {
    /// The name clients call it by.
    pub id: Arc<str>,
    /// Further names.
    pub aliases: Vec<String>,
    /// Names of its profiles.
    pub profiles: Vec<String>,
    /// Whether it is meant when a request names none.
    pub is_default: bool,
    /// `absent`, `downloading`, `loading`, `ready`, `draining`, `unloading` or `failed`.
    pub state: &'static str,
    /// Why it could not be loaded, and how long ago that was.
    pub failure: Option<(Error, Duration)>,
    /// How far its download is.
    pub download: Option<Download>,
    /// Bytes of weights that were read and that there are to read, while it loads.
    pub progress: Option<(u64, u64)>,
    /// Requests that run or wait on it.
    pub leases: usize,
    /// Requests that wait for it to be loaded.
    pub waiting: usize,
    /// Whether it only goes when a person says so.
    pub pinned: bool,
    /// How long it stays after its last use; `None` is for ever.
    pub ttl: Option<Duration>,
    /// How long it stays if nobody uses it from now on.
    pub expires_in: Option<Duration>,
    /// Time since its last use; `None` before the first.
    pub idle: Option<Duration>,
    /// Bytes of its weights: what they take, or what they will take, roughly.
    pub weights_bytes: u64,
    /// What it is, once it was loaded.
    pub card: Option<Arc<ModelCard>>,
}

/// What the whole server does now.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The models that are, or were, loaded: each with what it is and does.
    pub models: Vec<(Arc<ModelCard>, Arc<Snapshot>)>,
    /// The allocator's figures.
    pub memory: MemorySnapshot,
    /// How long it has served.
    pub uptime: Duration,
}
