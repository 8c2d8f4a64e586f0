//! OpenAI's chat completions, completions, models and errors.

mod error;
mod messages;
mod models;
mod reply;
mod request;
mod tools;

pub use error::ErrorBody;
pub use models::{ModelEntry, ModelList};
pub use reply::{Body, ReplyHead};
pub use request::{ReplyKind, ReplyRequest, chat, completion};
