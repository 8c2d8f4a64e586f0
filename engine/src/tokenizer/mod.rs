//! Text to token ids and back, and chat templates.
//!
//! - A **tokenizer** is read from a model directory: `tokenizer.json` is required; the special
//!   tokens, the chat template and the stop tokens come from the files beside it that are there.
//! - A **piece** is what one token contributes to the text, as bytes: a character may span pieces.
//! - Special tokens are skipped when ids become text, but for those that a [`Detokenizer`] is told to
//!   show.
//! - A **control token** is one that texts must not make by spelling it: see [`ControlTokens`].
//!
//! Invariant: for any ids in any order, the texts that a [`Detokenizer`] emits concatenate to what
//! [`Tokenizer::decode`] makes of all of them, and no emitted text ends in half a character.

mod chat;
mod control;
mod detokenizer;
mod files;
mod pieces;
mod python;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Code, Error, Result};

pub use chat::{ChatOptions, ChatTemplate};
pub use control::ControlTokens;
pub use detokenizer::Detokenizer;
pub use files::ChatFiles;

use files::ModelFiles;
use pieces::Pieces;

/// What a single token is as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenText {
    /// Its piece; the spelling of a special token; nothing for an id outside the vocabulary.
    pub bytes: Vec<u8>,
    /// Whether it contributes to no text.
    pub special: bool,
}

/// A model's tokenizer; clones share one.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Loaded>);

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spelling {
    /// These bytes of text; a character may span tokens.
    Text(Vec<u8>),
    /// Something about the text, like where a turn ends: a special token, or an added one in angle
    /// brackets.
    Marker(String),
}

#[derive(Debug)]
struct Loaded {
    inner: tokenizers::Tokenizer,
    /// The id of the mark that breaks up spelt control tokens.
    mark: Option<u32>,
    /// How ids become text; `None` leaves it to the decoder named in `tokenizer.json`.
    pieces: Option<Pieces>,
    stop_tokens: Arc<[u32]>,
    chat_template: Option<ChatTemplate>,
    tool_parser: Option<String>,
}

impl Tokenizer {
    /// Reads the tokenizer of the model in `dir`.
    ///
    /// # Errors
    /// `BadModel`, naming the file, when `tokenizer.json` is missing or a file is corrupt.
    pub fn load(dir: &Path) -> Result<Self> {
        let files = ModelFiles::read(dir)?;
        let mut inner = files.tokenizer()?;
        let mark = control::add_mark(&mut inner);
        let loaded = Loaded {
            mark,
            pieces: Pieces::of(inner.get_decoder()),
            stop_tokens: stop_tokens(&files, &inner)?,
            chat_template: files.chat_template()?,
            tool_parser: files.tool_parser(),
            inner,
        };
        Ok(Self(Arc::new(loaded)))
    }

