//! Reasoning before answers.

use super::{PIECES, compile, grammars, text};
use crate::grammar::{Constraint, Grammars, Matcher, Reasoning, ReasoningStart};

const END: &str = "</th</think>";

fn matcher(grammars: &Grammars, start: ReasoningStart) -> Matcher {
    let grammar = compile(grammars, &Constraint::Regex("[0-9]{2}".to_owned()));
    grammar.after(Reasoning { start, end: END.to_owned() }).matcher()
}

/// The ids that spell exactly `said`.
fn ids(grammars: &Grammars, said: &str) -> Vec<u32> {
    (0..grammars.tokenizer.vocab_size() as u32)
        .filter(|id| text(grammars, &[*id]) == said)
        .collect()
}

fn say(matcher: &mut Matcher, grammars: &Grammars, pieces: &[&str]) {
    for piece in pieces {
        let id = ids(grammars, piece)[0];
        assert!(matcher.mask().unwrap().unwrap().allows(id), "{piece}");
        matcher.accept(id).unwrap();
    }
}

/// Whether the grammar holds now.
fn answers(matcher: &mut Matcher, grammars: &Grammars) -> bool {
    let mask = matcher.mask().unwrap().unwrap();
    let digits = |id: u32| text(grammars, &[id]).chars().all(|digit| digit.is_ascii_digit());
    mask.allowed().all(digits)
}

#[test]
fn the_grammar_holds_from_the_end_marker_on_however_that_is_cut() {
    let whole =
        [END, "<", "</th<", "/", "/think>", "</", "th", "</t", "h<", "ink>", "</thi", "nk>"];
    let grammars = grammars(&whole);
    for cut in [
        &[END][..],
        &["</th<", "/think>"],
        &["<", "/", "t", "h", "<", "/", "t", "h", "i", "n", "k", ">"],
        // A beginning that turns out to be none, and one within another.
        &["</th", "x", "</", "</th", "</", "th", "ink>"],
        &["</th<", "/", "th", "<", "/think>"],
        &["{", "\"", "1", "</th</", "thi", "nk", ">"],
    ] {
        let cut: Vec<String> = cut.iter().flat_map(|piece| known(&grammars, piece)).collect();
        let mut matcher = matcher(&grammars, ReasoningStart::Opened);
        for (index, piece) in cut.iter().enumerate() {
            assert!(!answers(&mut matcher, &grammars), "{index} of {cut:?}");
            say(&mut matcher, &grammars, &[piece]);
        }
        assert!(answers(&mut matcher, &grammars), "{cut:?}");
        say(&mut matcher, &grammars, &["4", "2"]);
        assert!(matcher.is_satisfied());
    }
}

/// The piece itself if the vocabulary has it, else its characters.
fn known(grammars: &Grammars, piece: &str) -> Vec<String> {
    match ids(grammars, piece)[..] {
        [] => piece.chars().map(String::from).collect(),
        _ => vec![piece.to_owned()],
    }
}

#[test]
fn a_token_that_runs_over_the_end_marker_is_masked_while_it_would() {
    let grammars = grammars(&["k>{", "k>", ">1", "nk>x"]);
    let mut matcher = matcher(&grammars, ReasoningStart::Opened);
    let over = ["k>{", ">1", "nk>x"].map(|piece| ids(&grammars, piece)[0]);
    let allowed = |matcher: &mut Matcher| {
        let mask = matcher.mask().unwrap().unwrap();
        over.map(|id| mask.allows(id))
    };
    assert_eq!(allowed(&mut matcher), [true, true, true]);
    let letters: Vec<String> = "</th</thi".chars().map(String::from).collect();
    for letter in &letters {
        say(&mut matcher, &grammars, &[letter]);
    }
    assert_eq!(allowed(&mut matcher), [true, true, false]);
    say(&mut matcher, &grammars, &["n"]);
    assert_eq!(allowed(&mut matcher), [false, true, true]);
    say(&mut matcher, &grammars, &["k"]);
    assert_eq!(allowed(&mut matcher), [true, false, true]);
}

#[test]
fn reasoning_says_anything_but_the_end_of_the_answer() {
    let grammars = grammars(PIECES);
    let mut matcher = matcher(&grammars, ReasoningStart::Opened);
    let mask = matcher.mask().unwrap().unwrap();
    let known = grammars.tokenizer.vocab_size() as u32;
    let stop = grammars.tokenizer.stop_tokens()[0];
    // No text has the byte 0xFF.
    let no_text = 187;
    for id in 0..known {
        assert_eq!(
            mask.allows(id),
            id != stop && id != no_text,
            "{id}: {}",
            text(&grammars, &[id])
        );
    }
    assert!(!mask.allows(known));
}

#[test]
fn a_model_may_open_its_reasoning_first_or_answer() {
    let grammars = grammars(PIECES);
    let opening = grammars.tokenizer.vocab_size() as u32 - 1;
    let start = || ReasoningStart::MayOpen("<think>".to_owned());
    let mut thinks = matcher(&grammars, start());
    assert!(thinks.mask().unwrap().unwrap().allows(opening));
    thinks.accept(opening).unwrap();
    assert!(!answers(&mut thinks, &grammars));
    let letters: Vec<String> = format!("hm{END}").chars().map(String::from).collect();
    for letter in &letters {
        say(&mut thinks, &grammars, &[letter]);
    }
    assert!(answers(&mut thinks, &grammars));

    let mut answers_at_once = matcher(&grammars, start());
    say(&mut answers_at_once, &grammars, &["4"]);
    assert!(!answers_at_once.mask().unwrap().unwrap().allows(opening), "it is too late to think");
    say(&mut answers_at_once, &grammars, &["2"]);
    assert!(answers_at_once.is_satisfied());

    // Without a token that opens it, there is no reasoning.
    let start = ReasoningStart::MayOpen("<reason>".to_owned());
    assert!(answers(&mut matcher(&grammars, start), &grammars));
}
