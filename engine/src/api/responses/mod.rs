//! OpenAI's responses: answers that are remembered for a while.

mod keep;
mod store;

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde_json::Value;

use super::Served;
use super::answer;
use super::body::JsonBody;
use super::caller::Caller;
use super::id::Id;
use super::rejection::Rejection;
use crate::clock;
use crate::error::{Code, Error};
use crate::wire::openai;
use crate::wire::responses::{self, DeletedBody, ResponseTeller};

use self::keep::Keeping;

pub(super) use store::ResponseStore;

/// Clients refuse answers with a hundred headers.
const WARNINGS_MAX: usize = 16;

/// What was left out of a request, one header each.
pub(super) const WARNING: HeaderName = HeaderName::from_static("x-slipstream-warning");

pub(super) async fn create(
    State(served): State<Served>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let Served { models, responses, .. } = &served;
    let engine = models.lease(openai::model(&body)?).await?;
    let owner = caller.key.clone();
    let past = responses.past_of(owner.clone());
    let request = responses::response(&body, engine.card(), &past)?;
    let manner = served.manner(&caller, request.stream);
    let generation = engine.generate(caller.asks(request.generate)).await?;
    let (id, model) = (generation.id().to_owned(), engine.card().id.clone());
    let teller = ResponseTeller::new(id, clock::unix_seconds(), model, request.echo);
    let keeping = Keeping::new(teller, Arc::clone(responses), owner, request.conversation);
    let mut response = answer::respond(engine, manner, keeping, generation).await?;
    for warning in request.warnings.iter().take(WARNINGS_MAX) {
        if let Ok(warning) = HeaderValue::from_str(warning) {
            response.headers_mut().append(WARNING, warning);
        }
    }
    Ok(response)
}

pub(super) async fn get(
    State(Served { responses, .. }): State<Served>,
    caller: Caller,
    RawQuery(query): RawQuery,
    Id(id): Id,
) -> Result<Json<Value>, Rejection> {
    let query = query.unwrap_or_default();
    let mut streams = query.split('&').filter_map(|pair| pair.strip_prefix("stream="));
    if let Some(asked) = streams.find(|asked| *asked != "false") {
        let message =
            format!("`stream` must be `false`, got `{asked}`: a stored response is told whole");
        return Err(Error::new(Code::Unsupported, message).with_param("stream").into());
    }
    responses.body(&id, caller.key.as_ref()).map(Json).ok_or(Rejection::NoResponse(id))
}

pub(super) async fn delete(
    State(Served { responses, .. }): State<Served>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<DeletedBody>, Rejection> {
    match responses.remove(&id, caller.key.as_ref()) {
        true => Ok(Json(DeletedBody::new(id))),
        false => Err(Rejection::NoResponse(id)),
    }
}
