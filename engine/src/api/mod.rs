//! HTTP: OpenAI's and Anthropic's APIs, health and statistics over the models of a [`Residency`], and the [`Hub`].
//!
//! Handlers only translate: `wire` reads and shapes bodies, the gateway does the work. Every answer
//! that is not a success is the error object of the path's dialect, unknown routes included. A client
//! that leaves drops its handler or its body stream, and with it the generation.
//!
//! A request passes, from the outside in: its dialect, which shapes errors; the guard of hosts and
//! origins; CORS; the keys; the bound of its body; its handler.

mod answer;
mod anthropic;
mod body;
mod cache;
mod caller;
mod connections;
mod dialect;
mod embeddings;
mod events;
mod guard;
mod hub;
mod id;
mod keys;
mod models;
mod offer;
mod openai;
mod openapi;
mod pulse;
mod query;
mod rejection;
mod requests;
mod responses;
mod serve;
mod status;
#[cfg(test)]
mod tests;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef};
use axum::handler::Handler;
use axum::middleware;
use axum::routing::{MethodRouter, delete, get, post, put};

use crate::config::{KeepAlive, ServeConfig};
use crate::error::Result;
use crate::gateway::Residency;
use crate::hub::Hub;

use self::answer::Manner;
use self::caller::Caller;
use self::guard::Guard;
use self::keys::Keys;
use self::rejection::Rejection;
use self::responses::ResponseStore;

pub use keys::check_exposure;
pub use offer::Offer;
pub use serve::{bind, serve};

/// The routes, behind the guards.
///
/// # Errors
/// `InvalidRequest` for an allowed host or origin that can be none.
pub fn router(offer: impl Into<Offer>, config: &ServeConfig) -> Result<Router> {
    let guard = Guard::new(config)?;
    let cors = guard.cors();
    let routes = routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler));
    Ok(routes
        .fallback(async || Rejection::NoRoute)
        .method_not_allowed_fallback(async || Rejection::MethodNotAllowed)
        .layer(DefaultBodyLimit::max(config.body_bytes_max))
        .layer(middleware::from_fn_with_state(Keys::new(config), keys::check))
        .layer(cors)
        .layer(middleware::from_fn_with_state(Arc::new(guard), guard::check))
        .layer(middleware::from_fn(dialect::speak))
        .with_state(Served::new(offer.into(), config.keep_alive)))
}

/// What the handlers share.
#[derive(Debug, Clone)]
struct Served {
    models: Residency,
    hub: Option<Hub>,
    responses: Arc<ResponseStore>,
    keep_alive: KeepAlive,
}

impl Served {
    fn new(Offer { models, hub }: Offer, keep_alive: KeepAlive) -> Self {
        let responses = Arc::new(ResponseStore::new(models.clock().clone()));
        Self { models, hub, responses, keep_alive }
    }

    /// How `caller` is answered.
    fn manner(&self, caller: &Caller, stream: bool) -> Manner {
        Manner { stream, keep_alive: caller.keep_alive.unwrap_or(self.keep_alive) }
    }
}

impl FromRef<Served> for Residency {
    fn from_ref(served: &Served) -> Self {
        served.models.clone()
    }
}

/// A path, a method, and who answers.
struct Route {
    path: &'static str,
    /// As HTTP writes it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests read it"))]
    method: &'static str,
    handler: MethodRouter<Served>,
}

impl Route {
    fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Served>) -> Self {
        Self { path, method: "GET", handler: get(handler) }
    }

    fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Served>) -> Self {
        Self { path, method: "POST", handler: post(handler) }
    }

    fn put<T: 'static>(path: &'static str, handler: impl Handler<T, Served>) -> Self {
        Self { path, method: "PUT", handler: put(handler) }
    }

    fn delete<T: 'static>(path: &'static str, handler: impl Handler<T, Served>) -> Self {
        Self { path, method: "DELETE", handler: delete(handler) }
    }
}

/// Everything that this server answers.
fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/chat/completions", openai::chat_completions),
        Route::post("/v1/completions", openai::completions),
        Route::post("/v1/responses", responses::create),
        Route::get("/v1/responses/{id}", responses::get),
        Route::delete("/v1/responses/{id}", responses::delete),
        Route::post("/v1/messages", anthropic::messages),
        Route::post("/v1/messages/count_tokens", anthropic::count_tokens),
        Route::post("/v1/embeddings", embeddings::create),
        Route::get("/v1/models", openai::models),
        Route::get("/v1/models/{*id}", openai::model),
        Route::post("/v1/tokenize", tokens::tokenize),
        Route::post("/v1/detokenize", tokens::detokenize),
        Route::delete("/v1/requests/{id}", requests::cancel),
        Route::get("/v1/cache", cache::list),
        Route::delete("/v1/cache", cache::clear),
        Route::post("/v1/cache/flush", cache::flush),
        Route::post("/v1/cache/{id}", cache::pin),
        Route::delete("/v1/cache/{id}", cache::delete),
        Route::get("/api/models", models::list),
        Route::get("/api/models/events", models::events),
        Route::post("/api/models/{id}/load", models::load),
        Route::post("/api/models/{id}/unload", models::unload),
        Route::post("/api/models/{id}/pin", models::pin),
        Route::get("/api/hub/library", hub::library),
        Route::post("/api/hub/library/rescan", hub::rescan),
        Route::delete("/api/hub/library/{id}", hub::remove),
        Route::get("/api/hub/search", hub::search),
        Route::get("/api/hub/repos/{id}", hub::repo),
        Route::get("/api/hub/downloads", hub::downloads),
        Route::post("/api/hub/downloads", hub::fetch),
        Route::post("/api/hub/downloads/{id}/pause", hub::pause),
        Route::post("/api/hub/downloads/{id}/resume", hub::resume),
        Route::delete("/api/hub/downloads/{id}", hub::cancel),
        Route::get("/api/hub/events", hub::events),
        Route::get("/api/hub/token", hub::token),
        Route::put("/api/hub/token", hub::keep_token),
        Route::delete("/api/hub/token", hub::forget_token),
        Route::post("/api/hub/import", hub::import),
        Route::post("/api/hub/convert", hub::convert),
        Route::get("/api/hub/jobs", hub::jobs),
        Route::delete("/api/hub/jobs/{id}", hub::end_job),
        Route::get("/health", status::health),
        Route::get("/metrics", status::metrics),
        Route::get("/stats", status::stats),
        Route::get("/stats/stream", status::stats_stream),
        Route::get("/openapi.json", openapi::document),
    ]
}
