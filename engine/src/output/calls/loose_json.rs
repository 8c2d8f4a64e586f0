//! Values as models write them, read as they come and written as JSON.
//!
//! Models write JSON, Python literals or a notation of their own, and slip: single quotes, commas
//! before a closing bracket, `True`, line breaks inside strings, bare keys. What is written is one
//! JSON value with `", "` and `": "` between its parts, as Python's `json.dumps` has it, so it is the
//! same however the text was cut. What cannot be a value is reported, never guessed at.

use super::text::{literal, push_escaped, quoted};

/// Deeper values are refused: JSON parsers of clients give up around here.
const DEPTH_MAX: usize = 120;

/// Numbers, names and bare keys are shorter.
const WORD_BYTES_MAX: usize = 400;

/// In which notation the values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notation {
    /// JSON, with the slips above.
    Json,
    /// Python's literals and keyword arguments.
    Python,
    /// Bare keys, bare strings, and strings between two copies of a marker, without escapes.
    Marked(&'static str),
}

/// How far reading came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The text so far may go on to be a value.
    More,
    /// The value is complete; text after it was not taken.
    Done,
    /// What follows is no part of the value, which only lacks closing brackets: see
    /// [`LooseJson::close`].
    Unclosed,
    /// The text is no value.
    Broken,
}

/// Reads one value.
#[derive(Debug, Clone)]
pub(super) struct LooseJson {
    notation: Notation,
    frames: Vec<Frame>,
    state: State,
}

/// A bracket that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Object,
    Array,
    Tuple,
    /// `(key=value, …)`, an object in JSON.
    Keywords,
}

#[derive(Debug, Clone)]
enum State {
    /// A value begins here.
    Value,
    /// An element or the closing bracket; `comma` when an element came before.
    Element {
        comma: bool,
    },
    /// A key was read.
    Colon,
    /// An element was read.
    Comma,
    Text {
        quote: Quote,
        key: bool,
    },
    Word {
        word: String,
        key: bool,
    },
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quote {
    mark: &'static str,
    escapes: bool,
}

enum Step {
    Took(usize),
    Wait,
    Unclosed,
    Broken,
}

impl Frame {
    fn has_keys(self) -> bool {
        matches!(self, Self::Object | Self::Keywords)
    }

    /// What closes it in the text.
    fn closed_by(self) -> char {
        match self {
            Self::Object => '}',
            Self::Array => ']',
            Self::Tuple | Self::Keywords => ')',
        }
    }

    /// Its brackets in JSON.
    fn brackets(self) -> (char, char) {
        if self.has_keys() { ('{', '}') } else { ('[', ']') }
    }
}

impl LooseJson {
    /// Reads any value.
    pub(super) fn value(notation: Notation) -> Self {
        Self { notation, frames: Vec::new(), state: State::Value }
    }

    /// Reads the keyword arguments of a Python call, from after its `(`, as an object.
    pub(super) fn keywords(out: &mut String) -> Self {
        out.push('{');
        let (frames, state) = (vec![Frame::Keywords], State::Element { comma: false });
        Self { notation: Notation::Python, frames, state }
    }

    /// Takes what it can of `input`, appends what is certain of the JSON to `out`, and returns how many
    /// bytes it took. The rest has to come again, with more text; `last` says that there is none.
    pub(super) fn read(&mut self, input: &str, last: bool, out: &mut String) -> (usize, Progress) {
        let mut at = 0;
        loop {
            if matches!(self.state, State::Done) {
                return (at, Progress::Done);
            }
            match self.step(&input[at..], last, out) {
                Step::Took(bytes) => at += bytes,
                Step::Wait => return (at, Progress::More),
                Step::Unclosed => return (at, Progress::Unclosed),
                Step::Broken => return (at, Progress::Broken),
            }
        }
    }

    /// Closes the brackets that are open, if the value lacks nothing else.
    pub(super) fn close(&mut self, out: &mut String) -> bool {
        let ended = match &self.state {
            State::Word { key: false, .. } => self.end_word(out),
            State::Comma | State::Element { .. } => true,
            State::Done => return true,
            State::Value | State::Colon | State::Text { .. } | State::Word { .. } => false,
        };
        if ended {
            out.extend(self.frames.drain(..).rev().map(|frame| frame.brackets().1));
            self.state = State::Done;
        }
        ended
    }

    /// Whether the value is still to begin.
    pub(super) fn is_untouched(&self) -> bool {
        matches!(self.state, State::Value) && self.frames.is_empty()
    }

    /// Whether the value is complete.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn step(&mut self, rest: &str, last: bool, out: &mut String) -> Step {
        match self.state {
            State::Text { quote, key } => self.text(quote, key, rest, last, out),
            State::Word { .. } => self.word(rest, last, out),
            _ => {
                let spaces = rest.len() - rest.trim_start().len();
                match self.structure(&rest[spaces..], last, out) {
                    Step::Took(bytes) => Step::Took(spaces + bytes),
                    Step::Wait if spaces > 0 => Step::Took(spaces),
                    other => other,
                }
            }
        }
    }

