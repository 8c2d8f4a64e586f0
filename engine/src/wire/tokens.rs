//! `/v1/tokenize` and `/v1/detokenize`, with the field names of vLLM's.

use serde::Serialize;
use serde_json::Value;

use super::openai;
use crate::error::{Code, Error, Result};
use crate::gateway::{GenerateRequest, ModelCard};
use crate::wire::Fields;
use crate::wire::fields::mismatch;

/// What to tokenize.
#[derive(Debug, Clone)]
pub enum TokenizePrompt {
    /// A text as it stands.
    Text {
        /// The text.
        text: String,
        /// Whether the tokens that the model wants around any text are added.
        add_special_tokens: bool,
    },
    /// A conversation, as a chat of the same body would render it.
    Chat(Box<GenerateRequest>),
}

/// The body of `/v1/tokenize`.
#[derive(Debug, Clone)]
pub struct TokenizeRequest {
    /// What to tokenize.
    pub prompt: TokenizePrompt,
    /// Whether the answer spells each token.
    pub spelled: bool,
}

/// Reads the body of `/v1/tokenize`: `prompt`, a text, or `messages` with all that a chat may have.
///
/// # Errors
/// `InvalidRequest`, `Unsupported` or `ModelNotFound`, naming the field.
pub fn tokenize(body: &Value, card: &ModelCard) -> Result<TokenizeRequest> {
    let fields = Fields::of_body(body)?;
    let spelled = fields.boolean("return_token_strs")?.unwrap_or(false);
    let special = fields.boolean("add_special_tokens")?;
    if fields.boolean("add_generation_prompt")? == Some(false) {
        let message =
            "`add_generation_prompt` is always true here: chats end where an answer begins";
        let error = Error::new(Code::Unsupported, message);
        return Err(error.with_param("add_generation_prompt"));
    }
    let prompt = match (fields.text("prompt")?, fields.get("messages")) {
        (Some(_), Some(_)) => {
            let message = "`prompt` and `messages` exclude each other";
            return Err(Error::invalid("messages", message));
        }
        (Some(text), None) => TokenizePrompt::Text {
            text: text.to_owned(),
            add_special_tokens: special.unwrap_or(true),
        },
        (None, Some(_)) if special == Some(true) => {
            let message =
                "`add_special_tokens` goes with `prompt`: a chat's template writes its own";
            return Err(Error::invalid("add_special_tokens", message));
        }
        (None, Some(_)) => TokenizePrompt::Chat(Box::new(openai::chat(body, card)?.generate)),
        (None, None) => return Err(Error::invalid("prompt", "`prompt` or `messages` is required")),
    };
    Ok(TokenizeRequest { prompt, spelled })
}

/// Reads the body of `/v1/detokenize`: `tokens`, ids of the model's vocabulary.
///
/// # Errors
/// `InvalidRequest` or `ModelNotFound`, naming the field and the place in it.
pub fn detokenize(body: &Value, card: &ModelCard) -> Result<Vec<u32>> {
    let fields = Fields::of_body(body)?;
    fields.required("tokens")?;
    let tokens = fields.array("tokens")?.unwrap_or_default();
    let vocabulary = format!("a token id below {}", card.vocab_size);
    let id = |(index, token): (usize, &Value)| {
        let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
        id.filter(|id| (*id as usize) < card.vocab_size)
            .ok_or_else(|| mismatch(&format!("tokens[{index}]"), &vocabulary, token))
    };
    tokens.iter().enumerate().map(id).collect()
}

/// The answer of `/v1/tokenize`.
#[derive(Debug, Clone, Serialize)]
pub struct TokenizeBody {
    model: String,
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

impl TokenizeBody {
    /// `tokens` of the model `card`, with their spellings if those were asked for.
    pub fn new(card: &ModelCard, tokens: Vec<u32>, token_strs: Option<Vec<String>>) -> Self {
        let (model, max_model_len) = (card.id.clone(), card.context_tokens);
        Self { model, count: tokens.len(), max_model_len, tokens, token_strs }
    }
}

/// The answer of `/v1/detokenize`.
#[derive(Debug, Clone, Serialize)]
pub struct DetokenizeBody {
    model: String,
    prompt: String,
}

impl DetokenizeBody {
    /// `text` of the model `card`.
    pub fn new(card: &ModelCard, text: String) -> Self {
        Self { model: card.id.clone(), prompt: text }
    }
}
