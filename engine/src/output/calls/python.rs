//! Calls written as Python: `[name(key="value", …), …]`.

use super::loose_json::{LooseJson, Progress};
use super::writer::Writer;
use super::{HEAD_BYTES_MAX, Match, Place, Step, begins_with, is_name, skip_spaces};
use crate::output::parser::TextEnd;

/// How a family writes them.
#[derive(Debug)]
pub(in crate::output) struct PythonStyle {
    /// What closes the markup; empty when nothing does.
    pub(in crate::output) close: &'static str,
    /// Whether nothing opened the markup, so that only a list of calls of known tools counts.
    pub(in crate::output) bare: bool,
    /// What may stand between name and arguments, and is no part of the name: Llama's `.call`.
    pub(in crate::output) suffix: &'static str,
}

/// Reads a list of calls, or calls line by line.
#[derive(Debug, Clone)]
pub(in crate::output) struct PythonCalls {
    style: &'static PythonStyle,
    in_list: bool,
    at: Place<At>,
}

#[derive(Debug, Clone)]
enum At {
    Start,
    Name,
    Arguments(LooseJson),
    After,
    Finished,
}

impl PythonCalls {
    pub(in crate::output) fn new(style: &'static PythonStyle) -> Self {
        Self { style, in_list: false, at: Place(At::Start) }
    }

    pub(super) fn step(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        match self.at.leave(At::Finished) {
            At::Start => self.start(rest, end),
            At::Name => self.name(rest, end, writer),
            At::Arguments(reader) => self.arguments(reader, rest, end, writer),
            At::After => self.after(rest, end),
            At::Finished => Step::Done,
        }
    }

    fn start(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match rest.chars().next() {
            None => self.at.wait(At::Start, end),
            Some('[') => {
                self.in_list = true;
                self.at.go(At::Name, spaces + 1)
            }
            Some(_) if self.style.bare => Step::Broken,
            Some(_) => self.at.go(At::Name, spaces),
        }
    }

    fn name(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        let Some(len) = rest.find(|next| !is_part_of_name(next)) else {
            let waits = rest.len() <= HEAD_BYTES_MAX;
            return if waits { self.at.wait(At::Name, end) } else { Step::Broken };
        };
        let name = &rest[..len];
        match begins_keywords(&rest[len..], end.is_some()) {
            Match::Yes if is_name(name) => {}
            Match::Maybe if is_name(name) => return self.at.wait(At::Name, end),
            _ => return Step::Broken,
        }
        let known = |name: &str| writer.tool(name).is_some();
        let suffix = Some(self.style.suffix).filter(|suffix| !suffix.is_empty());
        let short = suffix.and_then(|suffix| name.strip_suffix(suffix));
        let name = short.filter(|short| !known(name) && !short.is_empty()).unwrap_or(name);
        if !writer.start(name, None, self.style.bare) {
            return Step::Broken;
        }
        let mut json = String::new();
        let reader = LooseJson::keywords(&mut json);
        writer.arguments(&json);
        self.at.go(At::Arguments(reader), spaces + len + 1)
    }

    fn arguments(
        &mut self,
        mut reader: LooseJson,
        rest: &str,
        end: Option<TextEnd>,
        writer: &mut Writer,
    ) -> Step {
        let mut json = String::new();
        let (taken, progress) = reader.read(rest, end.is_some(), &mut json);
        writer.arguments(&json);
        match progress {
            Progress::Done => {
                writer.end();
                self.at.go(At::After, taken)
            }
            _ if taken > 0 => self.at.go(At::Arguments(reader), taken),
            Progress::More => self.at.wait(At::Arguments(reader), end),
            Progress::Unclosed | Progress::Broken => Step::Broken,
        }
    }

    fn after(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        let close = self.style.close;
        let closes =
            if close.is_empty() { Match::No } else { begins_with(rest, close, end.is_some()) };
        match (closes, rest.chars().next()) {
            (Match::Yes, _) => self.at.go(At::Finished, spaces + close.len()),
            (Match::No, Some(',')) if self.in_list => self.at.go(At::Name, spaces + 1),
            (Match::No, Some(']')) if self.in_list => {
                self.in_list = false;
                self.at.go(At::After, spaces + 1)
            }
            // Without a list, what a closing marker is still to come for are calls, one a line.
            (Match::No, Some(_)) if !self.in_list && !close.is_empty() => {
                self.another(rest, spaces, end)
            }
            (Match::No, Some(_)) => Step::Done,
            (Match::Maybe, _) | (Match::No, None) => {
                self.at = Place(At::After);
                if end.is_some() { Step::Done } else { Step::Wait }
            }
        }
    }

    fn another(&mut self, rest: &str, spaces: usize, end: Option<TextEnd>) -> Step {
        match rest.find(|next| !is_part_of_name(next)) {
            Some(len) if len > 0 && rest[len..].starts_with('(') => self.at.go(At::Name, spaces),
            None if end.is_none() && rest.len() <= HEAD_BYTES_MAX => self.at.wait(At::After, end),
            Some(_) | None => Step::Done,
        }
    }
}

fn is_part_of_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '.' | '-')
}

/// Whether a bracket opens keyword arguments, or none at all.
fn begins_keywords(rest: &str, last: bool) -> Match {
    let Some(rest) = rest.strip_prefix('(') else {
        return Match::No;
    };
    let (_, rest) = skip_spaces(rest);
    let len = rest.find(|next| !is_part_of_name(next)).unwrap_or(rest.len());
    let (_, after) = skip_spaces(&rest[len..]);
    let next = after.chars().next();
    match (rest.chars().next(), next) {
        (Some(')'), _) => Match::Yes,
        (Some(first), Some('='))
            if (1..=HEAD_BYTES_MAX).contains(&len) && !first.is_ascii_digit() =>
        {
            Match::Yes
        }
        (_, None) if !last && len <= HEAD_BYTES_MAX => Match::Maybe,
        _ => Match::No,
    }
}
