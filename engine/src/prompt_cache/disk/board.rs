//! What the engine thread and the writer leave for each other. Neither holds the lock while it waits for
//! a disk, so the engine thread never waits for one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Manifest;
use super::folder::Total;
use super::format::DiskId;
use super::usage::{self, Usage};

/// What the writer is told of an entry, in this order; the bytes of tensors come in the manifest's order.
pub(super) enum Message {
    Begin {
        id: DiskId,
        manifest: Manifest,
        created_at: Duration,
    },
    Tensor {
        id: DiskId,
        bytes: Vec<u8>,
    },
    /// Of an entry that is being written or is there.
    Pin {
        id: DiskId,
        pinned: bool,
    },
    Finish {
        id: DiskId,
    },
    Abandon {
        id: DiskId,
    },
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Saved { id: DiskId },
    Lost { id: DiskId, lost: Lost },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// To make room.
    Evicted,
    /// Because it is not what was written, or cannot be read.
    Bad,
    /// Somebody else removed it.
    Vanished,
    /// Its saving was dropped.
    Abandoned,
    NotWritten,
}

/// Work on whole files that can be late and that the writer does between messages.
#[derive(Debug, Default)]
pub(super) struct Chores {
    pub touched: HashMap<DiskId, Duration>,
    pub doomed: HashSet<DiskId>,
}

impl Chores {
    fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.doomed.is_empty()
    }
}

/// What the writer does next.
pub(super) enum Work {
    Chores(Chores),
    Message(Message),
    Stop,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Message>,
    chores: Chores,
    outcomes: Vec<Outcome>,
    /// Bytes of tensors that an entry may have in the queue, from its admission to its last message.
    reserved: HashMap<DiskId, u64>,
    /// Bytes of tensors that are in the queue or being written, by entry.
    in_flight: HashMap<DiskId, u64>,
    /// Bytes of files that were admitted and are not in the account yet, by entry.
    unaccounted: HashMap<DiskId, u64>,
    usage: Usage,
    total: Total,
    read_only: Option<String>,
    writing: bool,
    closing: bool,
}

/// The state as the engine thread sees it.
pub(super) struct View {
    pub usage: Usage,
    pub total: Total,
    pub queued_bytes: u64,
    pub read_only: Option<String>,
}

pub(super) struct Board {
    queue_bytes: u64,
    state: Mutex<State>,
    work: Condvar,
    idle: Condvar,
}

impl fmt::Debug for Board {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Board")
            .field("queue_bytes", &self.queue_bytes)
            .finish_non_exhaustive()
    }
}

/// The engine thread's side. Nothing here waits but [`Board::wait_until_idle`].
impl Board {
    pub(super) fn new(usage: Usage, total: Total, queue_bytes: u64) -> Self {
        let state = State { usage, total, ..State::default() };
        let (work, idle) = (Condvar::new(), Condvar::new());
        Self { queue_bytes, state: Mutex::new(state), work, idle }
    }

    /// Whether the entry may come; if so, room in the queue is set aside for it until it ends, for all its tensors or for as many as the queue takes. Says how much.
    pub(super) fn admit(
        &self,
        id: DiskId,
        tensor_bytes: u64,
        file_bytes: u64,
        day_limit: Option<u64>,
        now: Duration,
    ) -> Option<u64> {
        let mut state = self.state.lock();
        let reserved = tensor_bytes.min(self.queue_bytes);
        let taken: u64 = state.reserved.values().sum();
        let unaccounted: u64 = state.unaccounted.values().sum();
        let bytes = unaccounted.saturating_add(file_bytes);
        let allowed = state.usage.allows(bytes, usage::day(now), day_limit);
        if state.read_only.is_some() || taken + reserved > self.queue_bytes || !allowed {
            return None;
        }
        state.reserved.insert(id, reserved);
        state.unaccounted.insert(id, file_bytes);
        Some(reserved)
    }

    pub(super) fn post(&self, message: Message) {
        let mut state = self.state.lock();
        if let Message::Tensor { id, bytes } = &message {
            *state.in_flight.entry(*id).or_default() += bytes.len() as u64;
        }
        state.queue.push_back(message);
        self.work.notify_one();
    }

