//! The models of the server, for those who run it: how they stand, and what to do with them.
//!
//! An id with slashes is written with `%2F` in paths.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};
use tokio::sync::watch;

use super::body::JsonBody;
use super::id::Id;
use super::rejection::Rejection;
use crate::clock::Time;
use crate::error::{Error, Result};
use crate::gateway::{Asked, ModelStatus, Residency};
use crate::limits;
use crate::wire::models::{self, ModelBody, ModelsBody};

pub(super) async fn list(State(models): State<Residency>) -> Json<ModelsBody> {
    Json(ModelsBody::new(&models.models()))
}

/// Begins to load a model; with `?wait=true` it answers when that is done.
pub(super) async fn load(
    State(models): State<Residency>,
    Id(id): Id,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
) -> Result<(StatusCode, Json<ModelBody>), Rejection> {
    let asked = Asked::from(id.as_str());
    let wait = flag(query, "wait")?;
    models.look_for(asked).await;
    let mut status = models.load(asked)?;
    if wait {
        drop(models.lease(asked).await?);
        status = models.model(asked)?;
    }
    Ok(answer(&status, "ready"))
}

/// Begins to unload a model; with `?force=true` its requests end where they are.
pub(super) async fn unload(
    State(models): State<Residency>,
    Id(id): Id,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
) -> Result<(StatusCode, Json<ModelBody>), Rejection> {
    let force = flag(query, "force")?;
    let status = models.unload(Asked::from(id.as_str()), force)?;
    Ok(answer(&status, "absent"))
}

pub(super) async fn pin(
    State(models): State<Residency>,
    Id(id): Id,
    JsonBody(body): JsonBody,
) -> Result<Json<ModelBody>, Rejection> {
    let pinned = models::pin(&body)?;
    let status = models.pin(Asked::from(id.as_str()), pinned)?;
    Ok(Json(ModelBody::new(&status)))
}

/// The list as server-sent events: now, and whenever it changes, but no more often than the statistics; while a
/// model loads, as often. A slow reader misses some.
pub(super) async fn events(
    State(models): State<Residency>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let began = models.clock().now();
    let mut changes = models.changes();
    changes.mark_changed();
    let events = stream::unfold((models, changes, began), async |(models, mut changes, due)| {
        tokio::select! {
            biased;
            () = models.drained() => return None,
            () = due_change(&models, &mut changes, due) => {}
        }
        let event = Event::default().json_data(ModelsBody::new(&models.models()));
        let event = event.expect("models have string keys and cannot fail to serialize");
        let next = models.clock().now() + PERIOD;
        Some((Ok(event), (models, changes, next)))
    });
    Sse::new(events)
}

const PERIOD: Duration = Duration::from_millis(limits::STATS_PERIOD_MS);

/// Resolves at the first change, or look at a load, from `due` on.
async fn due_change(models: &Residency, changes: &mut watch::Receiver<u64>, due: Time) {
    models.clock().sleep_until(due).await;
    if models.models().iter().any(|status| status.state == "loading") {
        changes.mark_unchanged();
        return;
    }
    if changes.changed().await.is_err() {
        // Nothing changes any more.
        models.drained().await;
    }
}

/// 200 when `status` is in the state that was asked for, else 202: it will be.
fn answer(status: &ModelStatus, wanted: &str) -> (StatusCode, Json<ModelBody>) {
    let done = status.state == wanted;
    let code = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    (code, Json(ModelBody::new(status)))
}

fn flag(query: Result<Query<HashMap<String, String>>, QueryRejection>, name: &str) -> Result<bool> {
    let unreadable = |_| Error::invalid(name, "the query cannot be read");
    let Query(query) = query.map_err(unreadable)?;
    models::flag(name, query.get(name).map(String::as_str))
}
