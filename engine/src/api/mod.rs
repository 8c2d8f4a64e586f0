//! HTTP: OpenAI's API, health and statistics over one [`Engine`].
//!
//! Handlers only translate: `wire` reads and shapes bodies, the gateway does the work. Every answer
//! that is not a success is OpenAI's error object, unknown routes included. A client that leaves
//! drops its handler or its body stream, and with it the generation: that is the whole of
//! cancellation here.

mod body;
mod guard;
mod openai;
mod priority;
mod rejection;
mod serve;
mod status;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::routing::{get, post};

use crate::config::ServeConfig;
use crate::error::Result;
use crate::gateway::Engine;

use self::guard::Guard;
use self::rejection::Rejection;

pub use serve::{bind, serve};

/// The routes, behind the guards.
///
/// # Errors
/// `InvalidRequest` for an allowed host or origin that can be none.
pub fn router(engine: Engine, config: &ServeConfig) -> Result<Router> {
    let guard = Guard::new(config)?;
    let cors = guard.cors();
    Ok(Router::new()
        .route("/v1/chat/completions", post(openai::chat_completions))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*id}", get(openai::model))
        .route("/health", get(status::health))
        .route("/stats", get(status::stats))
        .fallback(async || Rejection::NoRoute)
        .method_not_allowed_fallback(async || Rejection::MethodNotAllowed)
        .layer(DefaultBodyLimit::max(config.body_bytes_max))
        .layer(cors)
        .layer(middleware::from_fn_with_state(Arc::new(guard), guard::check))
        .with_state(engine))
}
