//! Single masks, and the ends of answers.

use serde_json::json;

use super::{PADDING, PIECES, byte_level, compile, grammars, text, tokenizer};
use crate::grammar::{Constraint, Grammars, Guide, Matcher, Outcome, Workers};

fn regex(pattern: &str) -> Constraint {
    Constraint::Regex(pattern.to_owned())
}

fn say(matcher: &mut Matcher, grammars: &Grammars, said: &str) {
    for byte in said.bytes() {
        let token = (0..256).find(|id| text(grammars, &[*id]).bytes().eq([byte])).unwrap();
        assert!(matcher.mask().unwrap().unwrap().allows(token), "{said}");
        matcher.accept(token).unwrap();
    }
}

fn end(grammars: &Grammars) -> u32 {
    grammars.tokenizer.stop_tokens()[0]
}

#[test]
fn ids_that_spell_nothing_are_never_allowed() {
    let grammars = grammars(PIECES);
    let known = grammars.tokenizer.vocab_size() as u32;
    let mut matcher = compile(&grammars, &regex("(?s:.*)")).matcher();
    let mask = matcher.mask().unwrap().unwrap();
    assert!(mask.allowed().all(|id| id < known));
    assert!((known..known + PADDING as u32 + 100).all(|id| !mask.allows(id)));
    // Everything that is text: all pieces and all bytes that begin a character.
    let begins = |id: &u32| {
        !text(&grammars, &[*id]).is_empty() && !text(&grammars, &[*id]).contains('\u{fffd}')
    };
    assert!((0..known - 2).filter(begins).all(|id| mask.allows(id)));
    assert!(!mask.allows(known - 1), "a marker is no text");
}

#[test]
fn a_head_narrower_than_the_tokenizer_bounds_the_mask() {
    let tokenizer = tokenizer(&byte_level(PIECES));
    let grammars = Grammars::new(tokenizer, 260);
    let mut matcher = compile(&grammars, &regex("(?s:.*)")).matcher();
    assert!(matcher.mask().unwrap().unwrap().allowed().all(|id| id < 260));
}

#[test]
fn stop_tokens_are_allowed_where_the_answer_may_end_and_nowhere_else() {
    let grammars = grammars(PIECES);
    let mut matcher = compile(&grammars, &regex("ab(cd)*")).matcher();
    for (said, may_end) in [("a", false), ("b", true), ("c", false), ("d", true)] {
        say(&mut matcher, &grammars, said);
        assert_eq!(matcher.mask().unwrap().unwrap().allows(end(&grammars)), may_end, "{said}");
        assert!(!matcher.is_satisfied());
    }
}

#[test]
fn an_answer_that_nothing_can_follow_is_satisfied_at_once() {
    let grammars = grammars(PIECES);
    let mut matcher = compile(&grammars, &regex("abc?")).matcher();
    say(&mut matcher, &grammars, "ab");
    assert!(!matcher.is_satisfied());
    say(&mut matcher, &grammars, "c");
    assert!(matcher.is_satisfied());
    assert_eq!(matcher.mask().unwrap(), None);

    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let constraint = Constraint::JsonSchema { schema: schema.to_string(), strict: true };
    let mut matcher = compile(&grammars, &constraint).matcher();
    say(&mut matcher, &grammars, "{");
    say(&mut matcher, &grammars, "}");
    assert!(matcher.is_satisfied());
}

#[test]
fn a_model_without_stop_tokens_is_satisfied_when_nothing_can_follow() {
    let mut definition = byte_level(PIECES);
    definition["added_tokens"][0]["content"] = json!("<|other|>");
    let tokenizer = tokenizer(&definition);
    assert!(tokenizer.stop_tokens().is_empty());
    let grammars = Grammars::new(tokenizer, 1000);
    let mut matcher = compile(&grammars, &regex("a(b|)")).matcher();
    say(&mut matcher, &grammars, "a");
    assert!(!matcher.is_satisfied());
    say(&mut matcher, &grammars, "b");
    assert!(matcher.is_satisfied());
}

#[test]
fn a_token_that_the_mask_forbids_is_an_error_that_names_it() {
    let grammars = grammars(PIECES);
    let mut matcher = compile(&grammars, &regex("ab")).matcher();
    let error = matcher.accept(7).unwrap_err();
    assert!(error.message().contains("token 7"), "{error}");
    assert!(matcher.mask().is_err(), "it is of no more use");
}

#[test]
fn clones_go_their_own_ways() {
    let grammars = grammars(PIECES);
    let mut matcher = compile(&grammars, &regex("a(bc|de)")).matcher();
    say(&mut matcher, &grammars, "a");
    let mut other = matcher.clone();
    say(&mut matcher, &grammars, "bc");
    say(&mut other, &grammars, "de");
    assert!(matcher.is_satisfied() && other.is_satisfied());
}

#[test]
fn a_guide_says_what_its_matcher_does() {
    let grammars = grammars(PIECES);
    let grammar = compile(&grammars, &regex("[ab]{2}c"));
    let workers = Workers::start().unwrap();
    let mut guide = Guide::start(&grammar, &workers);
    let mut matcher = grammar.matcher();
    for said in ["a", "b", "c"] {
        let mask = matcher.mask().unwrap().unwrap();
        assert_eq!(*guide.outcome(), Outcome::Open(mask.clone()));
        let token = mask.allowed().find(|id| text(&grammars, &[*id]) == said).unwrap();
        matcher.accept(token).unwrap();
        guide.take(token, &workers);
    }
    assert_eq!(*guide.outcome(), Outcome::Satisfied);
    // What a pipelined step samples after the end is nobody's.
    guide.take(1, &workers);
    assert_eq!(*guide.outcome(), Outcome::Satisfied);

    let mut guide = Guide::start(&grammar, &workers);
    guide.take(end(&grammars), &workers);
    assert!(matches!(guide.outcome(), Outcome::Stuck(_)), "the answer was not whole");
}
