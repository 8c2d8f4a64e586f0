//! Anthropic's routes. Its version and beta headers are taken as they come: one version is spoken.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::answer;
use super::body::JsonBody;
use super::caller::Caller;
use super::rejection::Rejection;
use crate::gateway::Engine;
use crate::wire::anthropic::{self, MessageTeller, TokenCount};

pub(super) async fn messages(
    State(engine): State<Engine>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Response, Rejection> {
    let request = anthropic::messages(&body, engine.card())?;
    let generation = engine.generate(caller.asks(request.generate)).await?;
    let prompt_tokens = generation.placement().shape.prompt_tokens;
    let teller = MessageTeller::new(generation.id(), engine.card().id.as_str(), prompt_tokens);
    answer::respond(teller, generation, request.stream).await
}

pub(super) async fn count_tokens(
    State(engine): State<Engine>,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenCount>, Rejection> {
    let request = anthropic::count_tokens(&body, engine.card())?;
    Ok(Json(TokenCount::new(engine.prompt_tokens(&request).await?.len())))
}
