//! What the rest of the process knows about the loaded model.

use crate::cache::KvProfile;
use crate::error::{Code, Error, Result};
use crate::sampling::SamplingParams;

/// The loaded model: plain data.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    /// The name clients call it by.
    pub id: String,
    /// Tokens of prompt and answer together.
    pub context_tokens: usize,
    /// Rows of its embedding: every token id is below.
    pub vocab_size: usize,
    /// What its weights compute in, for people.
    pub dtype: String,
    /// The device it runs on, for people.
    pub back_end: String,
    /// How its KV caches are stored: the scheme's name.
    pub kv_scheme: String,
    /// What it can do.
    pub capabilities: ModelCapabilities,
    /// How tokens are picked when a request does not say.
    pub sampling_defaults: SamplingParams,
    /// Tokens of an answer at most when a request does not say (`--max-tokens`).
    pub max_tokens_default: usize,
    /// What a row's caches cost.
    pub kv: KvProfile,
}

/// What a model can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelCapabilities {
    /// Every reason why its rows, as they are served, cannot share a batch; none when they can.
    pub serial_because: Vec<String>,
    /// Whether it makes vectors of texts.
    pub embeddings: Embeddings,
    /// Whether it writes whole blocks of tokens at once, not one token after the other.
    pub writes_blocks: bool,
}

/// Whether a model makes vectors of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Embeddings {
    /// It does, of so many numbers.
    Dimensions(usize),
    /// It does not.
    None {
        /// Why not.
        reason: String,
    },
}

impl Default for Embeddings {
    fn default() -> Self {
        Self::None { reason: "it was made to answer, not to compare texts".to_owned() }
    }
}

impl ModelCard {
    /// Bytes that the caches of the smallest possible row take: one token of prompt, one of answer.
    pub fn smallest_row_bytes(&self) -> u64 {
        self.kv.row_bytes(2)
    }

    /// The numbers of a vector that the model makes of a text.
    ///
    /// # Errors
    /// `Unsupported` when it makes none, with the reason.
    pub fn embedding_dimensions(&self) -> Result<usize> {
        match &self.capabilities.embeddings {
            Embeddings::Dimensions(dimensions) => Ok(*dimensions),
            Embeddings::None { reason } => {
                let message = format!("the model `{}` makes no embeddings: {reason}", self.id);
                Err(Error::new(Code::Unsupported, message).with_param("model"))
            }
        }
    }

    /// The error for a request whose field `param` is about single tokens, of a model that writes blocks of
    /// them.
    pub(super) fn writes_blocks(&self, param: &str) -> Error {
        let message =
            format!("`{param}` is not supported: `{}` writes blocks of tokens at once", self.id);
        Error::new(Code::Unsupported, message).with_param(param)
    }

    /// The error for a request that names another model.
    pub fn not_found(&self, name: &str) -> Error {
        let message = format!("no model `{name}` is served; this server serves `{}`", self.id);
        Error::new(Code::ModelNotFound, message).with_param("model")
    }
}
