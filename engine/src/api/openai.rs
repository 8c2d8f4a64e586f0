//! OpenAI's routes.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;

use super::answer;
use super::body::JsonBody;
use super::caller::Caller;
use super::rejection::Rejection;
use crate::clock;
use crate::gateway::Engine;
use crate::wire::openai::{self, Chunks, ModelEntry, ModelList, ReplyHead, ReplyRequest};

pub(super) async fn chat_completions(
    State(engine): State<Engine>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let request = openai::chat(&body, engine.card())?;
    reply(&engine, request, caller).await
}

pub(super) async fn completions(
    State(engine): State<Engine>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let request = openai::completion(&body, engine.card())?;
    reply(&engine, request, caller).await
}

pub(super) async fn models(State(engine): State<Engine>) -> Json<ModelList> {
    Json(ModelList::of(entry(&engine)))
}

pub(super) async fn model(
    State(engine): State<Engine>,
    Path(id): Path<String>,
) -> Result<Json<ModelEntry>, Rejection> {
    if id == engine.card().id {
        Ok(Json(entry(&engine)))
    } else {
        Err(engine.card().not_found(&id).into())
    }
}

fn entry(engine: &Engine) -> ModelEntry {
    ModelEntry::new(engine.card(), engine.started_unix_seconds())
}

async fn reply(
    engine: &Engine,
    request: ReplyRequest,
    caller: Caller,
) -> Result<Response, Rejection> {
    let head = ReplyHead {
        kind: request.kind,
        id: request.generate.id.clone(),
        created: clock::unix_seconds(),
        model: engine.card().id.clone(),
        include_usage: request.include_usage,
        logprobs: request.generate.sampling.logprobs.is_some(),
    };
    let generation = engine.generate(caller.asks(request.generate)).await?;
    answer::respond(Chunks::new(head), generation, request.stream).await
}
