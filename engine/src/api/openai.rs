//! OpenAI's routes.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::Served;
use super::answer;
use super::body::JsonBody;
use super::caller::Caller;
use super::id::Id;
use super::rejection::Rejection;
use crate::clock;
use crate::gateway::Engine;
use crate::wire::openai::{self, Chunks, ModelEntry, ModelList, ReplyHead, ReplyRequest};

pub(super) async fn chat_completions(
    State(served): State<Served>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let request = openai::chat(&body, served.engine.card())?;
    reply(served, request, caller).await
}

pub(super) async fn completions(
    State(served): State<Served>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let request = openai::completion(&body, served.engine.card())?;
    reply(served, request, caller).await
}

pub(super) async fn models(State(engine): State<Engine>) -> Json<ModelList> {
    Json(ModelList::of(entry(&engine)))
}

pub(super) async fn model(
    State(engine): State<Engine>,
    Id(id): Id,
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
    served: Served,
    request: ReplyRequest,
    caller: Caller,
) -> Result<Response, Rejection> {
    let head = ReplyHead {
        kind: request.kind,
        id: request.generate.id.clone(),
        created: clock::unix_seconds(),
        model: served.engine.card().id.clone(),
        include_usage: request.include_usage,
        service_tier: request.service_tier,
        logprobs: request.generate.sampling.logprobs.is_some(),
    };
    let manner = served.manner(&caller, request.stream);
    let generation = served.engine.generate(caller.asks(request.generate)).await?;
    answer::respond(served.engine, manner, Chunks::new(head), generation).await
}
