//! Markers in a text of which more may come.

/// What a search for markers found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// No marker begins before byte `safe`; one may begin there.
    Nothing { safe: usize },
    /// A marker of `len` bytes begins at byte `at`.
    Marker { at: usize, len: usize, meaning: T },
}

/// Finds the first marker of `text`, and the longest where several begin. `last` says that no more
/// text comes, so that the beginning of a marker is none.
pub(super) fn find<T: Copy>(text: &str, markers: &[(&'static str, T)], last: bool) -> Found<T> {
    let begins =
        |byte: u8| markers.iter().any(|(marker, _)| marker.as_bytes().first() == Some(&byte));
    for (at, _) in text.bytes().enumerate().filter(|(_, byte)| begins(*byte)) {
        let rest = &text.as_bytes()[at..];
        let may_grow =
            |marker: &str| marker.len() > rest.len() && marker.as_bytes().starts_with(rest);
        if !last && markers.iter().any(|(marker, _)| may_grow(marker)) {
            return Found::Nothing { safe: at };
        }
        let here = markers.iter().filter(|(marker, _)| rest.starts_with(marker.as_bytes()));
        if let Some((marker, meaning)) = here.max_by_key(|(marker, _)| marker.len()) {
            return Found::Marker { at, len: marker.len(), meaning: *meaning };
        }
    }
    Found::Nothing { safe: text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: &[(&str, u8)] = &[("<a>", 1), ("<a>b", 2), ("]", 3)];

    #[test]
    fn the_longest_marker_at_the_first_place_is_found() {
        let check =
            |text, last, expected| assert_eq!(find(text, MARKERS, last), expected, "{text}");
        check("x]<a>", false, Found::Marker { at: 1, len: 1, meaning: 3 });
        check("é<a>bc", false, Found::Marker { at: 2, len: 4, meaning: 2 });
        check("é<a>", false, Found::Nothing { safe: 2 });
        check("é<a>", true, Found::Marker { at: 2, len: 3, meaning: 1 });
        check("a < b <", false, Found::Nothing { safe: 6 });
        check("a < b <", true, Found::Nothing { safe: 7 });
        check("", true, Found::Nothing { safe: 0 });
    }
}
