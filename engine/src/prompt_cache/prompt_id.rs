//! How a kept prompt is called by those who list, pin and delete it.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};

const DIGITS: usize = 16;

/// Names a sequence of tokens: the same in every tier, and in every process that has the same tokenizer. It is a
/// hash (XXH3-64) of the tokens, each as four bytes, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PromptId(u64);

impl PromptId {
    /// The name of `tokens`.
    pub fn of(tokens: &[u32]) -> Self {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        Self(xxh3_64(&bytes))
    }
}

impl fmt::Display for PromptId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:0width$x}", self.0, width = DIGITS)
    }
}

impl FromStr for PromptId {
    type Err = Error;

    /// Reads what `Display` writes, and no other spelling.
    fn from_str(text: &str) -> Result<Self> {
        let id = u64::from_str_radix(text, 16).ok().map(Self).filter(|id| id.to_string() == text);
        id.ok_or_else(|| Error::invalid("id", format!("`{text}` is no id of a kept prompt")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_same_for_ever_and_is_read_as_it_is_written() {
        // What is on disk is listed under these names: they must not change.
        let ids = [&[][..], &[0], &[1, 2, 3], &[u32::MAX]].map(PromptId::of);
        let written = ids.map(|id| id.to_string());
        assert_eq!(written[0], "2d06800538d394c2");
        for (id, text) in ids.into_iter().zip(&written) {
            assert_eq!(text.parse(), Ok(id));
            assert_eq!(text.len(), DIGITS);
        }
        assert_eq!(PromptId(7).to_string(), "0000000000000007");
    }

    #[test]
    fn other_spellings_are_no_ids() {
        let odd = ["", "7", "+00000000000000f", "0000000000000007 ", "000000000000000G"];
        for text in odd.into_iter().chain(["000000000000000F", "00000000000000007"]) {
            assert!(text.parse::<PromptId>().is_err(), "{text}");
        }
    }
}
