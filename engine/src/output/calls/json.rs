//! Calls written as JSON objects that hold a name and arguments.
//!
//! `{"name": …, "arguments": {…}}` is the usual form. Keys come in any order, some models say
//! `parameters`, some wrap the two in `"function"`, some write several objects, in a list or behind
//! each other. The arguments stream once the name is known.

use super::arguments::read_on;
use super::loose_json::{LooseJson, Notation, Progress};
use super::writer::Writer;
use super::{Match, Place, Step, begins_with, skip_spaces};
use crate::output::parser::TextEnd;

/// How a family writes such objects.
#[derive(Debug)]
pub(in crate::output) struct JsonStyle {
    /// What closes the markup; empty when nothing does.
    pub(in crate::output) close: &'static str,
    /// Whether nothing opened the markup, so that only a call of a known tool counts as one.
    pub(in crate::output) bare: bool,
}

/// Reads one or more objects.
#[derive(Debug, Clone)]
pub(in crate::output) struct JsonCalls {
    style: &'static JsonStyle,
    in_list: bool,
    at: Place<At>,
    /// Objects that are open inside the call's object.
    depth: usize,
    call: Call,
}

#[derive(Debug, Clone)]
enum At {
    /// An object or a list begins here.
    Start,
    /// Inside an object: a key, or its end.
    Member,
    Key(Reading),
    Colon(Key),
    Value(Key, Reading),
    /// After an object.
    After,
    Finished,
    /// What was taken is no call.
    Refused,
}

/// A value that is being read, and its JSON so far.
#[derive(Debug, Clone)]
struct Reading {
    reader: LooseJson,
    json: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Id,
    Function,
    Arguments,
    Other,
}

/// What is known of one call.
#[derive(Debug, Clone, Default)]
struct Call {
    id: Option<String>,
    name: Option<String>,
    /// Arguments that are not told yet.
    arguments: String,
    /// Whether any arguments were read.
    begun: bool,
    started: bool,
    ended: bool,
}

impl Reading {
    fn new() -> Self {
        Self { reader: LooseJson::value(Notation::Json), json: String::new() }
    }
}

impl Key {
    fn of(json: &str) -> Self {
        match json.trim_matches('"') {
            "name" | "tool_name" => Self::Name,
            "id" | "tool_call_id" => Self::Id,
            "function" => Self::Function,
            "arguments" | "parameters" => Self::Arguments,
            _ => Self::Other,
        }
    }
}

impl JsonCalls {
    pub(in crate::output) fn new(style: &'static JsonStyle) -> Self {
        Self { style, in_list: false, at: Place(At::Start), depth: 0, call: Call::default() }
    }

    pub(super) fn step(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        match self.at.leave(At::Finished) {
            At::Start => self.start(rest, end),
            At::Member => self.member(rest, end, writer),
            At::Key(reading) => self.key(reading, rest, end),
            At::Colon(key) => self.colon(key, rest, end),
            At::Value(Key::Arguments, reading) => self.arguments(reading, rest, end, writer),
            At::Value(key, reading) => self.value(key, reading, rest, end),
            At::After => self.after(rest, end),
            At::Finished => Step::Done,
            At::Refused => Step::Broken,
        }
    }

    fn start(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match rest.chars().next() {
            None => self.at.wait(At::Start, end),
            Some('{') => {
                (self.call, self.depth) = (Call::default(), 0);
                self.at.go(At::Member, spaces + 1)
            }
            Some('[') if !self.in_list => {
                self.in_list = true;
                self.at.go(At::Start, spaces + 1)
            }
            Some(']') if self.in_list && self.call.ended => self.at.go(At::After, spaces),
            Some('`') => match fence(rest, end.is_some()) {
                Some(0) => Step::Broken,
                Some(bytes) => self.at.go(At::Start, spaces + bytes),
                None => self.at.wait(At::Start, end),
            },
            Some(_) => Step::Broken,
        }
    }

    fn member(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        let closes = self.closes(rest, end);
        match rest.chars().next() {
            Some(',') => self.at.go(At::Member, spaces + 1),
            Some('"' | '\'') => self.at.go(At::Key(Reading::new()), spaces),
            Some('}') if self.depth > 0 => {
                self.depth -= 1;
                self.at.go(At::Member, spaces + 1)
            }
            Some('}') => self.end_object(spaces + 1, writer),
            None if end != Some(TextEnd::Complete) => self.at.wait(At::Member, end),
            None => self.end_object(spaces, writer),
            Some(_) if closes == Match::Maybe => self.at.wait(At::Member, end),
            Some(_) if closes == Match::Yes => self.end_object(spaces, writer),
            Some(_) => Step::Broken,
        }
    }

    fn key(&mut self, mut reading: Reading, rest: &str, end: Option<TextEnd>) -> Step {
        let (taken, progress) = reading.reader.read(rest, end.is_some(), &mut reading.json);
        match progress {
            Progress::More if taken == 0 => self.at.wait(At::Key(reading), end),
            Progress::Done => match Key::of(&reading.json) {
                Key::Other if self.style.bare && reading.json != "\"type\"" => {
                    self.at.go(At::Refused, taken)
                }
                key => self.at.go(At::Colon(key), taken),
            },
            _ if taken > 0 => self.at.go(At::Key(reading), taken),
            Progress::More | Progress::Unclosed | Progress::Broken => Step::Broken,
        }
    }

    fn colon(&mut self, key: Key, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match rest.chars().next() {
            Some(':') => self.at.go(At::Value(key, Reading::new()), spaces + 1),
            Some(_) => Step::Broken,
            None => self.at.wait(At::Colon(key), end),
        }
    }

