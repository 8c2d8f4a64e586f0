//! `/v1/models`.

use serde::Serialize;

use crate::gateway::ModelCard;

/// Every model that is served.
#[derive(Debug, Clone, Serialize)]
pub struct ModelList {
    object: &'static str,
    data: Vec<ModelEntry>,
}

/// One served model: OpenAI's four fields, and what a client of ours wants to know.
#[derive(Debug, Clone, Serialize)]
pub struct ModelEntry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
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
    /// The list of one model.
    pub fn of(entry: ModelEntry) -> Self {
        Self { object: "list", data: vec![entry] }
    }
}

impl ModelEntry {
    /// The entry of `card`, served since `created` (Unix seconds).
    pub fn new(card: &ModelCard, created: u64) -> Self {
        Self {
            id: card.id.clone(),
            object: "model",
            created,
            owned_by: "slipstream",
            context_window: card.context_tokens,
            vocab_size: card.vocab_size,
            dtype: card.dtype.clone(),
            back_end: card.back_end.clone(),
            batchable: card.capabilities.serial_because.is_empty(),
            embedding_dimensions: card.text_vectors().ok().map(|vectors| vectors.dimensions),
        }
    }
}
