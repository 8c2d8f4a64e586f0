//! The prompts that are kept, for those to whom they belong.

use std::collections::HashMap;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};

use super::body::JsonBody;
use super::id::Id;
use super::rejection::Rejection;
use crate::error::Error;
use crate::gateway::Engine;
use crate::prompt_cache::PromptId;
use crate::wire::cache::{
    self, CacheBody, ClearedBody, DeletedPromptBody, FlushedBody, PinnedBody,
};

pub(super) async fn list(State(engine): State<Engine>) -> Result<Json<CacheBody>, Rejection> {
    Ok(Json(engine.kept_prompts().await?.into()))
}

pub(super) async fn pin(
    State(engine): State<Engine>,
    Id(id): Id,
    JsonBody(body): JsonBody,
) -> Result<Json<PinnedBody>, Rejection> {
    let pinned = cache::pin(&body)?;
    let prompt = named(&engine, &id)?;
    match engine.pin_prompt(prompt, pinned).await? {
        true => Ok(Json(PinnedBody::new(prompt, pinned))),
        false => Err(none(&engine, &id)),
    }
}

pub(super) async fn delete(
    State(engine): State<Engine>,
    Id(id): Id,
) -> Result<Json<DeletedPromptBody>, Rejection> {
    let prompt = named(&engine, &id)?;
    match engine.delete_prompt(prompt).await? {
        true => Ok(Json(DeletedPromptBody::new(prompt))),
        false => Err(none(&engine, &id)),
    }
}

/// Deletes all prompts, and with `?pinned=true` those that are pinned too.
pub(super) async fn clear(
    State(engine): State<Engine>,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
) -> Result<Json<ClearedBody>, Rejection> {
    let unreadable = |_| Error::invalid("pinned", "the query cannot be read");
    let Query(query) = query.map_err(unreadable)?;
    let pinned = cache::clear(query.get("pinned").map(String::as_str))?;
    Ok(Json(engine.clear_prompts(pinned).await?.into()))
}

pub(super) async fn flush(State(engine): State<Engine>) -> Result<Json<FlushedBody>, Rejection> {
    Ok(Json(engine.flush_prompts().await?.into()))
}

/// What is no id names nothing.
fn named(engine: &Engine, id: &str) -> Result<PromptId, Rejection> {
    id.parse().map_err(|_| none(engine, id))
}

fn none(engine: &Engine, id: &str) -> Rejection {
    Rejection::NoPrompt { id: id.to_owned(), kept: engine.keeps_prompts() }
}
