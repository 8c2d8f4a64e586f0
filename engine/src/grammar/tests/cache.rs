//! Compiled once, kept while used.

use std::sync::Arc;

use super::{PIECES, compile, grammars};
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
