//! From a validated request to a row and back: placement, submission, cancellation, the [`Engine`]
//! facade.
//!
//! A request becomes tokens, is held against the model ([`ModelCard`]) and is placed once
//! ([`Placement`]); then it is a row on the engine thread ([`Rows`]) and a [`Generation`] here.
//! Histories are said as the model's template takes them, and control tokens that texts spell are plain
//! text. The generation turns tokens into text, splits it into reasoning, visible text and tool calls,
//! and finds stop strings in the visible text, off the engine thread. Dropping it
//! cancels the row. A request for vectors ([`EmbedRequest`]) is rows too, which end with their prompts.

mod billing;
mod card;
mod catalogue;
mod dialogue;
mod driver;
mod embedding;
mod engine;
mod fleet;
mod generation;
mod guidance;
mod history;
mod kept;
mod live;
mod logprobs;
mod markup;
mod offered;
mod placement;
mod profile;
mod request;
mod residency;
mod rows;
#[cfg(test)]
pub(crate) mod script;
mod settings;
#[cfg(test)]
mod tests;
mod vectors;

pub use crate::scheduler::{Cleared, Flushed};
pub use card::{Embeddings, ModelCapabilities, ModelCard};
pub use catalogue::{Catalogue, Directories, Download, Source, directory_id};
pub use driver::{Resources, RowThread};
pub use embedding::EmbedRequest;
pub use engine::{Engine, PLACEMENT_LOG};
pub use fleet::{
    Docked, Fleet, FleetThread, Landed, LoadMeter, LoadOrder, LoadStep, Loading, ModelLoader,
    ModelNumber, ModelRows, Roster,
};
pub use generation::{AnswerEvent, CacheMiss, FinishReason, Generation, Usage};
pub use guidance::Structure;
pub use kept::{CacheListing, ListedPrompt};
pub use logprobs::{LogprobEntry, TokenLogprob};
pub use offered::Offered;
pub use placement::{Ground, Placement, RequestShape, SerialReason, place};
pub use profile::{Profile, RequestDefaults};
pub use request::{
    GenerateRequest, Prompt, Reasoning, ReasoningEffort, ToolChoice, ToolUse, UNNAMED_CLIENT,
};
pub use residency::{Asked, ModelStatus, Overview, Residency, ResidencyConfig};
pub use rows::{Health, Rows};
pub use settings::{ModelSettings, OneModel};
pub use vectors::{Cuts, TextVectors};
