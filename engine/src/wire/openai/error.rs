//! The error object of every answer that is not a success.

use serde::Serialize;

use crate::error::{Code, Error};

/// `{"error": {...}}`.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorBody {
    /// The object itself.
    pub error: ErrorObject,
}

/// What went wrong, in OpenAI's four fields.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorObject {
    /// For people: what was attempted, with which value, and what to do.
    pub message: String,
    /// The family: who has to act.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The request field at fault.
    pub param: Option<String>,
    /// For programs.
    pub code: &'static str,
}

impl ErrorBody {
    /// An error that the engine has no [`Code`] for, such as an unknown route.
    pub fn new(kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { error: ErrorObject { message: message.into(), kind, param: None, code } }
    }
}

impl From<&Error> for ErrorBody {
    fn from(error: &Error) -> Self {
        let (kind, code) = (kind(error.code()), error.code().name());
        let param = error.param().map(str::to_owned);
        Self { error: ErrorObject { message: error.to_string(), kind, param, code } }
    }
}

/// OpenAI's `type` of an engine error.
fn kind(code: Code) -> &'static str {
    match code {
        Code::InvalidRequest
        | Code::Unsupported
        | Code::ContextLengthExceeded
        | Code::OverBudget
        | Code::InUse
        | Code::ModelNotFound => "invalid_request_error",
        Code::QueueFull => "rate_limit_error",
        Code::ModelUnavailable | Code::ShuttingDown | Code::EngineFailed => {
            "service_unavailable_error"
        }
        Code::HubDenied
        | Code::HubUnreachable
        | Code::DiskFull
        | Code::BadModel
        | Code::BadImport
        | Code::Io
        | Code::Internal => "server_error",
    }
}
