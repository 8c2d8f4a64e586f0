//! Log-probabilities of an answer's tokens, in step with its text.
//!
//! Text may be held back (half a character, what may begin a stop string) or never be told (from a stop
//! string on). An *entry*, what is known of one token, waits with the token's text: it is told just before
//! the first piece of it is. A token without text of its own, such as the first half of a character, goes
//! with the text that comes next.

use std::collections::VecDeque;

use crate::error::Result;
use crate::sampling::TokenLogprobs;
use crate::tokenizer::{TokenText, Tokenizer};

/// What is known of one token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobEntry {
    /// The token that was generated.
    pub token: TokenLogprob,
    /// The most likely tokens in its place, as many as were asked for, the likeliest first.
    pub top: Vec<TokenLogprob>,
    /// Characters of the answer's text before it.
    pub text_offset: usize,
}

/// A token and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token's id.
    pub id: u32,
    /// What it is as text.
    pub text: TokenText,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

impl LogprobEntry {
    fn new(
        id: u32,
        known: TokenLogprobs,
        text_offset: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let token = |id, logprob| Ok(TokenLogprob { id, text: tokenizer.token_text(id)?, logprob });
        let top: Result<_> =
            known.top.into_iter().map(|(id, logprob)| token(id, logprob)).collect();
        Ok(Self { token: token(id, known.chosen)?, top: top?, text_offset })
    }
}

/// Entries on their way; see the module's words.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Each with the number of bytes of text that were made before its token.
    pending: VecDeque<(usize, LogprobEntry)>,
    made_bytes: usize,
    made_characters: usize,
}

impl Ledger {
    /// Notes that the token `id` was generated and made `text`, and what is known of it.
    pub(super) fn note(
        &mut self,
        id: u32,
        known: Option<TokenLogprobs>,
        text: &str,
        tokenizer: &Tokenizer,
    ) -> Result<()> {
        if let Some(known) = known {
            let entry = LogprobEntry::new(id, known, self.made_characters, tokenizer)?;
            self.pending.push_back((self.made_bytes, entry));
        }
        self.note_text(text);
        Ok(())
    }

    /// Notes text that no further token made.
    pub(super) fn note_text(&mut self, text: &str) {
        self.made_bytes += text.len();
        self.made_characters += text.chars().count();
    }

    /// The entries that are due when all of the text but its last `held_bytes` bytes is, or was, told.
    pub(super) fn due(&mut self, held_bytes: usize) -> Vec<LogprobEntry> {
        let told_bytes = self.made_bytes.saturating_sub(held_bytes);
        let due = self.pending.partition_point(|(made_bytes, _)| *made_bytes < told_bytes);
        self.pending.drain(..due).map(|(_, entry)| entry).collect()
    }

    /// The entries of tokens behind all of the text.
    pub(super) fn rest(&mut self) -> Vec<LogprobEntry> {
        self.pending.drain(..).map(|(_, entry)| entry).collect()
    }
}
