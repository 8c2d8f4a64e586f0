//! The error object of every answer that is not a success, in Anthropic's shape.

use serde::Serialize;

use crate::error::{Code, Error};

/// `{"type": "error", "error": {...}}`.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorBody {
    #[serde(rename = "type")]
    kind: &'static str,
    error: ErrorObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct ErrorObject {
    #[serde(rename = "type")]
    kind: ErrorKind,
    message: String,
}

/// Anthropic's families of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request has to change.
    InvalidRequestError,
    /// A key is missing or unknown.
    AuthenticationError,
    /// This client may not.
    PermissionError,
    /// There is no such thing.
    NotFoundError,
    /// The body is too large.
    RequestTooLarge,
    /// Try again later.
    RateLimitError,
    /// Something broke here.
    ApiError,
    /// The server cannot serve for the moment.
    OverloadedError,
}

impl ErrorBody {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let error = ErrorObject { kind, message: message.into() };
        Self { kind: "error", error, request_id: None }
    }

    /// Names the request that failed.
    #[must_use]
    pub fn of_request(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }
}

impl From<&Error> for ErrorBody {
    fn from(error: &Error) -> Self {
        Self::new(ErrorKind::from(error.code()), words(error))
    }
}

/// Anthropic's errors have no `param`, so that the message alone names the field, as ours do; and its
/// clients shorten their history when they read that a prompt is too long, in these very words.
fn words(error: &Error) -> String {
    match error.code() {
        Code::ContextLengthExceeded => format!("prompt is too long: {error}"),
        _ => error.to_string(),
    }
}

impl From<Code> for ErrorKind {
    fn from(code: Code) -> Self {
        match code {
            Code::InvalidRequest
            | Code::Unsupported
            | Code::ContextLengthExceeded
            | Code::InUse
            | Code::OverBudget => Self::InvalidRequestError,
            Code::ModelNotFound => Self::NotFoundError,
            Code::QueueFull => Self::RateLimitError,
            Code::ModelUnavailable | Code::ShuttingDown | Code::EngineFailed => {
                Self::OverloadedError
            }
            Code::HubDenied
            | Code::HubUnreachable
            | Code::DiskFull
            | Code::BadModel
            | Code::BadImport
            | Code::Io
            | Code::Internal => Self::ApiError,
        }
    }
}
