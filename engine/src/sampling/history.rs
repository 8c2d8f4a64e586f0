//! The tokens that a row's penalties look back on: its whole prompt, wherever its caches came from, and
//! its answer as far as it was read.
//!
//! The token *in flight* is the one that the device has sampled, or still samples, and that was not read.
//! It is part of the context and no part of the history; there is one at most.

use std::collections::HashSet;

use super::SamplingParams;

/// What a row has seen, as much of it as its penalties need.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    /// In order; none when there is no penalty.
    tokens: Vec<u32>,
    /// Each token once, when a penalty looks at all of them.
    distinct: Option<Distinct>,
    kept: bool,
}

#[derive(Debug, Clone, Default)]
struct Distinct {
    tokens: Vec<u32>,
    seen: HashSet<u32>,
}

impl History {
    /// The history of a row that begins with `prompt`.
    pub(super) fn new(prompt: &[u32], params: &SamplingParams) -> Self {
        let mut history = Self {
            tokens: Vec::new(),
            distinct: params
                .penalties()
                .any(|penalty| penalty.context_tokens == 0)
                .then(Distinct::default),
            kept: params.penalties().next().is_some(),
        };
        prompt.iter().for_each(|token| history.push(*token));
        history
    }

    /// Takes in the next token.
    pub(super) fn push(&mut self, token: u32) {
        if !self.kept {
            return;
        }
        self.tokens.push(token);
        if let Some(Distinct { tokens, seen }) = &mut self.distinct
            && seen.insert(token)
        {
            tokens.push(token);
        }
    }

    /// The newest tokens that are in a context of `context_tokens` (0 is all), as often as they occur;
    /// one fewer when another one is in flight.
    pub(super) fn context(&self, context_tokens: usize, in_flight: bool) -> &[u32] {
        match context_tokens {
            0 => &self.tokens,
            size => {
                let known = size - usize::from(in_flight);
                &self.tokens[self.tokens.len().saturating_sub(known)..]
            }
        }
    }

    /// The same tokens, not necessarily as often: for penalties that count a token once.
    pub(super) fn distinct(&self, context_tokens: usize, in_flight: bool) -> &[u32] {
        match &self.distinct {
            Some(distinct) if context_tokens == 0 => &distinct.tokens,
            _ => self.context(context_tokens, in_flight),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::sampling::Penalty;

    fn history(prompt: &[u32], context_tokens: usize) -> History {
        let presence = Penalty { amount: 1.0, context_tokens };
        History::new(prompt, &SamplingParams { presence, ..SamplingParams::default() })
    }

    proptest! {
        #[test]
        fn a_context_is_the_end_of_prompt_and_answer_with_the_token_in_flight(
            prompt in prop::collection::vec(0..6u32, 0..12),
            answer in prop::collection::vec(0..6u32, 0..12),
            context_tokens in 0..9usize,
            in_flight in prop::option::of(0..6u32),
        ) {
            let mut history = history(&prompt, context_tokens);
            answer.iter().for_each(|token| history.push(*token));
            let all = [&prompt[..], &answer, in_flight.as_slice()].concat();
            // As Python slices: the last none of them are all.
            let first = if context_tokens == 0 { 0 } else { all.len().saturating_sub(context_tokens) };
            let seen = |tokens: &[u32]| [tokens, in_flight.as_slice()].concat();
            let context = seen(history.context(context_tokens, in_flight.is_some()));
            prop_assert_eq!(&context, &all[first..]);
            let distinct = seen(history.distinct(context_tokens, in_flight.is_some()));
            let set = |tokens: &[u32]| tokens.iter().copied().collect::<BTreeSet<u32>>();
            prop_assert_eq!(set(&distinct), set(&context));
            prop_assert!(context_tokens > 0 || distinct.len() <= set(&context).len() + 1);
        }
    }

    #[test]
    fn a_row_without_penalties_remembers_nothing() {
        let mut history = History::new(&[1, 2], &SamplingParams::default());
        history.push(3);
        assert!(history.tokens.is_empty() && history.distinct.is_none());
    }
}
