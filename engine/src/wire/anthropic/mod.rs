//! Anthropic's messages and errors.

mod content;
mod error;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use error::{ErrorBody, ErrorKind};
pub use reply::{Message, MessageTeller, TokenCount};
pub use request::{MessagesRequest, count_tokens, messages, model};
