//! Calls written as tags around names and values.
//!
//! Values are plain text between two tags, typed by the tool's schema; those of strings stream. A
//! value ends at its closing tag only if markup follows, so a value may speak of tags; and it ends
//! without one where a call can only have ended or another known argument begins on a line of its own.

use super::arguments::Arguments;
use super::loose_json::Notation;
use super::text::{push_escaped, quoted};
use super::typed::Typing;
use super::writer::Writer;
use super::{
    HEAD_BYTES_MAX, Match, Place, Step, begins_with, begins_with_any, is_name, skip_spaces, up_to,
};
use crate::output::markers::{Found, find};
use crate::output::parser::TextEnd;

/// The tags of a family.
#[derive(Debug)]
pub(in crate::output) struct TagStyle {
    /// What closes the block of calls; empty when there is none.
    pub(in crate::output) section_close: &'static str,
    /// What begins a call inside the block; empty when the block is one call.
    pub(in crate::output) call_open: &'static str,
    pub(in crate::output) name: NameStyle,
    pub(in crate::output) call_close: &'static str,
    pub(in crate::output) key_open: &'static str,
    /// Ends the key.
    pub(in crate::output) key_end: &'static str,
    /// Begins the value after the key; empty when the key's end does.
    pub(in crate::output) value_open: &'static str,
    pub(in crate::output) value_close: &'static str,
    pub(in crate::output) trim: Trim,
    /// Begins a block that holds all arguments as one JSON object, and its end; empty for none.
    pub(in crate::output) json: (&'static str, &'static str),
    /// Whether values of no known type are read as JSON if they can be.
    pub(in crate::output) guess: bool,
    /// Whether nothing need have opened the markup, so that only known tools are called.
    pub(in crate::output) bare: bool,
}

/// Where the names of calls and arguments stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::output) enum NameStyle {
    /// They are all of the head: `<function=NAME>`.
    Plain { end: &'static str },
    /// They are attributes of these names: `<invoke name="NAME">`.
    Attributes { call: &'static str, key: &'static str, end: &'static str },
    /// The name of a call ends where its arguments begin.
    Bare,
}

/// Which spaces around a value are not its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::output) enum Trim {
    Nothing,
    /// One line break at either side.
    Line,
    /// All, except inside `<![CDATA[`…`]]>`.
    All,
}

/// Reads one block of calls.
#[derive(Debug, Clone)]
pub(in crate::output) struct TagCalls {
    style: &'static TagStyle,
    at: Place<At>,
    name: String,
    /// Arguments of the call so far.
    keys: Vec<String>,
}

#[derive(Debug, Clone)]
enum At {
    /// A call or the end of the block.
    Section,
    CallHead,
    /// Inside a call: an argument, or its end.
    Call,
    KeyHead,
    ValueOpen(Value),
    Value(Value),
    Object {
        arguments: Arguments,
        close: &'static str,
    },
    ObjectClose(&'static str),
    /// After a call.
    After,
    Finished,
}

/// One argument that is being read.
#[derive(Debug, Clone)]
struct Value {
    typing: Typing,
    /// The value as far as it was not told.
    raw: String,
    begun: bool,
    /// Whether what was taken of it ends in a line break.
    line_begins: bool,
    /// Whether its text is told as it comes.
    streams: bool,
    cdata: bool,
}

/// What a value's text holds.
enum Piece {
    /// So many bytes of value.
    Text(usize),
    /// So many bytes of value, so many of markup, and the value has ended.
    End(usize, usize),
    Wait,
}

impl TagCalls {
    pub(in crate::output) fn new(style: &'static TagStyle) -> Self {
        Self { style, at: Place(At::Section), name: String::new(), keys: Vec::new() }
    }

