//! What the rest of the process knows about the loaded model.

use super::profile::RequestDefaults;
use super::vectors::TextVectors;
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
    /// Whether the line about accounting in Claude Code's system prompts reaches the model
    /// (`--keep-billing-line`).
    pub keeps_billing_line: bool,
    /// What requests mean that do not say, beyond that.
    pub request_defaults: RequestDefaults,
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
    /// Why it answers nothing; `None` when it answers.
    pub mute_because: Option<String>,
    /// Whether it writes whole blocks of tokens at once, not one token after the other.
    pub writes_blocks: bool,
}

/// Whether a model makes vectors of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Embeddings {
    /// It does.
    Vectors(TextVectors),
    /// It does not.
    None {
        /// Why not.
        reason: String,
    },
}

impl Default for Embeddings {
    fn default() -> Self {
        let reason = "it was made to answer, not to compare texts (the directory of an embedding model has \
                      a `modules.json`)";
        Self::None { reason: reason.to_owned() }
    }
}

impl ModelCard {
    /// Bytes that the caches of the smallest possible row take: one token of prompt, one of answer.
    pub fn smallest_row_bytes(&self) -> u64 {
        self.kv.row_bytes(2)
    }

    /// How the model makes vectors of texts.
    ///
    /// # Errors
    /// `Unsupported` when it makes none, with the reason.
    pub fn text_vectors(&self) -> Result<&TextVectors> {
        match &self.capabilities.embeddings {
            Embeddings::Vectors(vectors) => Ok(vectors),
            Embeddings::None { reason } => {
                let message = format!("the model `{}` makes no embeddings: {reason}", self.id);
                Err(Error::new(Code::Unsupported, message).with_param("model"))
            }
        }
    }

    /// # Errors
    /// `Unsupported` when the model answers nothing, with the reason.
    pub(super) fn check_answers(&self) -> Result<()> {
        match &self.capabilities.mute_because {
            None => Ok(()),
            Some(reason) => {
                let message = format!("the model `{}` does not answer: {reason}", self.id);
                let error = Error::new(Code::Unsupported, message).with_param("model");
                Err(error.with_hint("it serves `/v1/embeddings`"))
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
}
