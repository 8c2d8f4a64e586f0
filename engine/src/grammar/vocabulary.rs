//! What the ids of a vocabulary spell, as a trie over bytes.
//!
//! Ids that spell nothing have no place in the trie, so no mask ever has them: holes, ids of the padding
//! between the tokenizer's vocabulary and the model's head, and tokens too long for the trie. Markers (special
//! tokens, and added ones in angle brackets) are no text: they are allowed where a grammar names them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use parking_lot::Mutex;
use toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};

use super::matcher::Mask;
use super::reasoning::Marker;
use crate::error::{Code, Error, Result};
use crate::tokenizer::{Spelling, Tokenizer};

/// The trie takes words of 1024 bytes; longer tokens are runs of spaces and the like.
const WORD_BYTES_MAX: usize = 1000;

/// The vocabulary of one model.
pub(super) struct Vocabulary {
    trie: TokEnv,
    factory: ParserFactory,
    stop_tokens: Vec<u32>,
    /// Markers of reasoning that were asked for: as many as the model has.
    markers: Mutex<HashMap<String, Arc<Marker>>>,
}

impl Vocabulary {
    /// The ids of `tokenizer` below `size`, the width of the model's head.
    ///
    /// # Errors
    /// `Unsupported` when the tokenizer's tokens are not bytes.
    pub(super) fn new(tokenizer: &Tokenizer, size: usize, lexer_states_max: usize) -> Result<Self> {
        let size = tokenizer.vocab_size().min(size);
        let words = (0..size).map(|id| word(tokenizer, id as u32)).collect::<Result<Vec<_>>>()?;
        let stop_tokens = tokenizer.stop_tokens();
        let spelled = |id: &&u32| words.get(**id as usize).is_some_and(|word| !word.is_empty());
        let stop_tokens: Vec<u32> = stop_tokens.iter().filter(spelled).copied().collect();
        let first_stop = stop_tokens.first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(size as u32, first_stop), &words);
        if !stop_tokens.is_empty() {
            trie = trie.with_eos_tokens(&stop_tokens);
        }
        // The model picks among all ways to cut the text; its own is among them.
        let trie: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let factory = factory(&trie, lexer_states_max)?;
        Ok(Self { trie, factory, stop_tokens, markers: Mutex::default() })
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// The most states of one row's lexer.
    pub(super) fn lexer_states_max(&self) -> usize {
        self.factory.limits().max_lexer_states
    }

    /// Ids are below this.
    pub(super) fn size(&self) -> usize {
        self.trie.tok_trie().vocab_size()
    }

    pub(super) fn is_stop_token(&self, id: u32) -> bool {
        self.stop_tokens.contains(&id)
    }

    /// The bytes of `id` as they stand in the text, markers spelled out.
    pub(super) fn spelling(&self, id: u32) -> &[u8] {
        if (id as usize) >= self.size() {
            return &[];
        }
        let word = self.trie.tok_trie().token(id);
        word.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(word)
    }

    /// The one token that spells `text`, markers first.
    pub(super) fn token_of(&self, text: &str) -> Option<u32> {
        let text_token = || self.trie.tok_trie().token_id_at_bytes(text.as_bytes());
        self.marker_token(text).or_else(text_token)
    }

    /// The marker of this name.
    pub(super) fn marker_token(&self, name: &str) -> Option<u32> {
        self.trie.tok_trie().get_special_token(name)
    }

    /// Everything that says something and does not end the answer.
    pub(super) fn anything(&self) -> Mask {
        let says = |id: &u32| !self.spelling(*id).is_empty() && !self.is_stop_token(*id);
        Mask::of(self.size(), (0..self.size() as u32).filter(says))
    }

    /// Whether the marker spelled `text` is prepared.
    pub(super) fn knows_marker(&self, text: &str) -> bool {
        self.markers.lock().contains_key(text)
    }

    /// The marker spelled `text`, prepared once.
    pub(super) fn marker(&self, text: &str) -> Arc<Marker> {
        let mut markers = self.markers.lock();
        let marker = || Arc::new(Marker::new(text.as_bytes(), self));
        Arc::clone(markers.entry(text.to_owned()).or_insert_with(marker))
    }
}

fn factory(trie: &TokEnv, lexer_states_max: usize) -> Result<ParserFactory> {
    let slices = SlicedBiasComputer::json_slices();
    let factory = ParserFactory::new(trie, InferenceCapabilities::default(), &slices);
    let mut factory = factory.map_err(|error| {
        Error::new(Code::Internal, format!("failed to prepare the vocabulary: {error}"))
    })?;
    factory.quiet();
    let limits = factory.limits_mut();
    limits.verbose_errors = false;
    limits.max_lexer_states = lexer_states_max;
    Ok(factory)
}

/// The trie's word for `id`; empty when it spells nothing.
fn word(tokenizer: &Tokenizer, id: u32) -> Result<Vec<u8>> {
    let word = match tokenizer.spelling(id)? {
        None => Vec::new(),
        // No text has this byte, and in the trie it says that a marker follows.
        Some(Spelling::Text(bytes)) if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
        Some(Spelling::Text(bytes)) => bytes,
        Some(Spelling::Marker(name)) => {
            let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            word.extend(name.into_bytes());
            word
        }
    };
    Ok(if word.len() <= WORD_BYTES_MAX { word } else { Vec::new() })
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Vocabulary").field("size", &self.size()).finish_non_exhaustive()
    }
}
