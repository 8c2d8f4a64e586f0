//! OpenAI's chat completions, completions, models and errors.

mod error;
mod models;
mod reply;
mod request;
mod structure;

pub use error::ErrorBody;
pub use models::{ModelEntry, ModelList};
pub use reply::{Body, ReplyHead};
pub use request::{ReplyKind, ReplyRequest, chat, completion};
