//! Live requests, by their ids.

use axum::Json;
use axum::extract::State;

use super::id::Id;
use super::rejection::Rejection;
use crate::gateway::Engine;
use crate::wire::stats::CancelledBody;

/// Ends a live request where it is: its own client hears a proper end.
pub(super) async fn cancel(
    State(engine): State<Engine>,
    Id(id): Id,
) -> Result<Json<CancelledBody>, Rejection> {
    if engine.cancel(&id) {
        Ok(Json(CancelledBody::new(id)))
    } else {
        Err(Rejection::NoRequest(id))
    }
}
