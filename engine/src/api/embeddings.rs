//! Texts to vectors.

use axum::Json;
use axum::extract::State;

use super::body::JsonBody;
use super::caller::Caller;
use super::rejection::Rejection;
use super::tokens::aside;
use crate::error::Result;
use crate::gateway::{EmbedRequest, Engine, Residency};
use crate::tokenizer::Tokenizer;
use crate::wire::embeddings::{self, EmbeddingsBody, EmbeddingsRequest, Input};
use crate::wire::openai;

pub(super) async fn create(
    State(models): State<Residency>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Result<Json<EmbeddingsBody>, Rejection> {
    let engine = models.lease(openai::model(&body)?).await?;
    let EmbeddingsRequest { id, inputs, encoding, dimensions } =
        embeddings::embeddings(&body, engine.card())?;
    let texts = tokens(&engine, inputs).await?;
    let tokens_total = texts.iter().map(Vec::len).sum();
    let Caller { client, priority, .. } = caller;
    let vectors = engine.embed(EmbedRequest { id, client, priority, texts, dimensions }).await?;
    Ok(Json(EmbeddingsBody::new(engine.card(), vectors, encoding, tokens_total)))
}

/// The tokens of each input.
async fn tokens(engine: &Engine, inputs: Vec<Input>) -> Result<Vec<Vec<u32>>> {
    let prefix = engine.card().text_vectors()?.prefix.clone();
    let tokens = move |tokenizer: &Tokenizer| {
        let each = |input| match input {
            Input::Tokens(tokens) => Ok(tokens),
            // With the tokens around it that the model was trained to find there.
            Input::Text(text) => tokenizer.encode(&format!("{prefix}{text}"), true),
        };
        inputs.into_iter().map(each).collect()
    };
    aside(engine, tokens).await
}
