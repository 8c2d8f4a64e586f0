//! One row's place in its grammar.

use std::sync::Arc;

use toktrie::SimpleVob;

use super::reasoning::{Marker, Run};
use super::vocabulary::Vocabulary;
use crate::error::{Code, Error, Result};

const WORD_BITS: usize = u32::BITS as usize;

/// Which ids may come next: bit `i % 32` of word `i / 32` is that of id `i`. Ids beyond the words are
/// masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask(Arc<[u32]>);

impl Mask {
    /// The mask over `size` ids that allows `ids`, all of them below `size`.
    pub(super) fn of(size: usize, ids: impl Iterator<Item = u32>) -> Self {
        let mut words = vec![0; size.div_ceil(WORD_BITS)];
        for id in ids {
            words[id as usize / WORD_BITS] |= 1 << (id as usize % WORD_BITS);
        }
        Self(words.into())
    }

    /// The first `size` bits of `set`, which has room for more.
    fn first(size: usize, set: &SimpleVob) -> Self {
        let mut words: Vec<u32> = set.as_slice().to_vec();
        words.resize(size.div_ceil(WORD_BITS), 0);
        let beyond = size % WORD_BITS;
        if let (Some(last), 1..) = (words.last_mut(), beyond) {
            *last &= (1 << beyond) - 1;
        }
        Self(words.into())
    }

    /// This mask, and `id` allowed.
    fn and(&self, id: u32) -> Self {
        let mut words = self.0.to_vec();
        words[id as usize / WORD_BITS] |= 1 << (id as usize % WORD_BITS);
        Self(words.into())
    }

    /// This mask less that of `others`.
    pub(super) fn without(&self, others: &Self) -> Self {
        Self(self.0.iter().zip(&*others.0).map(|(word, other)| word & !other).collect())
    }

    /// The words.
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// Whether `id` may come next.
    pub fn allows(&self, id: u32) -> bool {
        let word = self.0.get(id as usize / WORD_BITS).copied().unwrap_or(0);
        word >> (id as usize % WORD_BITS) & 1 == 1
    }

    /// The allowed ids, ascending.
    pub fn allowed(&self) -> impl Iterator<Item = u32> + '_ {
        (0..(self.0.len() * WORD_BITS) as u32).filter(|id| self.allows(*id))
    }
}

/// See the module's words. A clone goes its own way from here.
#[derive(Clone)]
pub struct Matcher {
    vocabulary: Arc<Vocabulary>,
    parser: llguidance::Matcher,
    place: Place,
    satisfied: bool,
}

/// How far the answer is.
#[derive(Debug, Clone)]
enum Place {
    /// Nothing was said; the model may open its reasoning with this token, or begin the answer.
    MayReason { opening: u32, end: Arc<Marker> },
    /// `matched` bytes of the end marker were said last.
    Reasons { end: Arc<Marker>, matched: usize },
    /// The grammar holds.
    Answers,
}

impl Matcher {
    /// A matcher at the start of `parser`'s grammar.
    pub(super) fn new(vocabulary: Arc<Vocabulary>, parser: llguidance::Matcher) -> Self {
        Self { vocabulary, parser, place: Place::Answers, satisfied: false }
    }

    /// The same, in the middle of reasoning that `end` ends.
    pub(super) fn while_reasoning(self, end: Arc<Marker>) -> Self {
        Self { place: Place::Reasons { end, matched: 0 }, ..self }
    }

    /// The same; `opening` may come first, and then reasoning up to `end`.
    pub(super) fn before_reasoning(self, opening: u32, end: Arc<Marker>) -> Self {
        Self { place: Place::MayReason { opening, end }, ..self }
    }

    /// A copy that shares nothing that changes: neither sees what the other explores.
    pub(super) fn separate(&self) -> Self {
        Self { parser: self.parser.deep_clone(), ..self.clone() }
    }

    /// Takes the token that was said.
    ///
    /// # Errors
    /// `Unsupported` when the grammar does not allow it, or is too complex to say; the matcher is of no
    /// more use then.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        match &mut self.place {
            Place::MayReason { opening, end } if token == *opening => {
                self.place = Place::Reasons { end: Arc::clone(end), matched: 0 };
                Ok(())
            }
            Place::Reasons { end, matched } => {
                match end.run(*matched, self.vocabulary.spelling(token)) {
                    Run::Inside { matched: now } => {
                        *matched = now;
                        Ok(())
                    }
                    Run::Ended { left_bytes: 0 } => {
                        self.place = Place::Answers;
                        Ok(())
                    }
                    Run::Ended { .. } => Err(stuck(token, "it runs over the end of the reasoning")),
                }
            }
            Place::MayReason { .. } | Place::Answers => self.answer(token),
        }
    }

    fn answer(&mut self, token: u32) -> Result<()> {
        self.place = Place::Answers;
        let consumed = self.parser.consume_token(token);
        consumed.map_err(|error| stuck(token, &self.reason(&error.to_string())))?;
        self.satisfied = self.parser.is_stopped();
        Ok(())
    }

    /// Whether the answer is whole and nothing but its end may follow.
    pub fn is_satisfied(&self) -> bool {
        self.satisfied
    }

    /// What may come next. Stop tokens are among it where the answer may end here. `None` when nothing
    /// may and the answer is whole, which only a model without stop tokens gets to: it is satisfied then.
    ///
    /// # Errors
    /// `Unsupported` when nothing may come next, or the grammar is too complex to say.
    pub fn mask(&mut self) -> Result<Option<Mask>> {
        match &self.place {
            Place::Reasons { end, matched } => Ok(Some(end.mask(*matched))),
            Place::MayReason { opening, .. } => {
                let opening = *opening;
                Ok(self.answer_mask()?.map(|mask| mask.and(opening)))
            }
            Place::Answers => self.answer_mask(),
        }
    }

    fn answer_mask(&mut self) -> Result<Option<Mask>> {
        if self.satisfied {
            return Ok(None);
        }
        let whole = self.parser.is_accepting().unwrap_or(false);
        match self.parser.compute_mask() {
            Ok(set) => Ok(Some(Mask::first(self.vocabulary.size(), &set))),
            Err(_) if whole => {
                self.satisfied = true;
                Ok(None)
            }
            Err(error) => {
                let reason = self.reason(&error.to_string());
                let message = format!("no token can go on with this answer: {reason}");
                Err(Error::new(Code::Unsupported, message))
            }
        }
    }

    /// What `error` of llguidance says to people.
    fn reason(&self, error: &str) -> String {
        if !error.contains("too many states") {
            return brief(error);
        }
        let states = self.vocabulary.lexer_states_max();
        format!(
            "its grammar is too complex: a row may see {states} states of its lexer, and saw more"
        )
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Matcher")
            .field("place", &self.place)
            .field("satisfied", &self.satisfied)
            .finish_non_exhaustive()
    }
}

fn stuck(token: u32, reason: &str) -> Error {
    let message = format!("the answer cannot go on with token {token}: {reason}");
    Error::new(Code::Unsupported, message)
}

/// Characters of a reason at most.
const REASON_CHARACTERS_MAX: usize = 400;

/// What of an error of llguidance is for people, on one line. Its states and stacks are not, nor are lines
/// that only point at a column.
pub(super) fn brief(text: &str) -> String {
    let own = |line: &&str| !line.starts_with(['<', '^']);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines: Vec<&str> =
        lines.into_iter().take_while(|line| !line.starts_with("<state>")).collect();
    let joined = lines.into_iter().filter(own).collect::<Vec<_>>().join(" ");
    joined.chars().take(REASON_CHARACTERS_MAX).collect()
}
