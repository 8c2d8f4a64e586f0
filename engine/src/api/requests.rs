//! Live requests, by their ids.

use axum::Json;
use axum::extract::State;

use super::id::Id;
use super::rejection::Rejection;
use crate::gateway::Residency;
use crate::wire::stats::CancelledBody;

/// Ends a live request where it is: its own client hears a proper end.
pub(super) async fn cancel(
    State(models): State<Residency>,
    Id(id): Id,
) -> Result<Json<CancelledBody>, Rejection> {
    if models.cancel(&id) {
        Ok(Json(CancelledBody::new(id)))
    } else {
        Err(Rejection::NoRequest(id))
    }
}
