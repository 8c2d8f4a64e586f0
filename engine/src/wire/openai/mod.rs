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
pub(super) use request::check_model;
pub use request::{ReplyKind, ReplyRequest, chat, completion};
pub(super) use sampling::sampling;
pub(super) use structure::schema;
