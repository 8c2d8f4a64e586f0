//! Constraints become grammars: once for each vocabulary and constraint.
//!
//! Compiling may take a second for a large schema and for a model's first one, so callers do it on a
//! blocking thread. It runs on a thread of its own with a deep stack, because the compiler descends into
//! schemas.

use std::fmt;
use std::sync::Arc;
use std::thread;

use llguidance::Matcher as Parser;
use parking_lot::Mutex;

use super::constraint::Constraint;
use super::matcher::{Matcher, brief};
use super::reasoning::{Reasoning, ReasoningStart};
use super::rehearsal::rehearsed;
use super::vocabulary::Vocabulary;
use crate::error::{Code, Error, Result};
use crate::limits::{GRAMMAR_STACK_BYTES, GRAMMARS_MAX, LEXER_STATES_MAX};
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
    lexer_states_max: usize,
    /// Made with the first grammar: it takes as long as many schemas.
    vocabulary: Lasting<Arc<Vocabulary>>,
    /// The last ones used, latest first.
    pub(super) kept: Mutex<Vec<Arc<Kept>>>,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) constraint: Constraint,
    grammar: Lasting<Grammar>,
}

/// What is made once. Whoever comes while it is made waits for it, and gets it or the reason why there is
/// none; a reason that is ours, and not the constraint's, is told to the one whom it hit and forgotten.
#[derive(Debug)]
struct Lasting<T>(Mutex<Option<Result<T>>>);

impl<T> Default for Lasting<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Lasting<T> {
    fn get_or_make(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut place = self.0.lock();
        if let Some(made) = &*place {
            return made.clone();
        }
        let made = make();
        let ours = |error: &Error| matches!(error.code(), Code::Internal | Code::Io);
        if !made.as_ref().is_err_and(ours) {
            *place = Some(made.clone());
        }
        made
    }

    /// What there is, if it is made.
    fn get(&self) -> Option<Result<T>> {
        self.0.try_lock()?.clone()
    }
}

impl Grammars {
    /// No grammars yet, for a model whose head knows `vocab_size` ids.
    pub fn new(tokenizer: Tokenizer, vocab_size: usize) -> Self {
        Self {
            tokenizer,
            vocab_size,
            lexer_states_max: LEXER_STATES_MAX,
            vocabulary: Lasting::default(),
            kept: Mutex::default(),
        }
    }

    /// The same with another bound than [`LEXER_STATES_MAX`] for the lexer of each row.
    #[must_use]
    pub fn with_lexer_states_max(self, lexer_states_max: usize) -> Self {
        Self { lexer_states_max, ..self }
    }

    /// The grammar of `constraint`. Takes its time; the same constraint compiles once.
    ///
    /// # Errors
    /// `InvalidRequest` when the constraint is malformed or too complex, `Unsupported` when it asks for
    /// what is not supported, or the model's tokenizer for none.
    pub fn compile(&self, constraint: &Constraint) -> Result<Grammar> {
        constraint.check()?;
        let vocabulary = self.vocabulary.get_or_make(|| self.read_vocabulary())?;
        self.keep(constraint, || on_deep_stack(|| compile(constraint, &vocabulary)))
    }

    /// The grammar of `constraint`, made by `make` if it is not kept.
    pub(super) fn keep(
        &self,
        constraint: &Constraint,
        make: impl FnOnce() -> Result<Grammar>,
    ) -> Result<Grammar> {
        self.kept(constraint).grammar.get_or_make(make)
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
        match (place.grammar.get()?, reasoning) {
            (Ok(grammar), Some(reasoning)) => {
                let met = grammar.vocabulary.knows_marker(&reasoning.end);
                met.then(|| Ok(grammar.after(reasoning.clone())))
            }
            (grammar, _) => Some(grammar),
        }
    }

    fn read_vocabulary(&self) -> Result<Arc<Vocabulary>> {
        Vocabulary::new(&self.tokenizer, self.vocab_size, self.lexer_states_max).map(Arc::new)
    }

    /// The place of `constraint`, now the latest; the place unused for longest goes when all are taken.
    fn kept(&self, constraint: &Constraint) -> Arc<Kept> {
        let mut kept = self.kept.lock();
        let found = kept.iter().position(|kept| kept.constraint == *constraint);
        let place = match found {
            Some(index) => kept.remove(index),
            None => Arc::new(Kept { constraint: constraint.clone(), grammar: Lasting::default() }),
        };
        kept.insert(0, Arc::clone(&place));
        kept.truncate(GRAMMARS_MAX);
        place
    }
}

fn on_deep_stack(compile: impl FnOnce() -> Result<Grammar> + Send) -> Result<Grammar> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("grammar".to_owned());
        let builder = builder.stack_size(GRAMMAR_STACK_BYTES);
        let compiling = builder.spawn_scoped(scope, compile)?;
        let panicked = |_| Err(Error::new(Code::Internal, "the grammar compiler failed"));
        compiling.join().unwrap_or_else(panicked)
    })
}

fn compile(constraint: &Constraint, vocabulary: &Arc<Vocabulary>) -> Result<Grammar> {
    let refused = |error: &dyn fmt::Display| constraint.refused(&brief(&error.to_string()));
    let parser = vocabulary.factory().create_parser(constraint.source(vocabulary)?);
    let parser = rehearsed(parser.map_err(|error| refused(&error))?);
    let parser = Parser::new(Ok(parser));
    let mut matcher = Matcher::new(Arc::clone(vocabulary), parser);
    // A grammar without a first token is found out here and not by its rows.
    let first = matcher.mask().map_err(|error| refused(&error.message()))?;
    if first.is_none() {
        return Err(refused(
            &"only the empty answer matches, which this model has no token to end",
        ));
    }
    Ok(Grammar {
        prototype: Arc::new(Mutex::new(matcher)),
        vocabulary: Arc::clone(vocabulary),
        reasoning: None,
    })
}