    /// Bytes of an entry's tensors that are not written yet.
    pub(super) fn in_flight(&self, id: DiskId) -> u64 {
        self.state.lock().in_flight.get(&id).copied().unwrap_or(0)
    }

    pub(super) fn touch(&self, id: DiskId, used_at: Duration) {
        self.state.lock().chores.touched.insert(id, used_at);
        self.work.notify_one();
    }

    pub(super) fn doom(&self, id: DiskId) {
        self.state.lock().chores.doomed.insert(id);
        self.work.notify_one();
    }

    pub(super) fn take_outcomes(&self) -> Vec<Outcome> {
        std::mem::take(&mut self.state.lock().outcomes)
    }

    pub(super) fn view(&self) -> View {
        let state = self.state.lock();
        View {
            usage: state.usage,
            total: state.total,
            queued_bytes: state.in_flight.values().sum(),
            read_only: state.read_only.clone(),
        }
    }

    /// Waits until the writer has nothing to do; says whether that was before `deadline`.
    pub(super) fn wait_until_idle(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        let busy = |state: &mut State| {
            !state.closing && (state.writing || !state.queue.is_empty() || !state.chores.is_empty())
        };
        !self.idle.wait_while_until(&mut state, busy, deadline).timed_out() && !state.closing
    }

    /// Ends the writer; what waits is not written.
    pub(super) fn close(&self) {
        self.state.lock().closing = true;
        self.work.notify_one();
    }
}

/// The writer's side, and that of who reads.
impl Board {
    /// Waits for something to do; what was taken before is done.
    pub(super) fn next_work(&self) -> Work {
        let mut state = self.state.lock();
        state.writing = false;
        loop {
            if state.closing {
                return Work::Stop;
            }
            let work = if state.chores.is_empty() {
                state.queue.pop_front().map(Work::Message)
            } else {
                Some(Work::Chores(std::mem::take(&mut state.chores)))
            };
            if let Some(work) = work {
                state.writing = true;
                return work;
            }
            self.idle.notify_all();
            self.work.wait(&mut state);
        }
    }

    /// Takes what is left to do to whole files.
    pub(super) fn take_chores(&self) -> Chores {
        std::mem::take(&mut self.state.lock().chores)
    }

    /// Notes that `bytes` of an entry's tensors need not be kept any more.
    pub(super) fn wrote(&self, id: DiskId, bytes: u64) {
        let mut state = self.state.lock();
        if let Some(in_flight) = state.in_flight.get_mut(&id) {
            *in_flight -= bytes;
        }
    }

    /// Notes that the account now has the entry in it.
    pub(super) fn accounted(&self, id: DiskId, usage: Usage) {
        let mut state = self.state.lock();
        state.usage = usage;
        state.unaccounted.remove(&id);
    }

    pub(super) fn usage(&self) -> Usage {
        self.state.lock().usage
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.state.lock().read_only.is_some()
    }

    pub(super) fn set_usage(&self, usage: Usage) {
        self.state.lock().usage = usage;
    }

    pub(super) fn set_total(&self, total: Total) {
        self.state.lock().total = total;
    }

    /// Notes what became of an entry.
    pub(super) fn report(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        let (Outcome::Saved { id } | Outcome::Lost { id, .. }) = outcome;
        state.unaccounted.remove(&id);
        state.outcomes.push(outcome);
    }

    /// Sets free what was set aside for an entry: no tensor of it comes any more.
    pub(super) fn release(&self, id: DiskId) {
        let mut state = self.state.lock();
        state.reserved.remove(&id);
        state.in_flight.remove(&id);
    }

    /// Admits nothing any more; says whether that is news.
    pub(super) fn set_read_only(&self, reason: &str) -> bool {
        let mut state = self.state.lock();
        let news = state.read_only.is_none();
        state.read_only.get_or_insert_with(|| reason.to_owned());
        news
    }

    /// The writer is gone: nobody waits for it any more.
    pub(super) fn writer_ended(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        state.queue.clear();
        self.idle.notify_all();
    }
}
