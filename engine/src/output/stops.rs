//! Stop strings that may span tokens.
//!
//! The matcher sees the text in pieces and gives out exactly what a search of the whole text would
//! give: everything before the earliest place where a stop string begins. Where several stop
//! strings begin there, the longest is the one that matched. Text that may turn out to be the
//! beginning of a stop string is *held* until that is decided; the held text is never longer than
//! the longest stop string.

/// What a piece of text let the matcher decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that precedes every possible stop string.
    pub text: String,
    /// The stop string that ended the text, once it is certain.
    pub matched: Option<String>,
}

/// Finds the end of a row's text. One per row; a finished matcher swallows what comes after.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    /// Bytes from the stop string on.
    dropped_bytes: usize,
    matched: Option<String>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings among them stop nothing.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), dropped_bytes: 0, matched: None }
    }

    /// Takes the next piece of text and returns what can be shown by now. After a match the text
    /// is empty and the match is repeated.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.matched.is_some() {
            self.dropped_bytes += text.len();
            return StopOutput { text: String::new(), matched: self.matched.clone() };
        }
        self.held.push_str(text);
        match self.decide() {
            Decision::Nothing => self.release(self.held.len(), None),
            Decision::Undecided { at } => self.release(at, None),
            Decision::Match { at, stop } => self.release(at, Some(stop)),
        }
    }

    /// The text has ended: returns the rest of what can be shown. A stop string that had been held
    /// because a longer one might have followed counts as matched now.
    pub fn finish(&mut self) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        let matched = (0..self.held.len()).find_map(|at| Some((at, self.longest_match(at)?)));
        let output = match matched {
            Some((at, stop)) => self.release(at, Some(stop)),
            None => self.release(self.held.len(), None),
        };
        self.held.clear();
        output.text
    }

    /// Bytes of the text so far that were not given out: those that may begin a stop string, or all from
    /// the one on that ended the text.
    pub fn held_bytes(&self) -> usize {
        self.held.len() + self.dropped_bytes
    }

    /// The stop string that ended the text, if one has.
    pub fn matched(&self) -> Option<&str> {
        self.matched.as_deref()
    }

    fn decide(&self) -> Decision {
        for at in 0..self.held.len() {
            let rest = &self.held.as_bytes()[at..];
            let may_grow =
                |stop: &String| stop.len() > rest.len() && stop.as_bytes().starts_with(rest);
            if self.stops.iter().any(may_grow) {
                return Decision::Undecided { at };
            }
            if let Some(stop) = self.longest_match(at) {
                return Decision::Match { at, stop };
            }
        }
        Decision::Nothing
    }

    /// The longest stop string at byte `at`. Stop strings are whole characters, so a match can only
    /// begin at a character of the text.
    fn longest_match(&self, at: usize) -> Option<String> {
        let rest = &self.held.as_bytes()[at..];
        let here = self.stops.iter().filter(|stop| rest.starts_with(stop.as_bytes()));
        here.max_by_key(|stop| stop.len()).cloned()
    }

    /// Gives out the first `len` bytes; a match drops the rest, otherwise it stays held.
    fn release(&mut self, len: usize, matched: Option<String>) -> StopOutput {
        let rest = self.held.split_off(len);
        let text = std::mem::take(&mut self.held);
        match &matched {
            None => self.held = rest,
            Some(_) => self.dropped_bytes = rest.len(),
        }
        self.matched.clone_from(&matched);
        StopOutput { text, matched }
    }
}