    pub(super) fn step(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        match self.at.leave(At::Finished) {
            At::Section => {
                self.at.pass(self.style.call_open, (At::Section, At::CallHead), rest, end)
            }
            At::CallHead => self.call_head(rest, end, writer),
            At::Call => self.call(rest, end, writer),
            At::KeyHead => self.key_head(rest, end, writer),
            At::ValueOpen(value) => self.value_open(value, rest, end),
            At::Value(value) => self.value(value, rest, end, writer),
            At::Object { arguments, close } => self.object(arguments, close, rest, end, writer),
            At::ObjectClose(close) => self.object_close(close, rest, end),
            At::After => self.after(rest, end),
            At::Finished => Step::Done,
        }
    }

    fn call_head(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        let head = match self.style.name {
            NameStyle::Bare => self.bare_name(rest, end.is_some()),
            NameStyle::Plain { end: close } => up_to(rest, close, end.is_some())
                .map(|head| (unquoted(head), head.len() + close.len())),
            NameStyle::Attributes { call, end: close, .. } => up_to(rest, close, end.is_some())
                .map(|head| (attribute(head, call).unwrap_or_default(), head.len() + close.len())),
        };
        match head {
            Ok((name, bytes)) if is_name(&name) => {
                if !writer.start(&name, None, self.style.bare) {
                    return Step::Broken;
                }
                self.name = name;
                self.keys.clear();
                self.at.go(At::Call, bytes)
            }
            Ok(_) => Step::Broken,
            Err(Step::Wait) => self.at.wait(At::CallHead, end),
            Err(step) => step,
        }
    }

    fn call(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        let style = self.style;
        let (spaces, rest) = skip_spaces(rest);
        if rest.is_empty() {
            return match end {
                Some(TextEnd::Complete) => self.end_call(At::After, spaces, writer),
                _ => self.at.wait(At::Call, end),
            };
        }
        if self.keys.is_empty() && rest.starts_with('{') {
            let arguments = Arguments::new(Notation::Json);
            return self.at.go(At::Object { arguments, close: style.call_close }, spaces);
        }
        let tags = [style.key_open, style.call_close, style.section_close, style.json.0];
        match begins_with_any(rest, &tags, end.is_some()) {
            Err(()) => self.at.wait(At::Call, end),
            Ok(Some(0)) => self.at.go(At::KeyHead, spaces + style.key_open.len()),
            Ok(Some(1)) => self.end_call(At::After, spaces + style.call_close.len(), writer),
            Ok(Some(2)) => self.end_call(At::After, spaces, writer),
            Ok(Some(_)) if self.keys.is_empty() => {
                match up_to(rest, self.head_end(), end.is_some()) {
                    Ok(head) => {
                        let arguments = Arguments::new(Notation::Json);
                        let bytes = spaces + head.len() + self.head_end().len();
                        self.at.go(At::Object { arguments, close: style.json.1 }, bytes)
                    }
                    Err(Step::Wait) => self.at.wait(At::Call, end),
                    Err(step) => step,
                }
            }
            Ok(_) => Step::Broken,
        }
    }

    /// A name before a space or the call's markup, and its length.
    fn bare_name(&self, rest: &str, last: bool) -> Result<(String, usize), Step> {
        let (spaces, rest) = skip_spaces(rest);
        let stops = |next: char| next.is_whitespace() || matches!(next, '<' | '{');
        let len = rest.find(stops).unwrap_or(rest.len());
        if len > HEAD_BYTES_MAX {
            return Err(Step::Broken);
        }
        let (_, markup) = skip_spaces(&rest[len..]);
        let follow = [self.style.key_open, self.style.call_close, "{"];
        match begins_with_any(markup, &follow, last) {
            Ok(Some(_)) => Ok((rest[..len].to_owned(), spaces + len)),
            Ok(None) => Err(Step::Broken),
            Err(()) => Err(Step::Wait),
        }
    }

    fn end_call(&mut self, at: At, bytes: usize, writer: &mut Writer) -> Step {
        writer.arguments(if self.keys.is_empty() { "{}" } else { "}" });
        writer.end();
        self.at.go(at, bytes)
    }

