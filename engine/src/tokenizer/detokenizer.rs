//! Ids to text, one id at a time.
//!
//! For byte pieces the state is the unfinished character (at most three bytes). For other decoders
//! it is a short window of ids: what the decoder makes of the window with the new ids, less what it
//! made of it before, is what they added. Either way a push costs the same however long the text is.

use std::sync::Arc;

use super::Tokenizer;
use super::pieces::Lead;
use crate::error::Result;

const REPLACEMENT: char = '\u{FFFD}';

/// A window that ends in a replacement character waits for at most this many ids.
const WINDOW_WAIT_IDS_MAX: usize = 8;

/// Turns one row's ids into text as they come.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// Special tokens that are text.
    shown: Arc<[u32]>,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Bytes { unfinished: Vec<u8>, lead: Option<Lead> },
    Window { ids: Vec<u32>, emitted: usize },
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Tokenizer, shown: Arc<[u32]>) -> Self {
        let state = match &tokenizer.0.pieces {
            Some(pieces) => State::Bytes { unfinished: Vec::new(), lead: pieces.lead },
            None => State::Window { ids: Vec::new(), emitted: 0 },
        };
        Self { tokenizer, shown, state }
    }

    /// Takes the next id and returns the whole characters that it completes, possibly none.
    ///
    /// # Errors
    /// `Internal` when the tokenizer's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let Some(token) = self.tokenizer.visible_token(id) else {
            return self.push_special(id);
        };
        match &mut self.state {
            State::Bytes { unfinished, lead } => {
                unfinished.extend(self.tokenizer.piece(id, token)?);
                Ok(without_lead(take_characters(unfinished), lead))
            }
            State::Window { ids, emitted } => push_window(&self.tokenizer, ids, emitted, id),
        }
    }

    /// A special token that shows ends the character before it.
    fn push_special(&mut self, id: u32) -> Result<String> {
        if !self.shown.contains(&id) {
            return Ok(String::new());
        }
        let Some(token) = self.tokenizer.special_token(id) else {
            return Ok(String::new());
        };
        let before = match &mut self.state {
            State::Bytes { unfinished, lead } => {
                let before = String::from_utf8_lossy(&std::mem::take(unfinished)).into_owned();
                return Ok(without_lead(before + &token, lead));
            }
            State::Window { ids, emitted } => {
                let before = added_text(&self.tokenizer, ids, *emitted)?;
                ids.clear();
                *emitted = 0;
                before
            }
        };
        Ok(before + &token)
    }

    /// Ends the text and returns what was held back: an unfinished character as U+FFFD. The
    /// detokenizer is then at the start of a new text.
    ///
    /// # Errors
    /// `Internal` when the tokenizer's decoder fails.
    pub fn finish(&mut self) -> Result<String> {
        let shown = Arc::clone(&self.shown);
        let ended = std::mem::replace(self, self.tokenizer.detokenizer_showing(shown));
        match ended.state {
            State::Bytes { unfinished, mut lead } => {
                let rest = String::from_utf8_lossy(&unfinished).into_owned();
                Ok(without_lead(rest, &mut lead))
            }
            State::Window { ids, emitted } => added_text(&ended.tokenizer, &ids, emitted),
        }
    }
}

/// Takes the decided characters off the front of `bytes`. What remains is the beginning of a
/// character; an ill-formed part becomes U+FFFD as soon as it is known to be one.
fn take_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(rest) => {
                text.push_str(rest);
                bytes.clear();
                return text;
            }
            Err(error) => error,
        };
        let valid = error.valid_up_to();
        text.push_str(&String::from_utf8_lossy(&bytes[..valid]));
        let Some(ill_formed) = error.error_len() else {
            bytes.drain(..valid);
            return text;
        };
        text.push(REPLACEMENT);
        bytes.drain(..valid + ill_formed);
    }
}

/// Drops what is left of the lead from the front of `text`; the first other character ends it.
fn without_lead(text: String, lead: &mut Option<Lead>) -> String {
    let Some(Lead { content, count_max }) = *lead else {
        return text;
    };
    let count = text.chars().take(count_max).take_while(|&next| next == content).count();
    let rest = &text[count * content.len_utf8()..];
    *lead = (rest.is_empty() && count < count_max)
        .then_some(Lead { content, count_max: count_max - count });
    rest.to_owned()
}

fn push_window(
    tokenizer: &Tokenizer,
    ids: &mut Vec<u32>,
    emitted: &mut usize,
    id: u32,
) -> Result<String> {
    ids.push(id);
    let added = added_text(tokenizer, ids, *emitted)?;
    let waiting = ids.len() - *emitted;
    let undecided = added.is_empty() || added.ends_with(REPLACEMENT);
    if undecided && waiting < WINDOW_WAIT_IDS_MAX {
        return Ok(String::new());
    }
    ids.drain(..*emitted);
    *emitted = ids.len();
    Ok(added)
}

/// What the ids after the first `emitted` add to the text of those.
fn added_text(tokenizer: &Tokenizer, ids: &[u32], emitted: usize) -> Result<String> {
    let before = tokenizer.decode_whole(&ids[..emitted])?;
    let mut after = tokenizer.decode_whole(ids)?;
    Ok(if after.starts_with(&before) { after.split_off(before.len()) } else { String::new() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn taken_characters_and_the_rest_equal_a_lossy_conversion_of_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..20),
        ) {
            let mut held = Vec::new();
            let mut text = String::new();
            for piece in &pieces {
                held.extend_from_slice(piece);
                text.push_str(&take_characters(&mut held));
                prop_assert!(held.len() < 4);
            }
            text.push_str(&String::from_utf8_lossy(&held));
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }
}
