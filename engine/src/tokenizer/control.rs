//! Control tokens that text only spells.
//!
//! Whoever writes `<|im_end|>` into a message means those ten characters. A tokenizer would make the
//! control token of it, and the message could end itself and begin another. So a *mark* is put inside
//! every spelling before the chat template renders the message; the tokenizer knows the mark as a token
//! of its own, splits the text there, and its id is dropped. The rest is encoded as any other text.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use tokenizers::AddedToken;

use super::Tokenizer;

/// Characters that Unicode keeps out of texts.
pub(super) const MARK: &str = "\u{FDD0}\u{FDD1}";

/// The mark as JSON in ASCII spells it.
const MARK_ESCAPED: &str = "\\ufdd0\\ufdd1";

/// Where ids leave no place for another token, spellings stay broken by a character of no width.
const VISIBLE_MARK: &str = "\u{200B}";

/// The spellings of a model's control tokens.
#[derive(Debug, Clone, Default)]
pub struct ControlTokens {
    spellings: HashSet<String>,
    first_characters: BTreeSet<char>,
    /// Lengths of spellings in bytes.
    lengths: BTreeSet<usize>,
    mark: &'static str,
}

impl ControlTokens {
    /// The control tokens of `tokenizer`: its special tokens, what looks like one, and `also`, as far as
    /// they are tokens.
    pub fn new(tokenizer: &Tokenizer, also: &[&str]) -> Self {
        let controls = |token: &AddedToken| {
            let content = token.content.as_str();
            token.special || looks_like_control(content) || also.contains(&content)
        };
        let added = tokenizer.0.inner.get_added_vocabulary().get_added_tokens_decoder();
        let spelled = added.values().filter(|token| token.content != MARK && controls(token));
        let mark = if tokenizer.0.mark.is_some() { MARK } else { VISIBLE_MARK };
        Self::of(spelled.map(|token| token.content.clone()), mark)
    }

    /// The same with `spellings`, which need not be tokens.
    pub fn with(&self, spellings: &[&str]) -> Self {
        let more = spellings.iter().map(|spelling| (*spelling).to_owned());
        Self::of(self.spellings.iter().cloned().chain(more), self.mark)
    }

    /// The same without `spellings`, for texts that may mean them.
    pub fn without(&self, spellings: &[&str]) -> Self {
        let kept = self.spellings.iter().filter(|kept| !spellings.contains(&kept.as_str()));
        Self::of(kept.cloned(), self.mark)
    }

    fn of(spellings: impl Iterator<Item = String>, mark: &'static str) -> Self {
        // What has one character cannot be broken.
        let spellings: HashSet<String> =
            spellings.filter(|spelling| spelling.chars().count() > 1).collect();
        Self {
            first_characters: spellings
                .iter()
                .filter_map(|spelling| spelling.chars().next())
                .collect(),
            lengths: spellings.iter().map(String::len).collect(),
            spellings,
            mark,
        }
    }

    /// `text` with a mark inside every control token that it spells.
    pub fn break_up<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text =
            if text.contains(MARK) { Cow::from(text.replace(MARK, "")) } else { text.into() };
        let begins = |next: char| self.first_characters.contains(&next);
        let spelled = text.match_indices(begins).filter(|(at, _)| self.is_spelled(&text[*at..]));
        let places: Vec<usize> = spelled.map(|(at, first)| at + first.len()).collect();
        if places.is_empty() {
            return text;
        }
        let mut broken = String::with_capacity(text.len() + places.len() * self.mark.len());
        let mut done = 0;
        for place in places {
            broken.push_str(&text[done..place]);
            broken.push_str(self.mark);
            done = place;
        }
        broken.push_str(&text[done..]);
        Cow::from(broken)
    }

    /// Whether a control token's spelling begins `rest`.
    fn is_spelled(&self, rest: &str) -> bool {
        let beginning = |length: &usize| rest.get(..*length);
        self.lengths.iter().filter_map(beginning).any(|text| self.spellings.contains(text))
    }
}

/// `rendered` with marks that a template wrote as JSON escapes spelt out again.
pub(super) fn unescape_marks(rendered: String) -> String {
    if rendered.contains(MARK_ESCAPED) { rendered.replace(MARK_ESCAPED, MARK) } else { rendered }
}

/// Teaches `tokenizer` the mark and returns its id; `None` where the id would be another token's.
pub(super) fn add_mark(tokenizer: &mut tokenizers::Tokenizer) -> Option<u32> {
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let size = u32::try_from(tokenizer.get_vocab_size(false)).ok()?;
    let id = added.keys().max().map_or(size, |largest| size.max(largest + 1));
    if tokenizer.id_to_token(id).is_some() {
        return None;
    }
    tokenizer.add_tokens([AddedToken::from(MARK, true).normalized(false)]).ok()?;
    tokenizer.token_to_id(MARK)
}

/// `<|…|>` in the two ways that models have it.
fn looks_like_control(content: &str) -> bool {
    let inside = |open: &str, close: &str| content.starts_with(open) && content.ends_with(close);
    inside("<|", "|>") || inside("<｜", "｜>")
}