    /// A name, an id, or what means nothing to us.
    fn value(&mut self, key: Key, mut reading: Reading, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, object) = skip_spaces(rest);
        if key == Key::Function && reading.reader.is_untouched() && object.starts_with('{') {
            self.depth += 1;
            return self.at.go(At::Member, spaces + 1);
        }
        let (taken, progress) = reading.reader.read(rest, end.is_some(), &mut reading.json);
        match progress {
            Progress::Done => {}
            _ if taken > 0 => return self.at.go(At::Value(key, reading), taken),
            Progress::More => return self.at.wait(At::Value(key, reading), end),
            Progress::Unclosed | Progress::Broken => return Step::Broken,
        }
        let text = serde_json::from_str::<String>(&reading.json).ok();
        match key {
            Key::Name | Key::Function => match text {
                Some(name) => self.call.name = Some(name),
                None => return self.at.go(At::Refused, taken),
            },
            Key::Id => self.call.id = text,
            Key::Arguments | Key::Other => {}
        }
        self.at.go(At::Member, taken)
    }

    /// Arguments: an object streams, the text of one waits until it is whole.
    fn arguments(
        &mut self,
        mut reading: Reading,
        rest: &str,
        end: Option<TextEnd>,
        writer: &mut Writer,
    ) -> Step {
        let mut json = String::new();
        let read = reading.reader.read(rest, end.is_some(), &mut json);
        let closers = [self.style.close];
        let closers = if self.style.close.is_empty() { &[][..] } else { &closers[..] };
        let step = read_on(&mut reading.reader, read, rest, closers, end, &mut json);
        let done = step == Step::Done;
        self.call.begun |= reading.json.is_empty() && json.starts_with('{');
        if self.call.begun {
            self.call.arguments.push_str(&json);
        } else {
            reading.json.push_str(&json);
        }
        if done && !self.call.begun {
            let Some(object) = text_of_arguments(&reading.json) else {
                return self.at.go(At::Refused, read.0);
            };
            (self.call.arguments, self.call.begun) = (object, true);
        }
        if self.call.begun && !self.call.tell(done, self.style, writer) {
            return self.at.go(At::Refused, read.0);
        }
        match step {
            Step::Done => self.at.go(At::Member, read.0),
            Step::Took(bytes) => self.at.go(At::Value(Key::Arguments, reading), bytes),
            Step::Wait => self.at.wait(At::Value(Key::Arguments, reading), end),
            Step::Broken => Step::Broken,
        }
    }

    /// The call's object ended `bytes` further on.
    fn end_object(&mut self, bytes: usize, writer: &mut Writer) -> Step {
        if !self.call.begun {
            self.call.arguments = "{}".to_owned();
        }
        if self.call.name.is_none() || !self.call.tell(true, self.style, writer) {
            return Step::Broken;
        }
        self.at.go(At::After, bytes)
    }

    fn after(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match self.closes(rest, end) {
            Match::Yes => return self.at.go(At::Finished, spaces + self.style.close.len()),
            Match::Maybe => return self.wait_after(end),
            Match::No => {}
        }
        match rest.chars().next() {
            Some(',') if self.in_list => self.at.go(At::Start, spaces + 1),
            Some(']') if self.in_list => {
                self.in_list = false;
                self.at.go(At::After, spaces + 1)
            }
            Some(';') if self.style.bare => self.at.go(At::Start, spaces + 1),
            Some('{') if !self.in_list => self.at.go(At::Start, spaces),
            // One bracket too many is a usual slip.
            Some('}') => self.at.go(At::After, spaces + 1),
            Some('`') => match fence(rest, end.is_some()) {
                Some(0) => Step::Done,
                Some(bytes) => self.at.go(At::After, spaces + bytes),
                None => self.wait_after(end),
            },
            None => self.wait_after(end),
            Some(_) => Step::Done,
        }
    }

    fn wait_after(&mut self, end: Option<TextEnd>) -> Step {
        self.at = Place(At::After);
        if end.is_some() { Step::Done } else { Step::Wait }
    }

    fn closes(&self, rest: &str, end: Option<TextEnd>) -> Match {
        match self.style.close {
            "" => Match::No,
            close => begins_with(rest, close, end.is_some()),
        }
    }
}

impl Call {
    /// Tells what is known, if the name is; `whole` when that is all. `false` when it is no call.
    fn tell(&mut self, whole: bool, style: &JsonStyle, writer: &mut Writer) -> bool {
        let Some(name) = &self.name else {
            return true;
        };
        if !self.started {
            if !writer.start(name, self.id.take(), style.bare) {
                return false;
            }
            self.started = true;
        }
        writer.arguments(&std::mem::take(&mut self.arguments));
        if whole && !self.ended {
            writer.end();
            self.ended = true;
        }
        true
    }
}

/// The object that a JSON string holds as text; nothing and empty text are no arguments.
fn text_of_arguments(json: &str) -> Option<String> {
    if json == "null" {
        return Some("{}".to_owned());
    }
    let text: String = serde_json::from_str(json).ok()?;
    if text.trim().is_empty() {
        return Some("{}".to_owned());
    }
    let mut object = String::new();
    let mut reader = LooseJson::value(Notation::Json);
    let (taken, progress) = reader.read(&text, true, &mut object);
    let whole = progress == Progress::Done && text[taken..].trim().is_empty();
    (whole && object.starts_with('{')).then_some(object)
}

/// The length of a code fence and its language; 0 when there is none, `None` when it may go on.
fn fence(rest: &str, last: bool) -> Option<usize> {
    match begins_with(rest, "```", last) {
        Match::No => Some(0),
        Match::Maybe => None,
        Match::Yes => {
            let language = &rest[3..];
            let len = language.find(|next: char| !next.is_ascii_alphanumeric());
            if len.is_none() && !last { None } else { Some(3 + len.unwrap_or(language.len())) }
        }
    }
}
