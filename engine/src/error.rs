//! The one public error of the engine and its codes.
//!
//! Modules keep small private error enums; what leaves the engine is an [`Error`]: a [`Code`] that
//! the API maps to a status in one `match`, a message that names what was attempted and with which
//! value, and optionally the request field at fault and a hint. Nobody matches on message text.

use std::fmt;

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it was. Clients and the HTTP layer decide by this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// A request field has a bad value.
    InvalidRequest,
    /// A field is known but this server does not support what it asks for.
    Unsupported,
    /// The prompt does not fit the model's context.
    ContextLengthExceeded,
    /// The row's KV bytes alone exceed the budget.
    OverBudget,
    /// No model of that name is served.
    ModelNotFound,
    /// The model is known and cannot be served now; try again later.
    ModelUnavailable,
    /// Somebody uses what was to be changed.
    InUse,
    /// A bounded queue is full; try again later.
    QueueFull,
    /// The server is shutting down.
    ShuttingDown,
    /// Model files are missing, truncated or of an unknown kind.
    BadModel,
    /// An imported file is truncated, foreign or hostile.
    BadImport,
    /// The hub keeps what was asked for from whoever asks without leave, or from this token.
    HubDenied,
    /// The hub cannot be reached, or does not answer as it should; or this process is told to stay offline.
    HubUnreachable,
    /// The disk has no room for it.
    DiskFull,
    /// Reading or writing a file or socket failed.
    Io,
    /// The engine thread failed while the request was live.
    EngineFailed,
    /// A bug of ours.
    Internal,
}

impl Code {
    /// The code's name, for programs and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::Unsupported => "unsupported",
            Self::ContextLengthExceeded => "context_length_exceeded",
            Self::OverBudget => "over_budget",
            Self::ModelNotFound => "model_not_found",
            Self::ModelUnavailable => "model_unavailable",
            Self::InUse => "in_use",
            Self::QueueFull => "queue_full",
            Self::ShuttingDown => "shutting_down",
            Self::EngineFailed => "engine_failed",
            Self::BadModel => "bad_model",
            Self::BadImport => "bad_import",
            Self::HubDenied => "hub_denied",
            Self::HubUnreachable => "hub_unreachable",
            Self::DiskFull => "disk_full",
            Self::Io => "io",
            Self::Internal => "internal",
        }
    }
}

/// The public error: see the module's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
    param: Option<String>,
    hint: Option<String>,
}

impl Error {
    /// An error of `code` saying `message` (what was attempted and the value; no final full stop).
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), param: None, hint: None }
    }

    /// A request field `param` has a bad value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message).with_param(param)
    }

    /// Names the request field at fault.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prefixes the message with what was being attempted: ``failed to load `x`: ...``.
    #[must_use]
    pub fn while_doing(mut self, attempt: impl fmt::Display) -> Self {
        self.message = format!("{attempt}: {}", self.message);
        self
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What was attempted and what came back.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request field at fault, if one is.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// What the reader can do, if we know.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(formatter, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::Io, error.to_string())
    }
}
