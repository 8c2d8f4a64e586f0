//! Calls written as a head with the name, and the arguments as a JSON object.

use super::arguments::Arguments;
use super::loose_json::Notation;
use super::writer::Writer;
use super::{
    HEAD_BYTES_MAX, Match, Place, Step, begins_with, begins_with_any, is_name, skip_spaces, up_to,
};
use crate::output::parser::TextEnd;

/// The markers of a family.
#[derive(Debug)]
pub(in crate::output) struct HeaderStyle {
    /// What begins a call; empty when the head does.
    pub(in crate::output) call_open: &'static str,
    /// What ends the head.
    pub(in crate::output) head_end: &'static str,
    /// What closes a call; empty when nothing does.
    pub(in crate::output) call_close: &'static str,
    /// What closes the block of calls; empty when nothing does.
    pub(in crate::output) section_close: &'static str,
    pub(in crate::output) head: HeadStyle,
}

/// What a head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::output) enum HeadStyle {
    /// `functions.NAME:COUNT`, which is the call's id as well: Kimi K2.
    Counted,
    /// `NAME`, or a kind of call while the name comes on a line of its own after the head: DeepSeek.
    NameOrKind,
    /// `NAME`, perhaps with an id, and perhaps nothing but the arguments' brace after it: Mistral.
    NameAndId { id: &'static str },
}

/// Reads one block of calls.
#[derive(Debug, Clone)]
pub(in crate::output) struct HeaderCalls {
    style: &'static HeaderStyle,
    at: Place<At>,
}

#[derive(Debug, Clone)]
enum At {
    /// A call.
    Section,
    Head,
    /// After the head of a call of this name and id.
    Lead(String, Option<String>),
    Arguments(Arguments),
    /// After the arguments.
    Tail,
    /// After a call.
    After,
    Finished,
}

impl HeaderCalls {
    pub(in crate::output) fn new(style: &'static HeaderStyle) -> Self {
        Self { style, at: Place(At::Section) }
    }

    pub(super) fn step(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        match self.at.leave(At::Finished) {
            At::Section => self.at.pass(self.style.call_open, (At::Section, At::Head), rest, end),
            At::Head => self.head(rest, end),
            At::Lead(name, id) => self.lead(name, id, rest, end, writer),
            At::Arguments(arguments) => self.arguments(arguments, rest, end, writer),
            At::Tail => self.tail(rest, end),
            At::After => self.after(rest, end),
            At::Finished => Step::Done,
        }
    }

    fn head(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let marked = up_to(rest, self.style.head_end, end.is_some());
        // A brace before the marker begins the arguments: the marker was left out.
        let brace =
            rest.find('{').filter(|_| matches!(self.style.head, HeadStyle::NameAndId { .. }));
        let (head, bytes) = match (marked, brace) {
            (Ok(head), None) => (head, head.len() + self.style.head_end.len()),
            (Ok(head), Some(at)) if head.len() < at => {
                (head, head.len() + self.style.head_end.len())
            }
            (_, Some(at)) if at <= HEAD_BYTES_MAX => (&rest[..at], at),
            (Err(Step::Wait), _) => return self.at.wait(At::Head, end),
            (_, _) => return Step::Broken,
        };
        let (name, id) = self.read_head(head.trim());
        if is_name(&name) { self.at.go(At::Lead(name, id), bytes) } else { Step::Broken }
    }

    fn read_head(&self, head: &str) -> (String, Option<String>) {
        match self.style.head {
            HeadStyle::Counted => {
                let name = head.strip_prefix("functions.").unwrap_or(head);
                let counted =
                    name.rsplit_once(':').filter(|(_, count)| count.parse::<u64>().is_ok());
                match counted {
                    Some((name, _)) => (name.to_owned(), Some(head.to_owned())),
                    None => (name.to_owned(), None),
                }
            }
            HeadStyle::NameOrKind => (head.to_owned(), None),
            HeadStyle::NameAndId { id } => match head.split_once(id) {
                Some((name, id)) => (name.trim().to_owned(), Some(id.trim().to_owned())),
                None => (head.to_owned(), None),
            },
        }
    }

