//! Answers that nobody hears, said when a grammar compiles, so that its rows find the states of the lexer that
//! most answers lead through.
//!
//! A lexer makes a state when a mask first gets there: for a class of Unicode letters, one for each way in which
//! bytes of the vocabulary begin one, a millisecond for a mask that meets many. Rows copy the lexer as the rehearsal
//! leaves it. What remains to a row is what chance did not find: the counts of a repetition beyond those rehearsed,
//! and masks of free text within a regular expression, which walk the whole vocabulary.

use llguidance::{Matcher, TokenParser};

use crate::limits::{REHEARSAL_FUEL_MAX, REHEARSAL_STATES_MAX};

/// Answers that are rehearsed.
const ANSWERS: u64 = 2;
/// Tokens of each at most.
const TOKENS_MAX: usize = 64;
/// Counting what a lexer holds takes longer than many a mask.
const STEPS_BETWEEN_COUNTS: usize = 16;

/// The parser with a lexer that has seen answers; as it is where they take too many states of it to be copied by
/// every row.
pub(super) fn rehearsed(parser: TokenParser) -> TokenParser {
    let copy = parser.deep_clone();
    for seed in 0..ANSWERS {
        rehearse(&copy, seed);
    }
    let stats = copy.parser.lexer_stats();
    if stats.error || stats.num_states > REHEARSAL_STATES_MAX { parser } else { copy }
}

/// Says an answer that chance chooses by `seed`, as long as `parser`, whose lexer it shares, allows.
fn rehearse(parser: &TokenParser, seed: u64) {
    let mut matcher = Matcher::new(Ok(parser.clone()));
    let mut state = seed;
    for step in 0..TOKENS_MAX {
        if step.is_multiple_of(STEPS_BETWEEN_COUNTS) && is_spent(parser) {
            return;
        }
        let Ok(allowed) = matcher.compute_mask() else {
            return;
        };
        // Knuth's multiplier: the high bits are even enough.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (state >> 33) as usize % allowed.num_set().max(1);
        let token = allowed.iter().nth(place);
        if token.is_none_or(|token| matcher.consume_token(token).is_err()) || matcher.is_stopped() {
            return;
        }
    }
}

fn is_spent(parser: &TokenParser) -> bool {
    let stats = parser.parser.lexer_stats();
    let full = stats.error || stats.num_states > REHEARSAL_STATES_MAX;
    full || stats.total_fuel_spent > REHEARSAL_FUEL_MAX
}

#[cfg(test)]
mod tests {
    use llguidance::api::TopLevelGrammar;

    use super::*;
    use crate::grammar::tests::{PIECES, grammars, trees};
    use crate::grammar::vocabulary::Vocabulary;
    use crate::limits::LEXER_STATES_MAX;

    fn parser(pieces: &[&str], pattern: &str) -> TokenParser {
        let tokenizer = grammars(pieces).tokenizer;
        let vocabulary = Vocabulary::new(&tokenizer, 1000, LEXER_STATES_MAX).unwrap();
        vocabulary.factory().create_parser(TopLevelGrammar::from_regex(pattern)).unwrap()
    }

    fn states(parser: &TokenParser) -> usize {
        parser.parser.lexer_stats().num_states
    }

    #[test]
    fn a_rehearsed_parser_knows_more_states_and_allows_the_same() {
        let plain = parser(PIECES, r"(\w+ ){3,30}[0-9]{2,}\.");
        let rehearsed = rehearsed(plain.deep_clone());
        assert!(states(&rehearsed) > states(&plain));
        let mut both = [plain, rehearsed].map(|parser| Matcher::new(Ok(parser)));
        for step in 0..60 {
            let [one, other] = both.each_mut().map(|matcher| matcher.compute_mask().unwrap());
            assert!(one == other, "step {step}");
            let token = one.iter().nth(step * 7 % one.num_set()).unwrap();
            both.iter_mut().for_each(|matcher| matcher.consume_token(token).unwrap());
        }
    }

    #[test]
    fn a_parser_of_too_many_states_stays_as_it_is() {
        let words = trees(9);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let plain = parser(&words, "(a|b)*a(a|b){17}");
        let before = states(&plain);
        assert_eq!(states(&rehearsed(plain)), before);
    }
}
