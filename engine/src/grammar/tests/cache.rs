//! Compiled once, kept while used.

use std::sync::Arc;

use super::{PIECES, compile, grammars};
use crate::error::{Code, Error};
use crate::grammar::{Constraint, Grammar};
use crate::limits::GRAMMARS_MAX;

fn constraint(index: usize) -> Constraint {
    Constraint::Regex(format!("a{index}"))
}

fn same(left: &Grammar, right: &Grammar) -> bool {
    Arc::ptr_eq(&left.prototype, &right.prototype)
}

#[test]
fn a_constraint_compiles_once_while_it_is_among_the_last_used() {
    let grammars = grammars(PIECES);
    let first = compile(&grammars, &constraint(0));
    for index in 1..GRAMMARS_MAX {
        compile(&grammars, &constraint(index));
    }
    let second = compile(&grammars, &constraint(1));
    assert!(same(&compile(&grammars, &constraint(0)), &first));
    // The place used longest ago, now that of constraint 2, is needed.
    let third = compile(&grammars, &constraint(2));
    compile(&grammars, &constraint(GRAMMARS_MAX));
    assert!(same(&compile(&grammars, &constraint(0)), &first));
    assert!(same(&compile(&grammars, &constraint(1)), &second));
    assert!(same(&compile(&grammars, &constraint(2)), &third));
    assert_eq!(grammars.kept.lock().len(), GRAMMARS_MAX);
    assert!(!grammars.kept.lock().iter().any(|kept| kept.constraint == constraint(3)));
}

#[test]
fn requests_that_come_at_once_share_one_compilation() {
    let grammars = grammars(PIECES);
    let compiled: Vec<Grammar> = std::thread::scope(|scope| {
        let one = || scope.spawn(|| compile(&grammars, &Constraint::JsonObject));
        let all: Vec<_> = (0..4).map(|_| one()).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(compiled.iter().all(|grammar| same(grammar, &compiled[0])));
}

#[test]
fn a_failure_of_ours_is_forgotten_and_one_of_the_constraint_is_kept() {
    let grammars = grammars(PIECES);
    let failure = |code: Code| move || Err(Error::new(code, "it failed"));
    for code in [Code::Internal, Code::Io] {
        let failed = grammars.keep(&constraint(1), failure(code));
        assert_eq!(failed.unwrap_err().code(), code);
        assert!(grammars.known(&constraint(1), None).is_none());
        assert!(grammars.compile(&constraint(1)).is_ok());
        grammars.kept.lock().clear();
    }
    for code in [Code::InvalidRequest, Code::Unsupported] {
        assert!(grammars.keep(&constraint(2), failure(code)).is_err());
        let again = grammars.compile(&constraint(2)).unwrap_err();
        assert_eq!((again.code(), again.message()), (code, "it failed"));
        assert!(grammars.known(&constraint(2), None).unwrap().is_err());
        grammars.kept.lock().clear();
    }
}
