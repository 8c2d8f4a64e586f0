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
        let (kind, code) = names(error.code());
        let param = error.param().map(str::to_owned);
        Self { error: ErrorObject { message: error.to_string(), kind, param, code } }
    }
}

/// OpenAI's `type` and our `code` of an engine error.
fn names(code: Code) -> (&'static str, &'static str) {
    match code {
        Code::InvalidRequest => ("invalid_request_error", "invalid_request"),
        Code::Unsupported => ("invalid_request_error", "unsupported"),
        Code::ContextLengthExceeded => ("invalid_request_error", "context_length_exceeded"),
        Code::OverBudget => ("invalid_request_error", "over_budget"),
        Code::ModelNotFound => ("invalid_request_error", "model_not_found"),
        Code::QueueFull => ("rate_limit_error", "queue_full"),
        Code::ShuttingDown => ("service_unavailable_error", "shutting_down"),
        Code::EngineFailed => ("service_unavailable_error", "engine_failed"),
        Code::BadModel => ("server_error", "bad_model"),
        Code::BadImport => ("server_error", "bad_import"),
        Code::Io => ("server_error", "io"),
        Code::Internal => ("server_error", "internal"),
    }
}
