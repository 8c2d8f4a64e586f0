//! Reasoning before an answer, and the marker that ends it.
//!
//! The marker is looked for in the bytes of the tokens, so it is found whether it is one token, as in most
//! models that think, or cut into several. A token that says the end of the marker and more is masked while
//! it would: the answer starts at a token, where its grammar does.

use super::matcher::Mask;
use super::vocabulary::Vocabulary;

/// How the model's reasoning is marked, when an answer may come after some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    /// How it begins.
    pub start: ReasoningStart,
    /// The text that ends it, such as `</think>`.
    pub end: String,
}

/// How reasoning begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The prompt did: the model is in the middle of it.
    Opened,
    /// The model may say this first, if its vocabulary has it as one token.
    MayOpen(String),
}

/// The marker that ends reasoning: an automaton over bytes (Knuth, Morris and Pratt 1977) whose states are
/// how many bytes of it were said last.
#[derive(Debug)]
pub(super) struct Marker {
    bytes: Vec<u8>,
    /// For each state but the last, the state that remains when the next byte is another one.
    falls_to: Vec<usize>,
    /// For each state but the last, what may be said.
    masks: Vec<Mask>,
}

/// Where the bytes of a token lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// The reasoning goes on.
    Inside { matched: usize },
    /// It ended, and so many bytes of the token are left.
    Ended { left_bytes: usize },
}

impl Marker {
    /// The marker spelled `bytes`, not empty, in the tokens of `vocabulary`.
    pub(super) fn new(bytes: &[u8], vocabulary: &Vocabulary) -> Self {
        let falls_to = fallbacks(bytes);
        let mut marker = Self { bytes: bytes.to_vec(), falls_to, masks: Vec::new() };
        let anything = vocabulary.anything();
        let ids = 0..vocabulary.size() as u32;
        for matched in 0..bytes.len() {
            let runs_over = |id: &u32| {
                let run = marker.run(matched, vocabulary.spelling(*id));
                matches!(run, Run::Ended { left_bytes: 1.. })
            };
            let over = Mask::of(vocabulary.size(), ids.clone().filter(runs_over));
            marker.masks.push(anything.without(&over));
        }
        marker
    }

    /// Runs the bytes `said` after `matched` bytes of the marker.
    pub(super) fn run(&self, mut matched: usize, said: &[u8]) -> Run {
        for (index, byte) in said.iter().enumerate() {
            matched = self.next(matched, *byte);
            if matched == self.bytes.len() {
                return Run::Ended { left_bytes: said.len() - index - 1 };
            }
        }
        Run::Inside { matched }
    }

    /// What may be said after `matched` bytes of the marker.
    pub(super) fn mask(&self, matched: usize) -> Mask {
        self.masks[matched].clone()
    }

    fn next(&self, mut matched: usize, byte: u8) -> usize {
        loop {
            if self.bytes[matched] == byte {
                return matched + 1;
            }
            if matched == 0 {
                return 0;
            }
            matched = self.falls_to[matched];
        }
    }
}

/// For each number of matched bytes, the longest shorter match that ends in the same bytes.
fn fallbacks(bytes: &[u8]) -> Vec<usize> {
    let mut falls_to = vec![0; bytes.len()];
    let mut matched = 0;
    for index in 1..bytes.len() {
        falls_to[index] = matched;
        while matched > 0 && bytes[index] != bytes[matched] {
            matched = falls_to[matched];
        }
        matched += usize::from(bytes[index] == bytes[matched]);
    }
    falls_to
}
