//! The hub, for those who run the server: models of this machine and of the hub, downloads, imports, conversions.
//!
//! An id with slashes is written with `%2F` in paths.

use std::convert::Infallible;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::sse::{Event, Sse};
use futures_util::stream::Stream;

use super::Served;
use super::body::JsonBody;
use super::events;
use super::id::Id;
use super::query::{self, Words};
use super::rejection::Rejection;
use crate::error::Result;
use crate::gateway::Residency;
use crate::hub::Hub;
use crate::wire::hub::{
    self as wire, ChangesBody, DeletedDownloadBody, DownloadBody, DownloadsBody, EventBody,
    JobBody, JobsBody, LibraryBody, RemovedBody, RepoBody, SearchBody, TokenBody,
};

impl FromRequestParts<Served> for Hub {
    type Rejection = Rejection;

    async fn from_request_parts(_: &mut Parts, served: &Served) -> Result<Self, Rejection> {
        served.hub.clone().ok_or(Rejection::NoRoute)
    }
}

type Answer<T> = Result<Json<T>, Rejection>;

pub(super) async fn library(hub: Hub, State(models): State<Residency>) -> Answer<LibraryBody> {
    let library = hub.library().await?;
    Ok(Json(LibraryBody::new(&library, &models.models())))
}

pub(super) async fn rescan(hub: Hub) -> Answer<ChangesBody> {
    let changes = hub.rescan().await?;
    Ok(Json(ChangesBody::new(changes, hub.view().version)))
}

/// Removes a model from the disk, unless somebody needs its files.
pub(super) async fn remove(
    hub: Hub,
    State(models): State<Residency>,
    Id(id): Id,
) -> Answer<RemovedBody> {
    let removed = hub.remove(&id, move |directory| models.check_unused(directory)).await?;
    Ok(Json(RemovedBody::new(id, removed)))
}

pub(super) async fn search(
    hub: Hub,
    State(models): State<Residency>,
    query: Words,
) -> Answer<SearchBody> {
    let query = wire::search(&query::words(query, "q")?)?;
    let found = hub.search(&query).await?;
    Ok(Json(SearchBody::new(found, &hub, &models.models())))
}

pub(super) async fn repo(hub: Hub, Id(id): Id, query: Words) -> Answer<RepoBody> {
    let (repo, revision) = (wire::repo(&id)?, wire::revision(&query::words(query, "q")?)?);
    Ok(Json(RepoBody::new(&hub.describe(&repo, &revision).await?, &hub)))
}

pub(super) async fn downloads(hub: Hub) -> Json<DownloadsBody> {
    Json(DownloadsBody::new(&hub))
}

pub(super) async fn fetch(
    hub: Hub,
    JsonBody(body): JsonBody,
) -> Result<(StatusCode, Json<DownloadBody>), Rejection> {
    let request = wire::fetch(&body)?;
    hub.fetch(&request.repo, &request.revision, request.bytes_per_second)?;
    Ok((StatusCode::ACCEPTED, Json(DownloadBody::new(&hub.download(&request.repo)?))))
}

pub(super) async fn pause(hub: Hub, Id(id): Id) -> Answer<DownloadBody> {
    let repo = wire::repo(&id)?;
    hub.pause(&repo)?;
    Ok(Json(DownloadBody::new(&hub.download(&repo)?)))
}

pub(super) async fn resume(hub: Hub, Id(id): Id) -> Answer<DownloadBody> {
    let repo = wire::repo(&id)?;
    hub.resume(&repo)?;
    Ok(Json(DownloadBody::new(&hub.download(&repo)?)))
}

pub(super) async fn cancel(hub: Hub, Id(id): Id) -> Answer<DeletedDownloadBody> {
    hub.cancel(&wire::repo(&id)?).await?;
    Ok(Json(DeletedDownloadBody::new(id)))
}

/// How downloads, jobs and the library stand, as server-sent events: whenever that changes.
pub(super) async fn events(
    hub: Hub,
    State(models): State<Residency>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changes = hub.watch();
    events::on_change(models, changes, || false, move || EventBody::new(&hub))
}

pub(super) async fn token(hub: Hub) -> Answer<TokenBody> {
    Ok(Json(TokenBody::new(hub.token().await?.as_ref())))
}

pub(super) async fn keep_token(hub: Hub, JsonBody(body): JsonBody) -> Answer<TokenBody> {
    let source = hub.keep_token(wire::token(&body)?).await?;
    Ok(Json(TokenBody::new(source.as_ref())))
}

pub(super) async fn forget_token(hub: Hub) -> Answer<TokenBody> {
    Ok(Json(TokenBody::new(hub.forget_token().await?.as_ref())))
}

pub(super) async fn import(
    hub: Hub,
    JsonBody(body): JsonBody,
) -> Result<(StatusCode, Json<JobBody>), Rejection> {
    let request = wire::import(&body)?;
    let job = hub.import(request.path, request.out, request.dtype).await?;
    Ok((StatusCode::ACCEPTED, Json(JobBody::new(&job))))
}

pub(super) async fn convert(
    hub: Hub,
    JsonBody(body): JsonBody,
) -> Result<(StatusCode, Json<JobBody>), Rejection> {
    let request = wire::convert(&body)?;
    let job = hub.convert(&request.model, request.out, request.bits, request.group_size)?;
    Ok((StatusCode::ACCEPTED, Json(JobBody::new(&job))))
}

pub(super) async fn jobs(hub: Hub) -> Json<JobsBody> {
    Json(JobsBody::new(&hub.jobs()))
}

/// Stops a conversion, or forgets a job that ended.
pub(super) async fn end_job(hub: Hub, Id(id): Id) -> Answer<JobBody> {
    Ok(Json(JobBody::new(&hub.end_job(wire::job(&id)?)?)))
}
