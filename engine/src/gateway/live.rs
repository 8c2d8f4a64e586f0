//! Who is live, and how to end one of them from outside.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The live requests by their ids.
#[derive(Debug, Default)]
pub(super) struct LiveRequests(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    live: HashMap<String, Arc<Notify>>,
    /// Whether all are to end, those too that come still.
    closed: bool,
}

/// A request among the live ones; dropping it takes it out.
#[derive(Debug)]
pub(super) struct Presence {
    id: String,
    requests: Arc<LiveRequests>,
    cancelled: Arc<Notify>,
}

impl LiveRequests {
    /// Adds the request `id`, which no other live one has.
    pub(super) fn enter(self: &Arc<Self>, id: &str) -> Presence {
        let cancelled = Arc::<Notify>::default();
        let mut requests = self.0.lock();
        if requests.closed {
            cancelled.notify_one();
        }
        requests.live.insert(id.to_owned(), Arc::clone(&cancelled));
        Presence { id: id.to_owned(), requests: Arc::clone(self), cancelled }
    }

    /// Tells the request `id` to end; `false` when none such is live.
    pub(super) fn cancel(&self, id: &str) -> bool {
        let requests = self.0.lock();
        let found = requests.live.get(id);
        if let Some(cancelled) = found {
            cancelled.notify_one();
        }
        found.is_some()
    }

    /// Tells all requests to end, and those that come after.
    pub(super) fn cancel_all(&self) {
        let mut requests = self.0.lock();
        requests.closed = true;
        requests.live.values().for_each(|cancelled| cancelled.notify_one());
    }
}

impl Presence {
    /// Resolves when somebody asked for the request's end, even before this was called.
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.requests.0.lock().live.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_request_hears_of_its_own_end_only_and_is_unknown_once_it_is_gone() {
        let requests = Arc::<LiveRequests>::default();
        let (one, two) = (requests.enter("one"), requests.enter("two"));
        assert!(one.cancelled().now_or_never().is_none());
        assert!(requests.cancel("one"));
        assert!(one.cancelled().now_or_never().is_some());
        assert!(two.cancelled().now_or_never().is_none());
        drop(one);
        assert!(!requests.cancel("one") && requests.cancel("two"));
    }

    #[test]
    fn when_all_are_to_end_those_end_too_that_come_after() {
        let requests = Arc::<LiveRequests>::default();
        let one = requests.enter("one");
        requests.cancel_all();
        let two = requests.enter("two");
        assert!([one, two].iter().all(|row| row.cancelled().now_or_never().is_some()));
    }

    #[test]
    fn a_future_that_is_dropped_unfinished_loses_no_cancellation() {
        let requests = Arc::<LiveRequests>::default();
        let presence = requests.enter("one");
        let mut waiting = Box::pin(presence.cancelled());
        assert!(waiting.as_mut().now_or_never().is_none());
        requests.cancel("one");
        drop(waiting);
        assert!(presence.cancelled().now_or_never().is_some());
    }
}
