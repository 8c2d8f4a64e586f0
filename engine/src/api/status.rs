//! What the server says of itself.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};

use crate::clock::Time;
use crate::gateway::{Engine, Health};
use crate::limits;
use crate::wire::stats::{HealthBody, StatsBody};

/// Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn health(State(engine): State<Engine>) -> (StatusCode, Json<HealthBody>) {
    let health = engine.health();
    let status = match health {
        Health::Serving => StatusCode::OK,
        Health::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(HealthBody::from(health)))
}

pub(super) async fn stats(State(engine): State<Engine>) -> Json<StatsBody> {
    Json(now(&engine))
}

/// The statistics as server-sent events, four times a second, until the client leaves or the server
/// ends. A slow reader misses some.
pub(super) async fn stats_stream(
    State(engine): State<Engine>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let began = engine.clock().now();
    let events = stream::unfold((engine, began), async |(engine, due)| {
        tokio::select! {
            biased;
            () = engine.drained() => return None,
            () = engine.clock().sleep_until(due) => {}
        }
        let event = Event::default().json_data(now(&engine));
        let event = event.expect("statistics have string keys and cannot fail to serialize");
        let next = next_due(due, engine.clock().now());
        Some((Ok(event), (engine, next)))
    });
    Sse::new(events)
}

/// When the snapshot after that of `due` is due, at `now`.
fn next_due(due: Time, now: Time) -> Time {
    (due + Duration::from_millis(limits::STATS_PERIOD_MS)).max(now)
}

pub(super) async fn metrics(
    State(engine): State<Engine>,
) -> ([(HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, METRICS)], engine.metrics())
}

fn now(engine: &Engine) -> StatsBody {
    StatsBody::new(engine.card(), engine.uptime(), &engine.snapshot())
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
