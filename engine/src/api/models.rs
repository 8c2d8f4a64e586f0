//! The models of the server, for those who run it: how they stand, and what to do with them.
//!
//! An id with slashes is written with `%2F` in paths.

use std::convert::Infallible;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use futures_util::stream::Stream;

use super::body::JsonBody;
use super::events;
use super::id::Id;
use super::query::{self, Words};
use super::rejection::Rejection;
use crate::error::Result;
use crate::gateway::{Asked, ModelStatus, Residency};
use crate::wire::models::{self, ModelBody, ModelsBody};

pub(super) async fn list(State(models): State<Residency>) -> Json<ModelsBody> {
    Json(ModelsBody::new(&models.models()))
}

/// Begins to load a model; with `?wait=true` it answers when that is done.
pub(super) async fn load(
    State(models): State<Residency>,
    Id(id): Id,
    query: Words,
) -> Result<(StatusCode, Json<ModelBody>), Rejection> {
    let asked = Asked::from(id.as_str());
    let wait = query::flag(query, "wait")?;
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
    query: Words,
) -> Result<(StatusCode, Json<ModelBody>), Rejection> {
    let force = query::flag(query, "force")?;
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

/// The list as server-sent events: whenever it changes, and while a model loads.
pub(super) async fn events(
    State(models): State<Residency>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let (looked_at, shown) = (models.clone(), models.clone());
    let loads = move || looked_at.models().iter().any(|status| status.state == "loading");
    let changes = models.changes();
    events::on_change(models, changes, loads, move || ModelsBody::new(&shown.models()))
}

/// 200 when `status` is in the state that was asked for, else 202: it will be.
fn answer(status: &ModelStatus, wanted: &str) -> (StatusCode, Json<ModelBody>) {
    let done = status.state == wanted;
    let code = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    (code, Json(ModelBody::new(status)))
}
