//! Text to token ids and back.

use axum::Json;
use axum::extract::State;
use tokio::task::spawn_blocking;

use super::body::JsonBody;
use super::rejection::Rejection;
use crate::error::{Code, Error, Result};
use crate::gateway::{Engine, Residency};
use crate::tokenizer::Tokenizer;
use crate::wire::openai;
use crate::wire::tokens::{self, DetokenizeBody, TokenizeBody, TokenizePrompt};

pub(super) async fn tokenize(
    State(models): State<Residency>,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenizeBody>, Rejection> {
    let engine = models.lease(openai::model(&body)?).await?;
    let request = tokens::tokenize(&body, engine.card())?;
    let tokens = match request.prompt {
        TokenizePrompt::Text { text, add_special_tokens } => {
            aside(&engine, move |tokenizer| tokenizer.encode(&text, add_special_tokens)).await?
        }
        TokenizePrompt::Chat(request) => engine.prompt_tokens(&request).await?,
    };
    let spelling = |token: &u32| engine.tokenizer().entry(*token).unwrap_or_default();
    let spellings = request.spelled.then(|| tokens.iter().map(spelling).collect());
    Ok(Json(TokenizeBody::new(engine.card(), tokens, spellings)))
}

pub(super) async fn detokenize(
    State(models): State<Residency>,
    JsonBody(body): JsonBody,
) -> Result<Json<DetokenizeBody>, Rejection> {
    let engine = models.lease(openai::model(&body)?).await?;
    let tokens = tokens::detokenize(&body, engine.card())?;
    let text = aside(&engine, move |tokenizer| tokenizer.decode_spelled(&tokens)).await?;
    Ok(Json(DetokenizeBody::new(engine.card(), text)))
}

/// Runs `work`, which may be long, on a thread that answers nobody meanwhile.
pub(super) async fn aside<T: Send + 'static>(
    engine: &Engine,
    work: impl FnOnce(&Tokenizer) -> Result<T> + Send + 'static,
) -> Result<T> {
    let tokenizer = engine.tokenizer().clone();
    spawn_blocking(move || work(&tokenizer)).await.unwrap_or_else(|panic| {
        Err(Error::new(Code::Internal, format!("the tokenizer failed: {panic}")))
    })
}
