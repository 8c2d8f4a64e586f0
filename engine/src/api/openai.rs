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
use crate::gateway::{Asked, Engine, Residency};
use crate::wire::openai::{self, Chunks, ModelEntry, ModelList, ReplyHead, ReplyRequest};

pub(super) async fn chat_completions(
    State(served): State<Served>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let engine = served.models.lease(openai::model(&body)?).await?;
    let request = openai::chat(&body, engine.card())?;
    reply(&served, engine, request, caller).await
}

pub(super) async fn completions(
    State(served): State<Served>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let engine = served.models.lease(openai::model(&body)?).await?;
    let request = openai::completion(&body, engine.card())?;
    reply(&served, engine, request, caller).await
}

pub(super) async fn models(State(models): State<Residency>) -> Json<ModelList> {
    let created = models.started_unix_seconds();
    let entries = models.models().iter().map(|status| ModelEntry::new(status, created)).collect();
    Json(ModelList::of(entries))
}

pub(super) async fn model(
    State(models): State<Residency>,
    Id(id): Id,
) -> Result<Json<ModelEntry>, Rejection> {
    let status = models.model(Asked::from(id.as_str()))?;
    Ok(Json(ModelEntry::new(&status, models.started_unix_seconds())))
}

async fn reply(
    served: &Served,
    engine: Engine,
    request: ReplyRequest,
    caller: Caller,
) -> Result<Response, Rejection> {
    let head = ReplyHead {
        kind: request.kind,
        id: request.generate.id.clone(),
        created: clock::unix_seconds(),
        model: engine.card().id.clone(),
        include_usage: request.include_usage,
        service_tier: request.service_tier,
        logprobs: request.generate.sampling.logprobs.is_some(),
    };
    let manner = served.manner(&caller, request.stream);
    let generation = engine.generate(caller.asks(request.generate)).await?;
    answer::respond(engine, manner, Chunks::new(head), generation).await
}
