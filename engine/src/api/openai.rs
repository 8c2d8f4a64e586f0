//! OpenAI's routes.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

use super::body::JsonBody;
use super::priority::PriorityHeader;
use super::rejection::Rejection;
use super::stream;
use crate::clock;
use crate::error::Result;
use crate::gateway::{AnswerEvent, Engine, GenerateRequest, Generation};
use crate::output::FoldedAnswer;
use crate::scheduler::Priority;
use crate::wire::openai::{self, Body, ModelEntry, ModelList, ReplyHead, ReplyRequest};

pub(super) async fn chat_completions(
    State(engine): State<Engine>,
    PriorityHeader(priority): PriorityHeader,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let request = openai::chat(&body, engine.card())?;
    reply(&engine, request, priority).await
}

pub(super) async fn completions(
    State(engine): State<Engine>,
    PriorityHeader(priority): PriorityHeader,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let request = openai::completion(&body, engine.card())?;
    reply(&engine, request, priority).await
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
    priority: Priority,
) -> Result<Response, Rejection> {
    let head = ReplyHead {
        kind: request.kind,
        id: request.generate.id.clone(),
        created: clock::unix_seconds(),
        model: engine.card().id.clone(),
        include_usage: request.include_usage,
    };
    let generate = GenerateRequest { priority, ..request.generate };
    let generation = engine.generate(generate).await?;
    if request.stream {
        Ok(stream::events(head, generation).into_response())
    } else {
        Ok(Json(whole(&head, generation).await?).into_response())
    }
}

/// The same events as a stream has, folded into one answer.
async fn whole(head: &ReplyHead, mut generation: Generation) -> Result<Body> {
    let mut answer = FoldedAnswer::default();
    loop {
        match generation.next().await.unwrap_or_else(stream::unfinished)? {
            AnswerEvent::Finished { reason, usage } => {
                return Ok(head.whole(answer, reason, &usage));
            }
            event => answer.extend(event.into_part()),
        }
    }
}
