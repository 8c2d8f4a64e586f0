//! The text of one kind, of which markup takes the spaces around it.
//!
//! Spaces at the end of a text are held back until more text follows. Those that touch markup belong
//! to it: they show only between two texts that were said.

/// Passes on text and holds spaces.
#[derive(Debug, Clone, Default)]
pub(super) struct Flow {
    spaces: String,
    /// Whether any text was passed on.
    said: bool,
    /// Whether markup was the last thing that came before or among the held spaces.
    after_markup: bool,
    /// What stands between two texts around markup that have fewer spaces between them.
    separator: &'static str,
}

impl Flow {
    /// Bytes of the spaces at the end that are held back; those beside markup are on their way no longer.
    pub(super) fn held_bytes(&self) -> usize {
        if self.after_markup { 0 } else { self.spaces.len() }
    }

    /// A flow whose texts around markup stand apart by `separator` at least.
    pub(super) fn separated_by(separator: &'static str) -> Self {
        Self { separator, ..Self::default() }
    }

    /// The same flow, with or without markup before its beginning.
    pub(super) fn after_markup(self, after_markup: bool) -> Self {
        Self { after_markup, ..self }
    }

    /// Takes text and returns what can be said of it, possibly nothing.
    pub(super) fn push(&mut self, text: &str) -> String {
        let end = text.trim_ascii_end().len();
        let (said, spaces) = text.split_at(end);
        if said.is_empty() {
            self.spaces.push_str(spaces);
            return String::new();
        }
        let begin = said.len() - said.trim_ascii_start().len();
        self.spaces.push_str(&said[..begin]);
        let before = std::mem::replace(&mut self.spaces, spaces.to_owned());
        let after_markup = std::mem::take(&mut self.after_markup);
        let before = match (after_markup, std::mem::replace(&mut self.said, true)) {
            (true, false) => "",
            (true, true) if before.len() < self.separator.len() => self.separator,
            _ => &before,
        };
        format!("{before}{}", &said[begin..])
    }

    /// Markup came.
    pub(super) fn markup(&mut self) {
        self.after_markup = true;
    }

    /// The text ended: returns the spaces that belong to it.
    pub(super) fn finish(&mut self) -> String {
        let spaces = std::mem::take(&mut self.spaces);
        if self.after_markup { String::new() } else { spaces }
    }

    /// Whether any text was passed on.
    pub(super) fn has_said(&self) -> bool {
        self.said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_show_between_texts_and_not_beside_markup() {
        let mut flow = Flow::separated_by("--");
        flow.markup();
        assert_eq!(flow.push("\n a b "), "a b");
        assert_eq!(flow.push("\n"), "");
        assert_eq!(flow.push("c"), " \nc");
        flow.markup();
        assert_eq!(flow.push("d "), "--d");
        flow.markup();
        assert_eq!(flow.push("\te\n"), " \te");
        assert_eq!(flow.finish(), "\n");
        flow.push("\n");
        flow.markup();
        assert_eq!(flow.finish(), "");
    }

    #[test]
    fn without_markup_every_space_shows() {
        let mut flow = Flow::default();
        assert_eq!(flow.push("  "), "");
        assert_eq!(flow.push(" a "), "   a");
        assert_eq!(flow.finish(), " ");
    }
}
