//! JSON request bodies.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::Value;

use super::rejection::Rejection;
use crate::error::{Code, Error};

/// A whole body, parsed. The content type is not looked at: clients often forget it.
pub(super) struct JsonBody(pub(super) Value);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Rejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, Rejection> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let rejection = rejection.into_response();
            match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Rejection::BodyTooLarge,
                _ => invalid("failed to read the request body".to_owned()),
            }
        })?;
        parse(&bytes).map(Self)
    }
}

fn parse(bytes: &[u8]) -> Result<Value, Rejection> {
    if bytes.is_empty() {
        return Err(invalid("the request body is empty, and JSON is expected".to_owned()));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| invalid(format!("the request body is not valid JSON: {error}")))
}

fn invalid(message: String) -> Rejection {
    Rejection::Engine(Error::new(Code::InvalidRequest, message))
}
