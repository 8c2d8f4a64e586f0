//! Constraints become grammars: once for each vocabulary and constraint.
//!
//! Compiling may take a second for a large schema and for a model's first one, so callers do it on a
//! blocking thread. It runs on a thread of its own with a deep stack, because the compiler descends into
//! schemas.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;

use llguidance::Matcher as Parser;
use parking_lot::Mutex;

use super::constraint::Constraint;
use super::matcher::{Matcher, brief};
use super::reasoning::{Reasoning, ReasoningStart};
use super::vocabulary::Vocabulary;
use crate::error::{Code, Error, Result};
use crate::limits::{GRAMMAR_STACK_BYTES, GRAMMARS_MAX};
use crate::tokenizer::Tokenizer;

/// A compiled constraint, and how reasoning may come before its answer. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    /// At the start. A lock because the parser cannot be shared; it is held for a copy.
    pub(super) prototype: Arc<Mutex<Matcher>>,
    vocabulary: Arc<Vocabulary>,
    reasoning: Option<Reasoning>,
}

impl Grammar {
    /// The same grammar for an answer that may come after `reasoning`. Takes its time when the vocabulary
    /// meets the end marker for the first time.
    #[must_use]
    pub fn after(self, reasoning: Reasoning) -> Self {
        self.vocabulary.marker(&reasoning.end);
        Self { reasoning: Some(reasoning), ..self }
    }

    /// A matcher at the start.
    pub fn matcher(&self) -> Matcher {
        let matcher = self.prototype.lock().separate();
        let Some(Reasoning { start, end }) = &self.reasoning else {
            return matcher;
        };
        match start {
            ReasoningStart::Opened => matcher.while_reasoning(self.vocabulary.marker(end)),
            ReasoningStart::MayOpen(opening) => match self.vocabulary.token_of(opening) {
                Some(token) => matcher.before_reasoning(token, self.vocabulary.marker(end)),
                None => matcher,
            },
        }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Grammar")
            .field("reasoning", &self.reasoning)
            .finish_non_exhaustive()
    }
}

/// The grammars of one model.
#[derive(Debug)]
pub struct Grammars {
    pub(crate) tokenizer: Tokenizer,
    vocab_size: usize,
    /// Made with the first grammar: it takes as long as many schemas.
    vocabulary: OnceLock<Result<Arc<Vocabulary>>>,
    /// The last ones used, latest first.
    pub(super) kept: Mutex<Vec<Arc<Kept>>>,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) constraint: Constraint,
    /// Whoever comes while it compiles waits for it.
    grammar: OnceLock<Result<Grammar>>,
}

impl Grammars {
    /// No grammars yet, for a model whose head knows `vocab_size` ids.
    pub fn new(tokenizer: Tokenizer, vocab_size: usize) -> Self {
        Self { tokenizer, vocab_size, vocabulary: OnceLock::new(), kept: Mutex::default() }
    }

    /// The grammar of `constraint`. Takes its time; the same constraint compiles once.
    ///
    /// # Errors
    /// `InvalidRequest` when the constraint is malformed or too complex, `Unsupported` when it asks for
    /// what is not supported, or the model's tokenizer for none.
    pub fn compile(&self, constraint: &Constraint) -> Result<Grammar> {
        constraint.check()?;
        let vocabulary = self.vocabulary.get_or_init(|| self.read_vocabulary());
        let vocabulary = vocabulary.as_ref().map_err(Clone::clone)?;
        let kept = self.kept(constraint);
        kept.grammar.get_or_init(|| on_deep_stack(constraint, vocabulary)).clone()
    }

    /// The grammar of `constraint` after `reasoning`, or why there is none, if it was compiled lately. Takes
    /// no time.
    pub fn known(
        &self,
        constraint: &Constraint,
        reasoning: Option<&Reasoning>,
    ) -> Option<Result<Grammar>> {
        let kept = self.kept.lock();
        let place = kept.iter().find(|kept| kept.constraint == *constraint)?;
        let grammar = place.grammar.get()?;
        match (grammar, reasoning) {
            (Ok(grammar), Some(reasoning)) => {
                let met = grammar.vocabulary.knows_marker(&reasoning.end);
                met.then(|| Ok(grammar.clone().after(reasoning.clone())))
            }
            (grammar, _) => Some(grammar.clone()),
        }
    }

    fn read_vocabulary(&self) -> Result<Arc<Vocabulary>> {
        Vocabulary::new(&self.tokenizer, self.vocab_size).map(Arc::new)
    }

    /// The place of `constraint`, now the latest; the place unused for longest goes when all are taken.
    fn kept(&self, constraint: &Constraint) -> Arc<Kept> {
        let mut kept = self.kept.lock();
        let found = kept.iter().position(|kept| kept.constraint == *constraint);
        let place = match found {
            Some(index) => kept.remove(index),
            None => Arc::new(Kept { constraint: constraint.clone(), grammar: OnceLock::new() }),
        };
        kept.insert(0, Arc::clone(&place));
        kept.truncate(GRAMMARS_MAX);
        place
    }
}

fn on_deep_stack(constraint: &Constraint, vocabulary: &Arc<Vocabulary>) -> Result<Grammar> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("grammar".to_owned());
        let builder = builder.stack_size(GRAMMAR_STACK_BYTES);
        let compiling = builder.spawn_scoped(scope, || compile(constraint, vocabulary))?;
        let panicked = |_| Err(Error::new(Code::Internal, "the grammar compiler failed"));
        compiling.join().unwrap_or_else(panicked)
    })
}

fn compile(constraint: &Constraint, vocabulary: &Arc<Vocabulary>) -> Result<Grammar> {
    let refused = |error: &dyn fmt::Display| constraint.refused(&brief(&error.to_string()));
    let parser = vocabulary.factory().create_parser(constraint.source(vocabulary)?);
    let parser = Parser::new(Ok(parser.map_err(|error| refused(&error))?));
    let mut matcher = Matcher::new(Arc::clone(vocabulary), parser);
    // A grammar without a first token is found out here and not by its rows.
    matcher.mask().map_err(|error| refused(&error.message()))?;
    Ok(Grammar {
        prototype: Arc::new(Mutex::new(matcher)),
        vocabulary: Arc::clone(vocabulary),
        reasoning: None,
    })
}
