//! What the server says of itself.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::gateway::{Engine, Health};
use crate::wire::stats::{HealthBody, StatsBody};

pub(super) async fn health(State(engine): State<Engine>) -> (StatusCode, Json<HealthBody>) {
    let health = engine.health();
    let status = match health {
        Health::Serving => StatusCode::OK,
        Health::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(HealthBody::from(health)))
}

pub(super) async fn stats(State(engine): State<Engine>) -> Json<StatsBody> {
    Json(StatsBody::new(engine.card(), engine.uptime(), &engine.snapshot()))
}