    /// Brackets, colons and commas, and the beginnings of what stands between them.
    fn structure(&mut self, rest: &str, last: bool, out: &mut String) -> Step {
        let Some(next) = rest.chars().next() else {
            return Step::Wait;
        };
        let frame = self.frames.last().copied();
        let closes = frame.is_some_and(|frame| frame.closed_by() == next);
        match self.state {
            State::Element { .. } | State::Comma if closes => {
                let closed = self.frames.pop().map_or(']', |frame| frame.brackets().1);
                out.push(closed);
                self.state = self.after_value();
                Step::Took(1)
            }
            State::Comma if next == ',' => {
                self.state = State::Element { comma: true };
                Step::Took(1)
            }
            State::Element { comma } if frame.is_some_and(Frame::has_keys) => {
                self.key(rest, next, last, comma, out)
            }
            State::Element { comma } => {
                out.push_str(if comma { ", " } else { "" });
                self.state = State::Value;
                Step::Took(0)
            }
            State::Colon if next == if frame == Some(Frame::Keywords) { '=' } else { ':' } => {
                out.push_str(": ");
                self.state = State::Value;
                Step::Took(1)
            }
            State::Value => self.begin_value(rest, next, last, out),
            State::Comma => Step::Unclosed,
            _ => Step::Broken,
        }
    }

    fn key(&mut self, rest: &str, next: char, last: bool, comma: bool, out: &mut String) -> Step {
        let separator = if comma { ", " } else { "" };
        match self.quote(rest, last) {
            Some(Ok(quote)) => {
                out.push_str(separator);
                out.push('"');
                self.state = State::Text { quote, key: true };
                Step::Took(quote.mark.len())
            }
            Some(Err(wait)) => wait,
            None if self.begins_word(next) => {
                out.push_str(separator);
                self.state = State::Word { word: String::new(), key: true };
                Step::Took(0)
            }
            None => Step::Unclosed,
        }
    }

    fn begin_value(&mut self, rest: &str, next: char, last: bool, out: &mut String) -> Step {
        let frame = match next {
            '{' => Some(Frame::Object),
            '[' => Some(Frame::Array),
            '(' if self.notation == Notation::Python => Some(Frame::Tuple),
            _ => None,
        };
        if let Some(frame) = frame {
            if self.frames.len() == DEPTH_MAX {
                return Step::Broken;
            }
            out.push(frame.brackets().0);
            self.frames.push(frame);
            self.state = State::Element { comma: false };
            return Step::Took(1);
        }
        match self.quote(rest, last) {
            Some(Ok(quote)) => {
                out.push('"');
                self.state = State::Text { quote, key: false };
                Step::Took(quote.mark.len())
            }
            Some(Err(wait)) => wait,
            None if self.begins_word(next) => {
                self.state = State::Word { word: String::new(), key: false };
                Step::Took(0)
            }
            None => Step::Broken,
        }
    }

