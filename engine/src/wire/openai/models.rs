//! `/v1/models`.

use serde::Serialize;

use crate::gateway::{ModelCard, ModelStatus};

/// Every model that can be served.
#[derive(Debug, Clone, Serialize)]
pub struct ModelList {
    object: &'static str,
    data: Vec<ModelEntry>,
}

/// One model: OpenAI's four fields, and what a client of ours wants to know. What only a loaded model tells is
/// left out of one that was never loaded.
#[derive(Debug, Clone, Serialize)]
pub struct ModelEntry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    state: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    aliases: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profiles: Vec<String>,
    #[serde(flatten)]
    loaded: Option<LoadedEntry>,
}

#[derive(Debug, Clone, Serialize)]
struct LoadedEntry {
    context_window: usize,
    vocab_size: usize,
    dtype: String,
    back_end: String,
    batchable: bool,
    /// Numbers of a text's vector, of a model that makes any.
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding_dimensions: Option<usize>,
}

impl ModelList {
    /// The list of these models.
    pub fn of(data: Vec<ModelEntry>) -> Self {
        Self { object: "list", data }
    }
}

impl ModelEntry {
    /// The entry of the model `status`, known since `created` (Unix seconds).
    pub fn new(status: &ModelStatus, created: u64) -> Self {
        Self {
            id: status.id.to_string(),
            object: "model",
            created,
            owned_by: "slipstream",
            state: status.state,
            aliases: status.aliases.clone(),
            profiles: status.profiles.clone(),
            loaded: status.card.as_deref().map(LoadedEntry::from),
        }
    }
}

impl From<&ModelCard> for LoadedEntry {
    fn from(card: &ModelCard) -> Self {
        Self {
            context_window: card.context_tokens,
            vocab_size: card.vocab_size,
            dtype: card.dtype.clone(),
            back_end: card.back_end.clone(),
            batchable: card.capabilities.serial_because.is_empty(),
            embedding_dimensions: card.text_vectors().ok().map(|vectors| vectors.dimensions),
        }
    }
}
