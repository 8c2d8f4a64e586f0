//! The prompts that are kept, for those to whom they belong.

use axum::Json;
use axum::extract::State;

use super::body::JsonBody;
use super::id::Id;
use super::query::{self, Words};
use super::rejection::Rejection;
use crate::gateway::Residency;
use crate::prompt_cache::PromptId;
use crate::wire::cache::{
    self, CacheBody, ClearedBody, DeletedPromptBody, FlushedBody, PinnedBody,
};

pub(super) async fn list(State(models): State<Residency>) -> Result<Json<CacheBody>, Rejection> {
    Ok(Json(models.kept_prompts().await?.into()))
}

pub(super) async fn pin(
    State(models): State<Residency>,
    Id(id): Id,
    JsonBody(body): JsonBody,
) -> Result<Json<PinnedBody>, Rejection> {
    let pinned = cache::pin(&body)?;
    let prompt = named(&models, &id)?;
    match models.pin_prompt(prompt, pinned).await? {
        true => Ok(Json(PinnedBody::new(prompt, pinned))),
        false => Err(none(&models, &id)),
    }
}

pub(super) async fn delete(
    State(models): State<Residency>,
    Id(id): Id,
) -> Result<Json<DeletedPromptBody>, Rejection> {
    let prompt = named(&models, &id)?;
    match models.delete_prompt(prompt).await? {
        true => Ok(Json(DeletedPromptBody::new(prompt))),
        false => Err(none(&models, &id)),
    }
}

/// Deletes all prompts, and with `?pinned=true` those that are pinned too.
pub(super) async fn clear(
    State(models): State<Residency>,
    query: Words,
) -> Result<Json<ClearedBody>, Rejection> {
    let pinned = query::flag(query, "pinned")?;
    Ok(Json(models.clear_prompts(pinned).await?.into()))
}

pub(super) async fn flush(State(models): State<Residency>) -> Result<Json<FlushedBody>, Rejection> {
    Ok(Json(models.flush_prompts().await?.into()))
}

/// What is no id names nothing.
fn named(models: &Residency, id: &str) -> Result<PromptId, Rejection> {
    id.parse().map_err(|_| none(models, id))
}

fn none(models: &Residency, id: &str) -> Rejection {
    Rejection::NoPrompt { id: id.to_owned(), kept: models.keeps_prompts() }
}