enum Decision {
    /// No stop string begins anywhere in the held text.
    Nothing,
    /// A stop string may begin at this byte.
    Undecided { at: usize },
    /// `stop` begins at this byte, and no longer one does.
    Match { at: usize, stop: String },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a search of the whole text gives.
    fn search(text: &str, stops: &[String]) -> (String, Option<String>) {
        let stops = || stops.iter().filter(|stop| !stop.is_empty());
        let first = stops().filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
        match first.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len())) {
            Some((at, stop)) => (text[..at].to_owned(), Some(stop.clone())),
            None => (text.to_owned(), None),
        }
    }

    /// Feeds `pieces` as a row would, until a match, and then finishes.
    fn stream(pieces: &[String], stops: &[String]) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.to_vec());
        let (mut shown, mut fed_bytes) = (String::new(), 0);
        for piece in pieces {
            let output = matcher.push(piece);
            shown.push_str(&output.text);
            fed_bytes += piece.len();
            assert_eq!(shown.len() + matcher.held_bytes(), fed_bytes);
            assert_eq!(output.matched.as_deref(), matcher.matched());
            if output.matched.is_some() {
                break;
            }
        }
        shown.push_str(&matcher.finish());
        assert_eq!(shown.len() + matcher.held_bytes(), fed_bytes);
        (shown, matcher.matched().map(str::to_owned))
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_stop_string_that_spans_pieces_never_shows() {
        let mut matcher = StopMatcher::new(strings(&["</end>"]));
        assert_eq!(matcher.push("one <").text, "one ");
        assert_eq!(matcher.push("/e").text, "");
        let last = matcher.push("nd> two");
        assert_eq!(last, StopOutput { text: String::new(), matched: Some("</end>".to_owned()) });
        assert_eq!(matcher.push("three"), last);
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn text_that_only_looked_like_a_stop_string_shows_in_full() {
        let mut matcher = StopMatcher::new(strings(&["</end>"]));
        assert_eq!(matcher.push("a </e").text, "a ");
        assert_eq!(matcher.push("lse> b").text, "</else> b");
        assert_eq!(matcher.push(" <").text, " ");
        assert_eq!(matcher.finish(), "<");
    }

    #[test]
    fn without_stop_strings_nothing_is_held() {
        let mut matcher = StopMatcher::new(strings(&["", ""]));
        assert_eq!(matcher.push("text").text, "text");
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn a_held_stop_string_counts_when_the_text_ends() {
        let mut matcher = StopMatcher::new(strings(&["ab", "abc"]));
        assert_eq!(matcher.push("xab").text, "x");
        assert_eq!(matcher.matched(), None);
        assert_eq!(matcher.finish(), "");
        assert_eq!(matcher.matched(), Some("ab"));
    }

    #[test]
    fn the_longest_stop_string_at_the_earliest_place_matches() {
        let stops = strings(&["b", "abc", "ab"]);
        assert_eq!(stream(&strings(&["a", "b", "d"]), &stops), (String::new(), Some("ab".into())));
        assert_eq!(stream(&strings(&["a", "b", "c"]), &stops), (String::new(), Some("abc".into())));
        assert_eq!(stream(&strings(&["aab"]), &stops), ("a".to_owned(), Some("ab".into())));
    }

    proptest! {
        #[test]
        fn any_split_of_any_text_equals_a_search_of_the_whole(
            pieces in prop::collection::vec("[ab]{0,4}", 0..12),
            stops in prop::collection::vec("[ab]{0,5}", 0..4),
        ) {
            prop_assert_eq!(stream(&pieces, &stops), search(&pieces.concat(), &stops));
        }

        #[test]
        fn characters_of_several_bytes_change_nothing(
            pieces in prop::collection::vec("[aéß€😀]{0,3}", 0..10),
            stops in prop::collection::vec("[aéß€😀]{1,3}", 0..4),
        ) {
            prop_assert_eq!(stream(&pieces, &stops), search(&pieces.concat(), &stops));
        }

        #[test]
        fn no_more_is_held_than_the_longest_stop_string(
            pieces in prop::collection::vec("[ab]{0,4}", 0..12),
            stops in prop::collection::vec("[ab]{1,5}", 1..4),
        ) {
            let longest = stops.iter().map(String::len).max().unwrap();
            let mut matcher = StopMatcher::new(stops);
            for piece in pieces {
                matcher.push(&piece);
                prop_assert!(matcher.held.len() < longest);
            }
        }
    }
}