    fn key_head(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        let head = match up_to(rest, self.style.key_end, end.is_some()) {
            Ok(head) => head,
            Err(Step::Wait) => return self.at.wait(At::KeyHead, end),
            Err(step) => return step,
        };
        let Some(key) = self.key(head) else {
            return Step::Broken;
        };
        let typing = match attribute(head, "string").or_else(|| attribute(head, "type")).as_deref()
        {
            Some("true" | "string") => Typing::Text,
            Some(_) => Typing::of(writer.tool(&self.name), &key, true),
            None => Typing::of(writer.tool(&self.name), &key, self.style.guess),
        };
        writer.arguments(if self.keys.is_empty() { "{" } else { ", " });
        writer.arguments(&quoted(&key));
        writer.arguments(": ");
        let value = Value {
            typing,
            raw: String::new(),
            begun: false,
            line_begins: false,
            streams: false,
            cdata: false,
        };
        let bytes = head.len() + self.style.key_end.len();
        self.keys.push(key);
        let opened = self.style.value_open.is_empty();
        self.at.go(if opened { At::Value(value) } else { At::ValueOpen(value) }, bytes)
    }

    fn key(&self, head: &str) -> Option<String> {
        let key = match self.style.name {
            NameStyle::Attributes { key, .. } => attribute(head, key)?,
            NameStyle::Plain { .. } | NameStyle::Bare => unquoted(head),
        };
        (!key.is_empty()).then_some(key)
    }

    fn value_open(&mut self, value: Value, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match begins_with(rest, self.style.value_open, end.is_some()) {
            Match::Yes => self.at.go(At::Value(value), spaces + self.style.value_open.len()),
            Match::Maybe => self.at.wait(At::ValueOpen(value), end),
            Match::No => Step::Broken,
        }
    }

    fn value(
        &mut self,
        mut value: Value,
        rest: &str,
        end: Option<TextEnd>,
        writer: &mut Writer,
    ) -> Step {
        if !value.begun {
            match self.begin_value(&mut value, rest, end) {
                Some(bytes) => return self.at.go(At::Value(value), bytes),
                None => return self.at.wait(At::Value(value), end),
            }
        }
        let piece = if value.cdata {
            self.cdata_piece(rest, end)
        } else {
            self.value_piece(&value, rest, end, writer)
        };
        match piece {
            Piece::Text(0) | Piece::Wait => self.at.wait(At::Value(value), end),
            Piece::Text(bytes) => {
                value.push(&rest[..bytes], self.style.trim, writer);
                self.at.go(At::Value(value), bytes)
            }
            Piece::End(bytes, markup) => {
                value.push(&rest[..bytes], self.style.trim, writer);
                value.finish(self.style.trim, writer);
                self.at.go(At::Call, bytes + markup)
            }
        }
    }

    /// Skips what comes before the value, once that is known.
    fn begin_value(&self, value: &mut Value, rest: &str, end: Option<TextEnd>) -> Option<usize> {
        const CDATA: &str = "<![CDATA[";
        let last = end.is_some();
        let skipped = match self.style.trim {
            Trim::Nothing => 0,
            Trim::Line if rest.starts_with("\r\n") => 2,
            Trim::Line if rest.starts_with('\n') => 1,
            Trim::Line => 0,
            Trim::All => {
                let (spaces, rest) = skip_spaces(rest);
                match begins_with(rest, CDATA, last) {
                    Match::Maybe => return None,
                    Match::Yes => {
                        value.cdata = true;
                        spaces + CDATA.len()
                    }
                    Match::No => spaces,
                }
            }
        };
        let decided = last || !matches!(rest, "" | "\r");
        value.begun = decided;
        decided.then_some(skipped)
    }

