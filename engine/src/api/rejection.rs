//! Every answer that is not a success: its status and its error object.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::{Code, Error};
use crate::limits::CLIENT_NAME_CHARS_MAX;
use crate::wire::{anthropic, openai};

/// Seconds after which a client may try again, when all it met was a busy or restarting server.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");
/// How to show a key.
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// Why a request was not served. As a response it has a status and no body yet: it travels in the
/// extensions, for [`dialect`](super::dialect) to tell it as the request's API tells errors.
#[derive(Debug, Clone)]
pub(super) enum Rejection {
    /// The engine or a reader of fields said no.
    Engine(Error),
    /// No such path.
    NoRoute,
    /// The path exists, for other methods.
    MethodNotAllowed,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// The body took too long to come.
    BodyTooSlow,
    /// The `Host` header names none of our names: perhaps a rebound DNS name.
    ForeignHost(String),
    /// A web page of an origin that is not allowed sent this.
    ForeignOrigin(String),
    /// It came without a key.
    NoKey,
    /// It came with a key that opens nothing.
    UnknownKey,
    /// No live request has this id.
    NoRequest(String),
    /// No stored response has this id.
    NoResponse(String),
    /// No kept prompt has this id.
    NoPrompt {
        /// The id.
        id: String,
        /// Whether any are kept here.
        kept: bool,
    },
}

impl Rejection {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Engine(error) => status_of(error.code()),
            Self::NoRoute | Self::NoRequest(_) | Self::NoResponse(_) | Self::NoPrompt { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::ForeignHost(_) | Self::ForeignOrigin(_) => StatusCode::FORBIDDEN,
            Self::NoKey | Self::UnknownKey => StatusCode::UNAUTHORIZED,
        }
    }

    /// The error object in OpenAI's shape.
    pub(super) fn openai(&self) -> openai::ErrorBody {
        match self {
            Self::Engine(error) => openai::ErrorBody::from(error),
            _ => {
                let (code, message) = self.words();
                openai::ErrorBody::new(self.openai_kind(), code, message)
            }
        }
    }

    /// The error object in Anthropic's shape.
    pub(super) fn anthropic(&self) -> anthropic::ErrorBody {
        match self {
            Self::Engine(error) => anthropic::ErrorBody::from(error),
            _ => anthropic::ErrorBody::new(self.anthropic_kind(), self.words().1),
        }
    }

    fn openai_kind(&self) -> &'static str {
        match self {
            Self::ForeignHost(_) | Self::ForeignOrigin(_) => "permission_error",
            Self::NoKey | Self::UnknownKey => "authentication_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_kind(&self) -> anthropic::ErrorKind {
        use anthropic::ErrorKind;
        match self {
            Self::Engine(error) => ErrorKind::from(error.code()),
            Self::NoRoute | Self::NoRequest(_) | Self::NoResponse(_) | Self::NoPrompt { .. } => {
                ErrorKind::NotFoundError
            }
            Self::MethodNotAllowed | Self::BodyTooSlow => ErrorKind::InvalidRequestError,
            Self::BodyTooLarge => ErrorKind::RequestTooLarge,
            Self::ForeignHost(_) | Self::ForeignOrigin(_) => ErrorKind::PermissionError,
            Self::NoKey | Self::UnknownKey => ErrorKind::AuthenticationError,
        }
    }

    /// The code for programs, and the message for people.
    fn words(&self) -> (&'static str, String) {
        match self {
            Self::Engine(error) => (error.code().name(), error.to_string()),
            Self::NoRoute => ("not_found", "this server has nothing at that path".to_owned()),
            Self::MethodNotAllowed => {
                ("method_not_allowed", "that path takes another method".to_owned())
            }
            Self::BodyTooSlow => {
                ("body_too_slow", "the request body did not come in time".to_owned())
            }
            Self::BodyTooLarge => ("body_too_large", "the request body is too large".to_owned()),
            Self::ForeignHost(host) => {
                let hint = "`--allowed-host` adds a name";
                let message = format!("this server does not go by the name `{host}` ({hint})");
                ("host_not_allowed", message)
            }
            Self::ForeignOrigin(origin) => {
                let hint = "`--allowed-origin` adds one";
                let message = format!("pages of `{origin}` may not use this server ({hint})");
                ("origin_not_allowed", message)
            }
            Self::NoKey => {
                let ways = "`Authorization: Bearer KEY` or `x-api-key: KEY`";
                ("missing_api_key", format!("this server needs an API key: {ways}"))
            }
            Self::UnknownKey => {
                ("invalid_api_key", "the API key is not one of this server's".to_owned())
            }
            Self::NoRequest(id) => {
                ("request_not_found", format!("no live request is called `{id}`"))
            }
            Self::NoResponse(id) => {
                ("response_not_found", format!("no stored response is called `{id}`"))
            }
            Self::NoPrompt { id, kept } => {
                let shown: String = id.chars().take(CLIENT_NAME_CHARS_MAX).collect();
                let why = if *kept { "" } else { ": this server keeps none" };
                ("prompt_not_found", format!("no kept prompt is called `{shown}`{why}"))
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
        Code::InUse => StatusCode::CONFLICT,
        Code::QueueFull => StatusCode::TOO_MANY_REQUESTS,
        Code::ModelUnavailable | Code::ShuttingDown | Code::EngineFailed => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Code::HubDenied => StatusCode::FORBIDDEN,
        Code::HubUnreachable => StatusCode::BAD_GATEWAY,
        Code::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
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
        let mut response = self.status().into_response();
        let headers = response.headers_mut();
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, BEARER);
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}
