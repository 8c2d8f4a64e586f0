//! Who is live, and how to end one of them from outside.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The live requests by their ids.
#[derive(Debug, Default)]
pub(super) struct LiveRequests(Mutex<HashMap<String, Arc<Notify>>>);

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
        self.0.lock().insert(id.to_owned(), Arc::clone(&cancelled));
        Presence { id: id.to_owned(), requests: Arc::clone(self), cancelled }
    }

    /// Tells the request `id` to end; `false` when none such is live.
    pub(super) fn cancel(&self, id: &str) -> bool {
        let requests = self.0.lock();
        let found = requests.get(id);
        if let Some(cancelled) = found {
            cancelled.notify_one();
        }
        found.is_some()
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
        self.requests.0.lock().remove(&self.id);
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