    fn value_piece(
        &self,
        value: &Value,
        rest: &str,
        end: Option<TextEnd>,
        writer: &Writer,
    ) -> Piece {
        let style = self.style;
        let last = end.is_some();
        let tags: &[(&'static str, Tag)] = &[
            (style.value_close, Tag::Value),
            (style.call_close, Tag::Call),
            (style.key_open, Tag::Key),
        ];
        let (at, len, tag) = match find(rest, tags, last) {
            Found::Nothing { safe } => return Piece::Text(safe),
            Found::Marker { at, len, meaning } => (at, len, meaning),
        };
        let after = &rest[at + len..];
        let ends = match tag {
            Tag::Value => self.markup_follows(after, last),
            Tag::Call => self.block_ends(after, last),
            Tag::Key if at == 0 && !value.line_begins => Match::No,
            Tag::Key => self.key_follows(&rest[..at], after, last, writer),
        };
        match ends {
            Match::Yes => Piece::End(at, if tag == Tag::Value { len } else { 0 }),
            Match::No => Piece::Text(at + len),
            Match::Maybe if at > 0 => Piece::Text(at),
            Match::Maybe => Piece::Wait,
        }
    }

    /// Whether what comes after the tag that closes a value shows that it did.
    fn markup_follows(&self, after: &str, last: bool) -> Match {
        let style = self.style;
        let (_, after) = skip_spaces(after);
        if after.is_empty() {
            return if last { Match::Yes } else { Match::Maybe };
        }
        let tags = [style.key_open, style.call_close, style.section_close, style.call_open];
        match begins_with_any(after, &tags, last) {
            Ok(Some(_)) => Match::Yes,
            Ok(None) => Match::No,
            Err(()) => Match::Maybe,
        }
    }

    /// Whether a call's closing tag, where none of its value's was, ends the whole block.
    fn block_ends(&self, after: &str, last: bool) -> Match {
        let (_, after) = skip_spaces(after);
        match (after.is_empty(), self.style.section_close) {
            (true, _) if last => Match::Yes,
            (true, _) => Match::Maybe,
            (false, "") => begins_with(after, self.style.call_open, last),
            (false, close) => begins_with(after, close, last),
        }
    }

    /// Whether a key's opening tag, where the value's closing one is missing, begins an argument that
    /// the tool has and the call has not yet.
    fn key_follows(&self, before: &str, after: &str, last: bool, writer: &Writer) -> Match {
        if !before.is_empty() && !before.ends_with('\n') {
            return Match::No;
        }
        let head = match up_to(after, self.style.key_end, last) {
            Ok(head) => head,
            Err(Step::Wait) if after.len() <= HEAD_BYTES_MAX => return Match::Maybe,
            Err(_) => return Match::No,
        };
        let known = |key: &String| {
            let tool = writer.tool(&self.name);
            tool.is_some_and(|tool| tool.argument_schema(key).is_some()) && !self.keys.contains(key)
        };
        if self.key(head).as_ref().is_some_and(known) { Match::Yes } else { Match::No }
    }

    fn cdata_piece(&self, rest: &str, end: Option<TextEnd>) -> Piece {
        const CLOSE: &str = "]]>";
        const SPLIT: &str = "]]><![CDATA[";
        let last = end.is_some();
        let (at, len) = match find(rest, &[(CLOSE, ()), (SPLIT, ())], last) {
            Found::Nothing { safe } => return Piece::Text(safe),
            Found::Marker { at, len, .. } => (at, len),
        };
        if at > 0 {
            return Piece::Text(at);
        }
        let after = &rest[len..];
        let (spaces, tag) = skip_spaces(after);
        match begins_with(tag, self.style.value_close, last) {
            Match::Yes if len == CLOSE.len() => {
                Piece::End(0, len + spaces + self.style.value_close.len())
            }
            Match::Maybe => Piece::Wait,
            Match::Yes | Match::No => Piece::Text(len),
        }
    }

    fn object(
        &mut self,
        mut arguments: Arguments,
        close: &'static str,
        rest: &str,
        end: Option<TextEnd>,
        writer: &mut Writer,
    ) -> Step {
        if arguments.is_done() {
            return self.at.go(At::ObjectClose(close), 0);
        }
        let step = arguments.step(rest, &[close], end, writer);
        self.at = Place(At::Object { arguments, close });
        if step == Step::Done { self.at.go(At::ObjectClose(close), 0) } else { step }
    }

    fn object_close(&mut self, close: &'static str, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, tag) = skip_spaces(rest);
        match begins_with(tag, close, end.is_some()) {
            Match::Yes => {
                // The block of all arguments stands inside the call.
                let inner = close != self.style.call_close;
                let at = if inner { At::ObjectClose(self.style.call_close) } else { At::After };
                self.at.go(at, spaces + close.len())
            }
            Match::Maybe if end.is_none() => self.at.wait(At::ObjectClose(close), end),
            Match::Maybe | Match::No => self.at.go(At::After, 0),
        }
    }

    fn after(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let style = self.style;
        let (spaces, rest) = skip_spaces(rest);
        match begins_with_any(rest, &[style.call_open, style.section_close], end.is_some()) {
            Ok(Some(0)) => self.at.go(At::CallHead, spaces + style.call_open.len()),
            Ok(Some(_)) => self.at.go(At::Finished, spaces + style.section_close.len()),
            Err(()) => self.at.wait(At::After, end),
            Ok(None) => Step::Done,
        }
    }

    fn head_end(&self) -> &'static str {
        match self.style.name {
            NameStyle::Plain { end } | NameStyle::Attributes { end, .. } => end,
            NameStyle::Bare => "",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Value,
    Call,
    Key,
}

impl Value {
    /// Takes more of the value's text and tells what is certain of it.
    fn push(&mut self, text: &str, trim: Trim, writer: &mut Writer) {
        self.raw.push_str(text);
        self.line_begins = text.ends_with('\n');
        if !self.streams {
            if self.raw.is_empty() || !self.typing.is_text(&self.raw) {
                return;
            }
            self.streams = true;
            writer.arguments("\"");
        }
        let keep = match trim {
            _ if self.cdata => 0,
            Trim::Nothing => 0,
            Trim::Line if self.raw.ends_with("\r\n") => 2,
            Trim::Line => usize::from(self.raw.ends_with(['\n', '\r'])),
            Trim::All => self.raw.len() - self.raw.trim_end().len(),
        };
        let kept = self.raw.split_off(self.raw.len() - keep);
        let mut json = String::new();
        push_escaped(&std::mem::replace(&mut self.raw, kept), &mut json);
        writer.arguments(&json);
    }

    /// The value has ended; what is kept of a text is not part of it.
    fn finish(self, trim: Trim, writer: &mut Writer) {
        if self.streams {
            writer.arguments("\"");
            return;
        }
        let raw = match trim {
            _ if self.cdata => self.raw.as_str(),
            Trim::Nothing => self.raw.as_str(),
            Trim::Line => {
                let raw = self.raw.strip_suffix('\n').unwrap_or(&self.raw);
                raw.strip_suffix('\r').unwrap_or(raw)
            }
            Trim::All => self.raw.trim_end(),
        };
        writer.arguments(&self.typing.json(raw));
    }
}

/// `text` without spaces and quotes around it.
fn unquoted(text: &str) -> String {
    let text = text.trim();
    let within = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(text).to_owned()
}

/// The value of the attribute `name` in a tag's head.
fn attribute(head: &str, name: &str) -> Option<String> {
    let mut rest = head;
    loop {
        let at = rest.find(name)?;
        let free = !rest[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let after = rest[at + name.len()..].trim_start();
        match after.strip_prefix('=').filter(|_| free) {
            Some(value) => return attribute_value(value.trim_start()),
            None => rest = &rest[at + name.len()..],
        }
    }
}

fn attribute_value(value: &str) -> Option<String> {
    let quoted = |quote: char| value.strip_prefix(quote)?.split(quote).next();
    let bare = || value.split(char::is_whitespace).next();
    let value = quoted('"').or_else(|| quoted('\'')).or_else(bare)?;
    Some(value.replace("&quot;", "\"").replace("&amp;", "&"))
}
