//! OpenAI's chat completions, completions, models and errors.

mod chunks;
mod error;
mod models;
mod reply;
mod request;

pub use chunks::Chunks;
pub use error::ErrorBody;
pub use models::{ModelEntry, ModelList};
pub use reply::{Body, ReplyHead};
pub use request::{ReplyKind, ReplyRequest, chat, completion};
pub(super) use request::{check_model, sampling};
