//! OpenAI's chat completions, completions, models and errors.

mod chunks;
mod error;
mod logprobs;
mod messages;
mod models;
mod reply;
mod request;
mod sampling;
mod structure;

pub use chunks::Chunks;
pub use error::ErrorBody;
pub(super) use logprobs::ChatEntry;
pub use models::{ModelEntry, ModelList};
pub use reply::{Body, ReplyHead};
pub use request::{ReplyKind, ReplyRequest, chat, completion, model};
pub(super) use request::{check_hints, check_verbosity, metadata};
pub(super) use sampling::sampling;
pub(super) use structure::schema;
