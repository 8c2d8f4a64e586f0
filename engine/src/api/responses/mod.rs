//! OpenAI's responses: answers that are remembered for a while.

mod keep;
mod store;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde_json::Value;

use super::Served;
use super::answer;
use super::body::JsonBody;
use super::caller::Caller;
use super::rejection::Rejection;
use crate::clock;
use crate::wire::responses::{self, DeletedBody, ResponseTeller};

use self::keep::Keeping;

pub(super) use store::ResponseStore;

/// What was left out of a request, one header each.
const WARNING: HeaderName = HeaderName::from_static("x-slipstream-warning");

pub(super) async fn create(
    State(Served { engine, responses }): State<Served>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let owner = caller.key.clone();
    let past = responses.past_of(owner.clone());
    let request = responses::response(&body, engine.card(), &past)?;
    let generation = engine.generate(caller.asks(request.generate)).await?;
    let (id, model) = (generation.id().to_owned(), engine.card().id.clone());
    let teller = ResponseTeller::new(id, clock::unix_seconds(), model, request.echo);
    let keeping = Keeping::new(teller, responses, owner, request.conversation);
    let mut response = answer::respond(keeping, generation, request.stream).await?;
    for warning in &request.warnings {
        if let Ok(warning) = HeaderValue::from_str(warning) {
            response.headers_mut().append(WARNING, warning);
        }
    }
    Ok(response)
}

pub(super) async fn get(
    State(Served { responses, .. }): State<Served>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, Rejection> {
    responses.body(&id, caller.key.as_ref()).map(Json).ok_or(Rejection::NoResponse(id))
}

pub(super) async fn delete(
    State(Served { responses, .. }): State<Served>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<DeletedBody>, Rejection> {
    match responses.remove(&id, caller.key.as_ref()) {
        true => Ok(Json(DeletedBody::new(id))),
        false => Err(Rejection::NoResponse(id)),
    }
}
