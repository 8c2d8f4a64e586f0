//! Texts to vectors.

use axum::Json;
use axum::extract::State;

use super::body::JsonBody;
use super::rejection::Rejection;
use super::tokens::aside;
use crate::error::Result;
use crate::gateway::Engine;
use crate::wire::embeddings::{self, EmbeddingsBody, Input};

/// One vector after the other: rows that decode run between them.
pub(super) async fn create(
    State(engine): State<Engine>,
    JsonBody(body): JsonBody,
) -> Result<Json<EmbeddingsBody>, Rejection> {
    let request = embeddings::embeddings(&body, engine.card())?;
    let (mut vectors, mut tokens_total) = (Vec::with_capacity(request.inputs.len()), 0);
    for input in request.inputs {
        let tokens = tokens(&engine, input).await?;
        tokens_total += tokens.len();
        vectors.push(engine.embed(tokens, request.dimensions).await?);
    }
    let body = EmbeddingsBody::new(engine.card(), vectors, request.encoding, tokens_total);
    Ok(Json(body))
}

async fn tokens(engine: &Engine, input: Input) -> Result<Vec<u32>> {
    match input {
        Input::Tokens(tokens) => Ok(tokens),
        // With the tokens around it that the model was trained to find there.
        Input::Text(text) => aside(engine, move |tokenizer| tokenizer.encode(&text, true)).await,
    }
}