    /// The ids of `text`. Special tokens spelled out in the text become their ids;
    /// `add_special_tokens` adds those that the model wants around any text (its BOS, mostly).
    ///
    /// # Errors
    /// `Internal` when the tokenizer cannot encode the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        Ok(self.encode_with_marks(text, add_special_tokens, &[])?.0)
    }

    /// The same, and for each of the byte positions `marks` how many of the ids lie wholly before it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_marks(
        &self,
        text: &str,
        add_special_tokens: bool,
        marks: &[usize],
    ) -> Result<(Vec<u32>, Vec<usize>)> {
        let encoding = match marks {
            // Positions cost time.
            [] => self.0.inner.encode_fast(text, add_special_tokens),
            _ => self.0.inner.encode(text, add_special_tokens),
        };
        let failed = |error| Error::new(Code::Internal, format!("failed to tokenize: {error}"));
        let encoding = encoding.map_err(failed)?;
        let is_kept = |id: &u32| self.0.mark != Some(*id);
        let before = |mark: &usize| {
            let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
            let tokens = tokens.filter(|(id, _)| is_kept(id));
            tokens.take_while(|(_, (_, end))| end <= mark).count()
        };
        let ids = encoding.get_ids().iter().copied().filter(is_kept).collect();
        Ok((ids, marks.iter().map(before).collect()))
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD, one for each maximal ill-formed
    /// part; ids outside the vocabulary contribute nothing.
    ///
    /// # Errors
    /// `Internal` when the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let mut detokenizer = self.detokenizer();
        let mut text = String::new();
        for &id in ids {
            text.push_str(&detokenizer.push(id)?);
        }
        text.push_str(&detokenizer.finish()?);
        Ok(text)
    }

    /// What the token `id` is by itself. The pieces of byte-level and byte-fallback vocabularies make up
    /// any text; those of others are what the decoder makes of one id.
    ///
    /// # Errors
    /// `Internal` when the tokenizer's decoder fails.
    pub fn token_text(&self, id: u32) -> Result<TokenText> {
        let bytes = match (self.visible_token(id), &self.0.pieces) {
            (None, _) => {
                let spelling = self.0.inner.id_to_token(id).unwrap_or_default();
                return Ok(TokenText { bytes: spelling.into_bytes(), special: true });
            }
            (Some(token), Some(_)) => self.piece(id, token)?,
            (Some(_), None) => self.decode_whole(&[id])?.into_bytes(),
        };
        Ok(TokenText { bytes, special: false })
    }

    /// The text of `ids` with special tokens spelled out; ids outside the vocabulary contribute
    /// nothing.
    ///
    /// # Errors
    /// `Internal` when the tokenizer's decoder fails.
    pub fn decode_spelled(&self, ids: &[u32]) -> Result<String> {
        if ids.is_empty() {
            return Ok(String::new());
        }
        let failed = |error| Error::new(Code::Internal, format!("failed to detokenize: {error}"));
        self.0.inner.decode(ids, false).map_err(failed)
    }

    /// The vocabulary's own name of the token `id`.
    pub fn entry(&self, id: u32) -> Option<String> {
        self.0.inner.id_to_token(id)
    }

    /// A detokenizer at the start of a text.
    pub fn detokenizer(&self) -> Detokenizer {
        self.detokenizer_showing(Arc::default())
    }

    /// The same, for which the special tokens with the ids `shown` are text as they are spelt.
    pub fn detokenizer_showing(&self, shown: Arc<[u32]>) -> Detokenizer {
        Detokenizer::new(self.clone(), shown)
    }

    /// The id of the token that is spelt `token`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.inner.token_to_id(token).filter(|id| Some(*id) != self.0.mark)
    }

    /// The ids that end a generation, ascending: `eos_token_id` of `config.json` and
    /// `generation_config.json`, and the `eos_token` of `tokenizer_config.json`.
    pub fn stop_tokens(&self) -> Arc<[u32]> {
        Arc::clone(&self.0.stop_tokens)
    }

    /// How many ids the tokenizer knows, added tokens included. A model's head may be wider.
    pub fn vocab_size(&self) -> usize {
        self.0.inner.get_vocab_size(true) - usize::from(self.0.mark.is_some())
    }

    /// Checks that an embedding of `vocabulary` tokens knows every id that plain text becomes. Added
    /// tokens may lie beyond it, as that of Gemma 3's images does in the models that see none: prompts
    /// that name them are refused one by one.
    ///
    /// # Errors
    /// `BadModel` with both numbers.
    pub fn check_fits(&self, vocabulary: usize) -> Result<()> {
        let largest = self.0.inner.get_vocab(false).into_values().max().unwrap_or(0);
        if (largest as usize) < vocabulary {
            return Ok(());
        }
        let message = format!(
            "the tokenizer makes ids up to {largest}, but the model embeds only {vocabulary} tokens"
        );
        Err(Error::new(Code::BadModel, message)
            .with_hint("tokenizer.json belongs to another model: fetch the model again"))
    }

    /// The model's chat template, if it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.0.chat_template.as_ref()
    }

    /// What `id` spells by itself; `None` for ids without a token.
    ///
    /// # Errors
    /// `Unsupported` when the tokenizer's tokens are not bytes.
    pub fn spelling(&self, id: u32) -> Result<Option<Spelling>> {
        let inner = &self.0.inner;
        let Some(token) = inner.id_to_token(id).filter(|_| Some(id) != self.0.mark) else {
            return Ok(None);
        };
        let added = inner.get_added_vocabulary();
        let bracketed = token.starts_with('<') && token.ends_with('>');
        let is_added = || added.get_added_tokens_decoder().contains_key(&id);
        if added.is_special_token(&token) || bracketed && is_added() {
            return Ok(Some(Spelling::Marker(token)));
        }
        if self.0.pieces.is_none() {
            let message = "the tokens of this model's tokenizer are not bytes";
            return Err(Error::new(Code::Unsupported, message));
        }
        Ok(Some(Spelling::Text(self.piece(id, token)?)))
    }

    /// What `tokenizer_config.json` says of how the model writes tool calls: mlx-lm's name of a parser.
    pub fn tool_parser(&self) -> Option<&str> {
        self.0.tool_parser.as_deref()
    }

    /// The token of `id` as the vocabulary spells it; `None` for special and unknown ids.
    fn visible_token(&self, id: u32) -> Option<String> {
        let token = self.0.inner.id_to_token(id).filter(|_| Some(id) != self.0.mark)?;
        let special = self.0.inner.get_added_vocabulary().is_special_token(&token);
        (!special).then_some(token)
    }

    /// The spelling of the special token `id`.
    fn special_token(&self, id: u32) -> Option<String> {
        let token = self.0.inner.id_to_token(id)?;
        self.0.inner.get_added_vocabulary().is_special_token(&token).then_some(token)
    }

    /// The bytes that `token`, the spelling of `id`, contributes to the text.
    fn piece(&self, id: u32, token: String) -> Result<Vec<u8>> {
        let failed =
            |error| Error::new(Code::Internal, format!("failed to detokenize id {id}: {error}"));
        match &self.0.pieces {
            Some(pieces) => pieces.bytes(token).map_err(failed),
            None => Ok(token.into_bytes()),
        }
    }

    /// `ids` through the decoder that `tokenizer.json` names; some decoders take no empty list.
    fn decode_whole(&self, ids: &[u32]) -> Result<String> {
        if ids.is_empty() {
            return Ok(String::new());
        }
        let failed = |error| Error::new(Code::Internal, format!("failed to detokenize: {error}"));
        self.0.inner.decode(ids, true).map_err(failed)
    }
}

fn stop_tokens(files: &ModelFiles, inner: &tokenizers::Tokenizer) -> Result<Arc<[u32]>> {
    let mut ids: BTreeSet<u32> = files.eos_token_ids()?.into_iter().collect();
    ids.extend(files.special_token("eos_token").and_then(|token| inner.token_to_id(token)));
    Ok(ids.into_iter().collect())
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
