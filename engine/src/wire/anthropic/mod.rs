//! Anthropic's messages.

mod error;

pub use error::{ErrorBody, ErrorKind};
