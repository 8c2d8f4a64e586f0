//! What changes, told as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::watch;

use crate::clock::Time;
use crate::gateway::Residency;
use crate::limits;

const PERIOD: Duration = Duration::from_millis(limits::STATS_PERIOD_MS);

/// What `body` makes now, and whenever `changes` tells of one, but no more often than the statistics; while something
/// `moves` that no change tells of, as often. It ends with the server. A slow reader misses some.
pub(super) fn on_change<B: Serialize>(
    models: Residency,
    mut changes: watch::Receiver<u64>,
    moves: impl Fn() -> bool + Send + Sync + 'static,
    body: impl Fn() -> B + Send + Sync + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let began = models.clock().now();
    changes.mark_changed();
    let state = (models, changes, moves, body, began);
    let events = stream::unfold(state, async |(models, mut changes, moves, body, due)| {
        tokio::select! {
            biased;
            () = models.drained() => return None,
            () = due_change(&models, &mut changes, &moves, due) => {}
        }
        let event = Event::default().json_data(body());
        let event = event.expect("bodies have string keys and cannot fail to serialize");
        let next = models.clock().now() + PERIOD;
        Some((Ok(event), (models, changes, moves, body, next)))
    });
    Sse::new(events)
}

/// Resolves at the first change, or look at what moves, from `due` on.
async fn due_change(
    models: &Residency,
    changes: &mut watch::Receiver<u64>,
    moves: &(impl Fn() -> bool + Sync),
    due: Time,
) {
    models.clock().sleep_until(due).await;
    if moves() {
        changes.mark_unchanged();
        return;
    }
    if changes.changed().await.is_err() {
        // Nothing changes any more.
        models.drained().await;
    }
}
