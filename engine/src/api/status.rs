//! What the server says of itself.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};

use crate::clock::Time;
use crate::gateway::{Health, Residency};
use crate::limits;
use crate::wire::stats::{HealthBody, StatsBody};

/// Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn health(State(models): State<Residency>) -> (StatusCode, Json<HealthBody>) {
    let health = models.health();
    let status = match health {
        Health::Serving => StatusCode::OK,
        Health::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(HealthBody::from(health)))
}

pub(super) async fn stats(State(models): State<Residency>) -> Json<StatsBody> {
    Json(now(&models))
}

/// The statistics as server-sent events, four times a second, until the client leaves or the server
/// ends. A slow reader misses some.
pub(super) async fn stats_stream(
    State(models): State<Residency>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let began = models.clock().now();
    let events = stream::unfold((models, began), async |(models, due)| {
        tokio::select! {
            biased;
            () = models.drained() => return None,
            () = models.clock().sleep_until(due) => {}
        }
        let event = Event::default().json_data(now(&models));
        let event = event.expect("statistics have string keys and cannot fail to serialize");
        let next = next_due(due, models.clock().now());
        Some((Ok(event), (models, next)))
    });
    Sse::new(events)
}

/// When the snapshot after that of `due` is due, at `now`.
fn next_due(due: Time, now: Time) -> Time {
    (due + Duration::from_millis(limits::STATS_PERIOD_MS)).max(now)
}

pub(super) async fn metrics(
    State(models): State<Residency>,
) -> ([(HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, METRICS)], models.metrics())
}

fn now(models: &Residency) -> StatsBody {
    StatsBody::new(&models.overview())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_gets_the_next_snapshot_at_once_and_none_of_those_it_missed() {
        let ms = Duration::from_millis;
        assert_eq!(next_due(ms(1000), ms(1000)), ms(1250));
        assert_eq!(next_due(ms(1000), ms(1100)), ms(1250));
        assert_eq!(next_due(ms(1000), ms(5000)), ms(5000));
    }
}