    /// The quote that `rest` begins with, or the need to see more before that is known.
    fn quote(&self, rest: &str, last: bool) -> Option<Result<Quote, Step>> {
        const PYTHON: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];
        const OTHER: [&str; 2] = ["\"", "'"];
        let (marker, marks) = match self.notation {
            Notation::Json => (None, &OTHER[..]),
            Notation::Python => (None, &PYTHON[..]),
            Notation::Marked(marker) => (Some(marker), &OTHER[..1]),
        };
        let candidates = marker.into_iter().chain(marks.iter().copied());
        for mark in candidates {
            if rest.starts_with(mark) {
                return Some(Ok(Quote { mark, escapes: Some(mark) != marker }));
            }
            if !last && mark.starts_with(rest) {
                return Some(Err(Step::Wait));
            }
        }
        None
    }

    fn text(&mut self, quote: Quote, key: bool, rest: &str, last: bool, out: &mut String) -> Step {
        let first = quote.mark.as_bytes()[0];
        let special = |byte: u8| byte == first || (quote.escapes && byte == b'\\');
        let plain = rest.bytes().position(special).unwrap_or(rest.len());
        push_escaped(&rest[..plain], out);
        let rest = &rest[plain..];
        if rest.is_empty() {
            return if plain > 0 { Step::Took(plain) } else { Step::Wait };
        }
        if rest.starts_with(quote.mark) {
            out.push('"');
            self.state = if key { State::Colon } else { self.after_value() };
            return Step::Took(plain + quote.mark.len());
        }
        let taken = if quote.escapes && rest.starts_with('\\') {
            escape(rest, last, out)
        } else if quote.mark.starts_with(rest) && !last {
            None
        } else {
            push_escaped(&rest[..1], out);
            Some(1)
        };
        match taken {
            Some(bytes) => Step::Took(plain + bytes),
            None if plain > 0 => Step::Took(plain),
            None => Step::Wait,
        }
    }

    fn word(&mut self, rest: &str, last: bool, out: &mut String) -> Step {
        let State::Word { word, key } = &mut self.state else {
            return Step::Broken;
        };
        let (bare, key) = (matches!(self.notation, Notation::Marked(_)), *key);
        let ends = |next: char| match (bare, key) {
            (true, true) => !is_bare(next) || next == ':',
            (true, false) => !is_bare(next),
            (false, _) => !is_word(next),
        };
        let len = rest.find(ends).unwrap_or(rest.len());
        word.push_str(&rest[..len]);
        if word.len() > WORD_BYTES_MAX {
            return Step::Broken;
        }
        if len == rest.len() && !last {
            return if len > 0 { Step::Took(len) } else { Step::Wait };
        }
        if len == rest.len() && key {
            return Step::Broken;
        }
        if self.end_word(out) { Step::Took(len) } else { Step::Broken }
    }

    /// Writes the word that has ended.
    fn end_word(&mut self, out: &mut String) -> bool {
        let State::Word { word, key } = &self.state else {
            return false;
        };
        let (word, key) = (word.trim_end(), *key);
        let bare = matches!(self.notation, Notation::Marked(_));
        match literal(word) {
            Some(literal) if !key => out.push_str(&literal),
            _ if key || bare => out.push_str(&quoted(word)),
            _ => return false,
        }
        self.state = if key { State::Colon } else { self.after_value() };
        true
    }

    fn after_value(&self) -> State {
        if self.frames.is_empty() { State::Done } else { State::Comma }
    }

    fn begins_word(&self, next: char) -> bool {
        match self.notation {
            Notation::Marked(_) => is_bare(next) && next != ':',
            Notation::Json | Notation::Python => is_word(next),
        }
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '+' | '.' | '$')
}

/// What a string without quotes may hold.
fn is_bare(character: char) -> bool {
    !matches!(character, ',' | '{' | '}' | '[' | ']' | '<' | '"') && !character.is_control()
}

/// Writes what the escape at the front of `rest` stands for and returns its length; `None` when more
/// text has to be seen. A backslash that begins no escape stands for itself.
fn escape(rest: &str, last: bool, out: &mut String) -> Option<usize> {
    let itself = |out: &mut String| {
        out.push_str("\\\\");
        Some(1)
    };
    let Some(kind) = rest[1..].chars().next() else {
        return if last { itself(out) } else { None };
    };
    let character = match kind {
        'n' => "\n",
        't' => "\t",
        'r' => "\r",
        'b' => "\u{8}",
        'f' => "\u{c}",
        '/' => "/",
        '"' => "\"",
        '\'' => "'",
        '\\' => "\\",
        '\n' => "",
        'u' => {
            return unicode_escape(rest, last, out)
                .or_else(|| if last { itself(out) } else { None });
        }
        _ => return itself(out),
    };
    push_escaped(character, out);
    Some(1 + kind.len_utf8())
}

/// `\uXXXX`, or two of them for a character beyond 16 bits; half of such a pair is U+FFFD.
fn unicode_escape(rest: &str, last: bool, out: &mut String) -> Option<usize> {
    let unit = match code_unit(rest) {
        Unit::Is(unit) => unit,
        Unit::MayBe => return None,
        Unit::IsNot => {
            out.push_str("\\\\");
            return Some(1);
        }
    };
    let mut units = [unit, 0];
    let (units, len) = match unit {
        0xD800..=0xDBFF => match code_unit(&rest[6..]) {
            Unit::Is(low @ 0xDC00..=0xDFFF) => {
                units[1] = low;
                (&units[..], 12)
            }
            Unit::MayBe if !last => return None,
            _ => (&units[..1], 6),
        },
        _ => (&units[..1], 6),
    };
    push_escaped(&String::from_utf16_lossy(units), out);
    Some(len)
}

enum Unit {
    Is(u16),
    MayBe,
    IsNot,
}

/// The `\uXXXX` at the front of `text`.
fn code_unit(text: &str) -> Unit {
    let expected = |(at, byte): (usize, u8)| match at {
        0 => byte == b'\\',
        1 => byte == b'u',
        _ => byte.is_ascii_hexdigit(),
    };
    let head = text.as_bytes();
    let head = &head[..head.len().min(6)];
    if !head.iter().copied().enumerate().all(expected) {
        return Unit::IsNot;
    }
    if head.len() < 6 {
        return Unit::MayBe;
    }
    u16::from_str_radix(&text[2..6], 16).map_or(Unit::IsNot, Unit::Is)
}
