//! Single masks, and the ends of answers.

use serde_json::json;

use super::{PADDING, PIECES, byte_level, compile, grammars, text, tokenizer, trees};
use crate::error::Code;
use crate::grammar::{Constraint, Grammars, Guide, Matcher, Outcome, Workers};
use crate::limits::LEXER_STATES_MAX;

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

fn grammars_without_stop_tokens() -> Grammars {
    let mut definition = byte_level(PIECES);
    definition["added_tokens"][0]["content"] = json!("<|other|>");
    let tokenizer = tokenizer(&definition);
    assert!(tokenizer.stop_tokens().is_empty());
    Grammars::new(tokenizer, 1000)
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
    let grammars = grammars_without_stop_tokens();
    let mut matcher = compile(&grammars, &regex("a(b|)")).matcher();
    say(&mut matcher, &grammars, "a");
    assert!(!matcher.is_satisfied());
    say(&mut matcher, &grammars, "b");
    assert!(matcher.is_satisfied());
}

/// Constraints that only the empty answer meets.
fn empty() -> [Constraint; 5] {
    let grammar = |text: &str| Constraint::Grammar(text.to_owned());
    [
        regex("()"),
        regex("^$"),
        regex("a{0}"),
        grammar("start: \"\"\n"),
        grammar("root ::= \"\" \"\""),
    ]
}

#[test]
fn where_only_the_empty_answer_matches_its_end_is_all_that_may_be_said() {
    let grammars = grammars(PIECES);
    let workers = Workers::start().unwrap();
    for constraint in empty() {
        let grammar = compile(&grammars, &constraint);
        let mask = grammar.matcher().mask().unwrap().unwrap();
        assert_eq!(mask.allowed().collect::<Vec<u32>>(), [end(&grammars)], "{constraint:?}");
        let mut guide = Guide::start(&grammar, &workers);
        guide.take(end(&grammars), &workers);
        assert_eq!(*guide.outcome(), Outcome::Satisfied, "{constraint:?}");
    }
}

#[test]
fn where_only_the_empty_answer_matches_a_model_without_stop_tokens_is_refused() {
    let grammars = grammars_without_stop_tokens();
    for constraint in empty() {
        let error = grammars.compile(&constraint).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest, "{error}");
        assert!(error.message().contains("only the empty answer"), "{error}");
    }
    // One that may be empty need not be.
    let mut matcher = compile(&grammars, &regex("a?")).matcher();
    say(&mut matcher, &grammars, "a");
    assert!(matcher.is_satisfied());
}

#[test]
fn a_row_that_sees_more_lexer_states_than_the_bound_is_stuck_and_its_neighbours_are_not() {
    let words = trees(9);
    let grammars = grammars(&words.iter().map(String::as_str).collect::<Vec<_>>());
    // Its automaton tells 2^18 states apart: which of the last letters were `a`.
    let grammar = compile(&grammars, &regex("(a|b)*a(a|b){17}"));
    let (workers, mut random) = (Workers::start().unwrap(), 5_u64);
    let mut greedy = Guide::start(&grammar, &workers);
    let mut modest = Guide::start(&grammar, &workers);
    let letter = (0..256).find(|id| text(&grammars, &[*id]) == "b").unwrap();
    let mut tokens = 0;
    let error = loop {
        let mask = match greedy.outcome() {
            Outcome::Open(mask) => mask.clone(),
            Outcome::Stuck(error) => break error.clone(),
            Outcome::Satisfied => panic!("it goes on for ever"),
        };
        let words: Vec<u32> = mask.allowed().filter(|id| *id > 256).collect();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        greedy.take(words[(random >> 33) as usize % words.len()], &workers);
        modest.take(letter, &workers);
        assert!(matches!(modest.outcome(), Outcome::Open(_)));
        tokens += 1;
        assert!(tokens < LEXER_STATES_MAX, "nothing bounds it");
    };
    assert!(error.message().contains(&format!("see {LEXER_STATES_MAX} states")), "{error}");
    assert!(error.message().contains("too complex"), "{error}");
    // Another row starts anew.
    let mut later = Guide::start(&grammar, &workers);
    later.take(letter, &workers);
    assert!(matches!(later.outcome(), Outcome::Open(_)));
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
