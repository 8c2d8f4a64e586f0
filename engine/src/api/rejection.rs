//! Every answer that is not a success: its status and its error object.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::{Code, Error};
use crate::wire::openai::ErrorBody;

/// Seconds after which a client may try again, when all it met was a busy or restarting server.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Why a request was not served.
#[derive(Debug)]
pub(super) enum Rejection {
    /// The engine or a reader of fields said no.
    Engine(Error),
    /// No such path.
    NoRoute,
    /// The path exists, for other methods.
    MethodNotAllowed,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// The `Host` header names none of our names: perhaps a rebound DNS name.
    ForeignHost(String),
    /// A web page of an origin that is not allowed sent this.
    ForeignOrigin(String),
}

impl Rejection {
    fn status(&self) -> StatusCode {
        match self {
            Self::Engine(error) => status_of(error.code()),
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ForeignHost(_) | Self::ForeignOrigin(_) => StatusCode::FORBIDDEN,
        }
    }

    fn body(&self) -> ErrorBody {
        const REQUEST: &str = "invalid_request_error";
        const PERMISSION: &str = "permission_error";
        match self {
            Self::Engine(error) => ErrorBody::from(error),
            Self::NoRoute => {
                ErrorBody::new(REQUEST, "not_found", "this server has nothing at that path")
            }
            Self::MethodNotAllowed => {
                ErrorBody::new(REQUEST, "method_not_allowed", "that path takes another method")
            }
            Self::BodyTooLarge => {
                ErrorBody::new(REQUEST, "body_too_large", "the request body is too large")
            }
            Self::ForeignHost(host) => {
                let hint = "`--allowed-host` adds a name";
                let message = format!("this server does not go by the name `{host}` ({hint})");
                ErrorBody::new(PERMISSION, "host_not_allowed", message)
            }
            Self::ForeignOrigin(origin) => {
                let hint = "`--allowed-origin` adds one";
                let message = format!("pages of `{origin}` may not use this server ({hint})");
                ErrorBody::new(PERMISSION, "origin_not_allowed", message)
            }
        }
    }
}

/// The one place where an engine error becomes a status.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidRequest
        | Code::Unsupported
        | Code::ContextLengthExceeded
        | Code::OverBudget => StatusCode::BAD_REQUEST,
        Code::ModelNotFound => StatusCode::NOT_FOUND,
        Code::QueueFull => StatusCode::TOO_MANY_REQUESTS,
        Code::ShuttingDown | Code::EngineFailed => StatusCode::SERVICE_UNAVAILABLE,
        Code::BadModel | Code::BadImport | Code::Io | Code::Internal => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = (status, Json(self.body())).into_response();
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
    }
}
