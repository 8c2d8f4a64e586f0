//! What an answer must look like, and which tokens keep it so.
//!
//! - A **constraint** is what a request says: a JSON schema, a regular expression, a grammar, choices.
//! - A **grammar** is a constraint compiled for one vocabulary: once, kept by [`Grammars`], shared by
//!   all rows that ask for it.
//! - A **matcher** is one row's place in its grammar. A **mask** says which tokens may come next: one bit
//!   for each id of the vocabulary. A token of which any byte would break the grammar is masked, wherever
//!   the tokenizer cut the text; so are ids that spell nothing, and stop tokens while the answer is not
//!   whole.
//! - An answer is **satisfied** once nothing but its end can follow. Its row ends then, and no token is
//!   ever sampled from an empty mask.
//! - **Reasoning** may come before the answer; the matcher stands still until its end marker was said.
//! - A **rehearsal** is what compiling says under a grammar, so that rows find its lexer prepared.
//! - A **guide** is a matcher whose masks fill on [`Workers`], off the engine thread.
//!
//! The automata are those of llguidance (Earley over lexemes that derivatives match). Every row gets its
//! own copy of the compiled lexer, so that what one row explored changes neither the masks nor the limits
//! of another.
//!
//! Invariant: whatever tokens the masks let through, the text of a satisfied row, or of one that ended by a
//! stop token, matches its constraint.

mod calls;
mod compiler;
mod constraint;
mod gbnf;
mod guide;
mod matcher;
mod reasoning;
mod rehearsal;
mod schema;
mod vocabulary;

pub use calls::{Calls, Part};
pub use compiler::{Grammar, Grammars};
pub use constraint::Constraint;
pub use guide::{Guide, Outcome, Workers};
pub use matcher::{Mask, Matcher};
pub use reasoning::{Reasoning, ReasoningStart};

#[cfg(test)]
pub(crate) mod tests;
