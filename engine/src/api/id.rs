//! Ids in paths.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::rejection::Rejection;
use crate::error::Error;

/// The id that a path ends in.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let unreadable = |_| Error::invalid("id", "the `id` in the path is not UTF-8");
        Ok(path.map(|Path(id)| Self(id)).map_err(unreadable)?)
    }
}
