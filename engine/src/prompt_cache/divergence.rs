//! Why a look-up was not served more.

use std::ops::Range;

use crate::limits::DIVERGENCE_TOKENS;

/// Where the nearest entry parts from a prompt.
///
/// The nearest is the one with the most tokens in common that goes on behind them; among several the most
/// recently used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// How many first tokens they have in common: the index of the first that differs, or the length of the
    /// prompt if the entry has all of it.
    pub index: usize,
    /// The last tokens that they have in common, a few.
    pub before: Vec<u32>,
    /// The prompt's tokens from `index` on, a few; none where the prompt ends.
    pub prompt: Vec<u32>,
    /// The entry's tokens from there on.
    pub kept: Vec<u32>,
    /// What kept the entry from serving more.
    pub reason: Reason,
}

/// What keeps an entry from serving more tokens than were served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its tokens differ from the prompt's; all that they have in common was served.
    Differs,
    /// It has tokens that the prompt does not have at that place, and its snapshot cannot be trimmed.
    CannotTrim,
}

/// The indices of a few tokens before `index`.
pub(super) fn before(index: usize) -> Range<usize> {
    index.saturating_sub(DIVERGENCE_TOKENS)..index
}

/// The indices of a few tokens from `index` on, which is not beyond a text of `length` tokens.
pub(super) fn after(index: usize, length: usize) -> Range<usize> {
    index..(index + DIVERGENCE_TOKENS).min(length)
}
