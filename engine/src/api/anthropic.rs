//! Anthropic's routes. Its version and beta headers are taken as they come: one version is spoken.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::Served;
use super::answer;
use super::body::JsonBody;
use super::caller::Caller;
use super::rejection::Rejection;
use crate::gateway::Residency;
use crate::wire::anthropic::{self, MessageTeller, TokenCount};

pub(super) async fn messages(
    State(served): State<Served>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let engine = served.models.lease(anthropic::model(&body)?).await?;
    let request = anthropic::messages(&body, engine.card())?;
    let manner = served.manner(&caller, request.stream);
    let generation = engine.generate(caller.asks(request.generate)).await?;
    let prompt_tokens = generation.placement().shape.prompt_tokens;
    let teller = MessageTeller::new(generation.id(), engine.card().id.as_str(), prompt_tokens);
    answer::respond(engine, manner, teller, generation).await
}

pub(super) async fn count_tokens(
    State(models): State<Residency>,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenCount>, Rejection> {
    let engine = models.lease(anthropic::model(&body)?).await?;
    let request = anthropic::count_tokens(&body, engine.card())?;
    Ok(Json(TokenCount::new(engine.prompt_tokens(&request).await?.len())))
}
