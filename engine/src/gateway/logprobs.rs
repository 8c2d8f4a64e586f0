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
    /// Whether it begins in visible text, or among it: not in reasoning, in a call or in markup.
    pub visible: bool,
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
        Ok(Self { token: token(id, known.chosen)?, top: top?, text_offset, visible: false })
    }
}

/// Notes which of `due`, told just before the visible `text`, are of that text. Where it goes on with visible
/// text all are; where it begins after something else, those that spell it are, and not the markup before.
pub(super) fn note_visible(due: &mut [LogprobEntry], text: &str, goes_on: bool) {
    let first = if goes_on { 0 } else { first_of(due, text) };
    due.iter_mut().skip(first).for_each(|entry| entry.visible = true);
}

/// The first of `due` from which on, or from within which on, they spell `text`; the last of them may go on
/// behind it. The very first where none is found, so that nothing is lost.
fn first_of(due: &[LogprobEntry], text: &str) -> usize {
    let bytes: Vec<u8> = due.iter().flat_map(|entry| entry.token.text.bytes.clone()).collect();
    let last_bytes = due.last().map_or(0, |entry| entry.token.text.bytes.len());
    let text = text.as_bytes();
    let spells = |rest: &[u8]| {
        let goes_on = rest.starts_with(text) && rest.len() < text.len() + last_bytes;
        goes_on || text.starts_with(rest)
    };
    let start = (0..bytes.len()).find(|start| spells(&bytes[*start..]));
    let mut end = 0;
    let holds = |entry: &LogprobEntry| {
        end += entry.token.text.bytes.len();
        start.is_some_and(|start| start < end)
    };
    due.iter().position(holds).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(tokens: &[&str], text: &str, goes_on: bool) -> Vec<bool> {
        let entry = |text: &&str| LogprobEntry {
            token: TokenLogprob {
                id: 0,
                text: TokenText { bytes: text.as_bytes().to_vec(), special: false },
                logprob: 0.0,
            },
            top: Vec::new(),
            text_offset: 0,
            visible: false,
        };
        let mut entries: Vec<_> = tokens.iter().map(entry).collect();
        note_visible(&mut entries, text, goes_on);
        entries.iter().map(|entry| entry.visible).collect()
    }

    #[test]
    fn markup_before_a_text_is_no_part_of_it() {
        let markup = ["</think>", "\n\n", "Hello"];
        assert_eq!(visible(&markup, "Hello", false), [false, false, true]);
        assert_eq!(visible(&["</think>", "\n\nHel"], "Hello", false), [false, true]);
        assert_eq!(visible(&["</t", "hink>", "t", "o"], "to", false), [false, false, true, true]);
        assert_eq!(visible(&[" Hello", " you"], "Hello you", false), [true, true]);
        assert_eq!(visible(&["Hello, wor"], "Hello", false), [true]);
        assert_eq!(visible(&["", "x"], "x", true), [true, true]);
        assert_eq!(visible(&["?", "!"], "Hello", false), [true, true]);
    }
}
