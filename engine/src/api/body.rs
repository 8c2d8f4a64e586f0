//! JSON request bodies.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::Value;

use super::Served;
use super::rejection::Rejection;
use crate::error::{Code, Error};
use crate::limits;

/// A whole body, parsed. The content type is not looked at: clients often forget it.
pub(super) struct JsonBody(pub(super) Value);

impl FromRequest<Served> for JsonBody {
    type Rejection = Rejection;

    async fn from_request(request: Request, served: &Served) -> Result<Self, Rejection> {
        let clock = served.models.clock();
        let patience = Duration::from_millis(limits::BODY_MS_MAX);
        let bytes = tokio::select! {
            biased;
            bytes = Bytes::from_request(request, served) => bytes,
            () = clock.sleep_until(clock.now() + patience) => return Err(Rejection::BodyTooSlow),
        };
        let bytes = bytes.map_err(|rejection| {
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
