//! From a validated request to a row and back: placement, submission, cancellation, the [`Engine`]
//! facade.
//!
//! A request becomes tokens, is held against the model ([`ModelCard`]) and is placed once
//! ([`Placement`]); then it is a row on the engine thread ([`Rows`]) and a [`Generation`] here.
//! The generation turns tokens into text and finds stop strings, off the engine thread. Dropping it
//! cancels the row.

mod card;
mod driver;
mod engine;
mod generation;
mod guidance;
mod live;
mod logprobs;
mod markup;
mod placement;
mod request;
mod rows;
#[cfg(test)]
pub(crate) mod script;
#[cfg(test)]
mod tests;

pub use card::{Embeddings, ModelCapabilities, ModelCard};
pub use driver::RowThread;
pub use engine::{Engine, PLACEMENT_LOG};
pub use generation::{AnswerEvent, FinishReason, Generation, Usage};
pub use guidance::Structure;
pub use logprobs::{LogprobEntry, TokenLogprob};
pub use placement::{Ground, Placement, RequestShape, SerialReason, place};
pub use request::{
    GenerateRequest, Prompt, Reasoning, ReasoningEffort, ToolChoice, ToolUse, UNNAMED_CLIENT,
};
pub use rows::{EmbedJob, Health, Rows};