    fn lead(
        &mut self,
        name: String,
        id: Option<String>,
        rest: &str,
        end: Option<TextEnd>,
        writer: &mut Writer,
    ) -> Step {
        let (spaces, body) = skip_spaces(rest);
        if body.is_empty() {
            return self.at.wait(At::Lead(name, id), end);
        }
        if body.starts_with('{') {
            if !writer.start(&name, id, false) {
                return Step::Broken;
            }
            return self.at.go(At::Arguments(Arguments::new(Notation::Json)), spaces);
        }
        if self.style.head != HeadStyle::NameOrKind {
            return Step::Broken;
        }
        // What was read is the kind of call: the name fills a line, and a code fence may follow.
        match up_to(body, "\n", end.is_some()) {
            Ok(line) if line.starts_with("```") => {
                self.at.go(At::Lead(name, id), spaces + line.len())
            }
            Ok(line) if is_name(line.trim()) => {
                self.at.go(At::Lead(line.trim().to_owned(), id), spaces + line.len())
            }
            Ok(_) => Step::Broken,
            Err(Step::Wait) => self.at.wait(At::Lead(name, id), end),
            Err(step) => step,
        }
    }

    fn arguments(
        &mut self,
        mut arguments: Arguments,
        rest: &str,
        end: Option<TextEnd>,
        writer: &mut Writer,
    ) -> Step {
        if arguments.is_done() {
            return self.at.go(At::Tail, 0);
        }
        let style = self.style;
        let closers = [style.call_close, style.section_close, style.call_open];
        let closers: Vec<&str> = closers.into_iter().filter(|marker| !marker.is_empty()).collect();
        let step = arguments.step(rest, &closers, end, writer);
        self.at = Place(At::Arguments(arguments));
        if step == Step::Done { self.at.go(At::Tail, 0) } else { step }
    }

    /// The closing of a code fence and of the call, as far as they come.
    fn tail(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match begins_with_any(rest, &["```", self.style.call_close], end.is_some()) {
            Ok(Some(0)) => self.at.go(At::Tail, spaces + 3),
            Ok(Some(_)) => self.at.go(At::After, spaces + self.style.call_close.len()),
            Ok(None) => self.at.go(At::After, 0),
            Err(()) => self.at.wait(At::Tail, end),
        }
    }

    fn after(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let style = self.style;
        let (spaces, rest) = skip_spaces(rest);
        match begins_with_any(rest, &[style.call_open, style.section_close], end.is_some()) {
            Ok(Some(0)) => return self.at.go(At::Head, spaces + style.call_open.len()),
            Ok(Some(_)) => return self.at.go(At::Finished, spaces + style.section_close.len()),
            Err(()) => return self.at.wait(At::After, end),
            Ok(None) => {}
        }
        if !style.call_open.is_empty() {
            return Step::Done;
        }
        match another_head(rest, style.head_end, end) {
            Match::Yes => self.at.go(At::Head, spaces),
            Match::Maybe => self.at.wait(At::After, end),
            Match::No => Step::Done,
        }
    }
}

/// Whether a name and the end of a head follow a call, where nothing else begins one.
fn another_head(rest: &str, head_end: &str, end: Option<TextEnd>) -> Match {
    let names = |next: char| next.is_alphanumeric() || matches!(next, '_' | '-' | '.');
    let len = rest.find(|next| !names(next)).unwrap_or(rest.len());
    let head = &rest[len..];
    match (len, head.is_empty()) {
        (HEAD_BYTES_MAX.., _) => Match::No,
        (_, true) if end.is_some() => Match::No,
        (_, true) => Match::Maybe,
        (0, false) => Match::No,
        (_, false) => begins_with(head, head_end, end.is_some()),
    }
}
