//! From an answer's text to its parts.
//!
//! The parser is in one of four states: visible text, reasoning, the head of a message (in formats
//! that have them), or the markup of calls, which a machine of `calls` reads. Text that may be the
//! beginning of a marker is held until that is decided; everything else is told at once. Markup that
//! turns out to be none is told as the text it is, in the state that it came in.

use std::sync::Arc;

use super::calls::{Body, Markup, Step, Writer};
use super::flow::Flow;
use super::format::{AnswerFormat, MessageFormat, Opening, ToolFormat};
use super::markers::{Found, find};
use super::messages::{self, Recipient};
use super::part::AnswerPart;
use super::tool::Tool;

/// What the parser of one answer has to know beside the model's format.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// The tools that the model may call. Without any, markup of calls is text.
    pub tools: Arc<[Tool]>,
    /// Where in its format the prompt ends.
    pub beginning: Beginning,
    /// What the ids of calls are made from: unique to the request.
    pub id_seed: String,
}

/// Where in the model's format an answer begins, which depends on how its prompt ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Beginning {
    /// In visible text, or before any markup.
    #[default]
    Text,
    /// Inside reasoning that the prompt opened.
    Reasoning,
    /// In the head of a message that the prompt began.
    Head,
}

/// Why there is no more text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextEnd {
    /// The model ended its answer: a call that lacks only its closing markup is whole.
    Complete,
    /// The answer was cut off: a call that is not closed is broken.
    Cut,
}

/// Changes of state without a step forward in a row; a few are usual.
const IDLE_STEPS_MAX: usize = 32;

/// Splits one answer's text into reasoning, visible text and tool calls, as it comes.
#[derive(Debug)]
pub struct AnswerParser {
    markers: Markers,
    state: State,
    held: String,
    text: Flow,
    reasoning: Flow,
    writer: Writer,
}

#[derive(Debug)]
enum State {
    Text,
    /// `fresh` until something was said in it.
    Reasoning {
        fresh: bool,
    },
    /// The head of a message; `started` when a marker began it.
    Head {
        started: bool,
    },
    Call(Box<Call>),
}

/// Markup of calls that is being read.
#[derive(Debug)]
struct Call {
    markup: Markup,
    /// Its text since its beginning or its last whole call.
    raw: String,
    /// The marker that began it.
    marker: &'static str,
    in_reasoning: bool,
}

/// What to look for in each state.
#[derive(Debug, Default)]
struct Markers {
    messages: Option<MessageFormat>,
    /// Whether calls are looked for.
    calls: bool,
    /// In visible text before any was said, and after.
    at_first: Vec<(&'static str, Meaning)>,
    in_text: Vec<(&'static str, Meaning)>,
    in_reasoning: Vec<(&'static str, Meaning)>,
}

#[derive(Debug, Clone, Copy)]
enum Meaning {
    ReasoningBegins,
    ReasoningEnds,
    Call(&'static Opening),
    Nothing,
    MessageBegins,
    MessageEnds,
}

impl Markers {
    fn new(format: &AnswerFormat, calls: bool) -> Self {
        let openings = format.tools.filter(|_| calls).map_or(&[][..], ToolFormat::openings);
        let opening = |opening: &'static Opening| (opening.marker, Meaning::Call(opening));
        let reasoning = format.reasoning.map(|reasoning| {
            let (begin, end) = reasoning.markers();
            [(begin, Meaning::ReasoningBegins), (end, Meaning::ReasoningEnds)]
        });
        let messages = format.messages.into_iter().flat_map(|messages| {
            let ends = messages.ends().iter().map(|end| (*end, Meaning::MessageEnds));
            ends.chain([(MessageFormat::START, Meaning::MessageBegins)])
        });
        let silent = format.tools.map_or(&[][..], ToolFormat::silent).iter();
        let common: Vec<_> = reasoning.into_iter().flatten().chain(messages).collect();
        let later = openings.iter().filter(|opening| !opening.first).map(opening);
        let in_reasoning: Vec<_> = common.iter().copied().chain(later).collect();
        let silent = silent.map(|marker| (*marker, Meaning::Nothing));
        let in_text: Vec<_> = in_reasoning.iter().copied().chain(silent).collect();
        let first = openings.iter().filter(|opening| opening.first).map(opening);
        Self {
            messages: format.messages,
            calls,
            at_first: in_text.iter().copied().chain(first).collect(),
            in_text,
            in_reasoning,
        }
    }
}

impl AnswerParser {
    /// The parser of an answer in which everything is visible text.
    pub fn plain() -> Self {
        Self::new(&AnswerFormat::default(), ParserOptions::default())
    }

    /// The parser of an answer of a model that writes `format`.
    pub fn new(format: &AnswerFormat, options: ParserOptions) -> Self {
        let ParserOptions { tools, beginning, id_seed } = options;
        let id_form = format.tools.map(ToolFormat::id_form).unwrap_or_default();
        let separator = if format.messages.is_some() { "\n\n" } else { "" };
        Self {
            markers: Markers::new(format, !tools.is_empty()),
            state: match beginning {
                Beginning::Text => State::Text,
                Beginning::Reasoning => State::Reasoning { fresh: true },
                Beginning::Head => State::Head { started: false },
            },
            held: String::new(),
            text: Flow::separated_by(separator),
            reasoning: Flow::separated_by("\n\n").after_markup(beginning == Beginning::Reasoning),
            writer: Writer::new(tools, id_form, id_seed),
        }
    }

    /// Takes the next piece of text and returns the parts that are certain by now.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        self.run(None);
        self.writer.take()
    }

    /// The text has ended: returns what was held back.
    pub fn finish(&mut self, end: TextEnd) -> Vec<AnswerPart> {
        self.run(Some(end));
        let (reasoning, text) = (self.reasoning.finish(), self.text.finish());
        self.writer.reasoning(reasoning);
        self.writer.text(text);
        self.writer.take()
    }

    /// Bytes at the end of the text so far of which nothing was told yet.
    pub fn held_bytes(&self) -> usize {
        let spaces = match self.state {
            State::Text => self.text.held_bytes(),
            State::Reasoning { .. } => self.reasoning.held_bytes(),
            State::Head { .. } | State::Call(_) => 0,
        };
        self.held.len() + spaces
    }

    /// How many calls are complete.
    pub fn calls_ended(&self) -> usize {
        self.writer.ended()
    }

    /// Whether the text that comes next is reasoning, as far as is known.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning { .. })
    }

    /// Takes what can be decided off the held text.
    fn run(&mut self, end: Option<TextEnd>) {
        let held = std::mem::take(&mut self.held);
        let mut at = 0;
        let mut idle = 0;
        while let Some(bytes) = self.step(&held[at..], end) {
            at += bytes;
            idle = if bytes > 0 { 0 } else { idle + 1 };
            assert!(idle < IDLE_STEPS_MAX, "the parser stands still at {:?}", &held[at..]);
        }
        self.held = held[at..].to_owned();
    }

    /// Takes one step through `rest` and returns how far it went; `None` when it needs more text.
    fn step(&mut self, rest: &str, end: Option<TextEnd>) -> Option<usize> {
        match &self.state {
            State::Text | State::Reasoning { .. } => self.step_text(rest, end.is_some()),
            State::Head { started } => self.step_head(rest, *started, end.is_some()),
            State::Call(_) => self.step_call(rest, end),
        }
    }

    fn step_text(&mut self, rest: &str, last: bool) -> Option<usize> {
        let markers = match self.state {
            State::Reasoning { .. } => &self.markers.in_reasoning,
            _ if self.text.has_said() => &self.markers.in_text,
            _ => &self.markers.at_first,
        };
        let (before, marker) = match find(rest, markers, last) {
            Found::Nothing { safe } => (safe, None),
            Found::Marker { at: 0, len, meaning } => (0, Some((len, meaning))),
            Found::Marker { at, .. } => (at, None),
        };
        if let Some((len, meaning)) = marker {
            return Some(self.take_marker(&rest[..len], meaning));
        }
        self.say(&rest[..before]);
        (before > 0).then_some(before)
    }

    /// Takes the marker that the text begins with and returns how far that went.
    fn take_marker(&mut self, marker: &str, meaning: Meaning) -> usize {
        let in_reasoning = self.is_reasoning();
        match meaning {
            Meaning::ReasoningBegins if !in_reasoning => {
                self.text.markup();
                self.reasoning.markup();
                self.state = State::Reasoning { fresh: true };
            }
            Meaning::ReasoningEnds if in_reasoning => {
                self.text.markup();
                self.reasoning.markup();
                self.state = State::Text;
            }
            // Some models repeat what their prompt ends with, or close twice.
            Meaning::ReasoningBegins if matches!(self.state, State::Reasoning { fresh: true }) => {}
            Meaning::ReasoningEnds if self.reasoning.has_said() && !self.text.has_said() => {}
            Meaning::ReasoningBegins | Meaning::ReasoningEnds => self.say(marker),
            Meaning::Nothing => self.text.markup(),
            Meaning::MessageBegins => self.begin_head(true),
            Meaning::MessageEnds => self.begin_head(false),
            Meaning::Call(opening) => {
                let raw = if opening.inside { "" } else { opening.marker };
                self.begin_call((opening.begin)(), opening.marker, raw);
                return raw.len();
            }
        }
        marker.len()
    }

    fn begin_head(&mut self, started: bool) {
        self.text.markup();
        self.reasoning.markup();
        self.state = State::Head { started };
    }

    fn begin_call(&mut self, markup: Markup, marker: &'static str, raw: &str) {
        let in_reasoning = self.is_reasoning();
        // Who thinks about calling may write what he thinks of.
        self.writer.known_only(in_reasoning);
        let raw = raw.to_owned();
        self.state = State::Call(Box::new(Call { markup, raw, marker, in_reasoning }));
    }

    fn step_head(&mut self, rest: &str, started: bool, last: bool) -> Option<usize> {
        let format = self.markers.messages?;
        let (head, bytes) = match messages::head(format, rest, started, last) {
            messages::Head::Wait => return None,
            messages::Head::Restart(bytes) => {
                self.state = State::Head { started: true };
                return Some(bytes);
            }
            messages::Head::Is(head, bytes) => (head, bytes),
            messages::Head::None if last && rest.is_empty() => return None,
            messages::Head::None => {
                self.state = State::Text;
                return Some(0);
            }
        };
        match messages::recipient(format, head) {
            Recipient::Itself => self.state = State::Reasoning { fresh: true },
            Recipient::Tool(name) if self.markers.calls => {
                self.state = State::Text;
                self.begin_call(Markup::Body(Body::new(name, format.ends())), "", "");
            }
            Recipient::User | Recipient::Tool(_) => self.state = State::Text,
        }
        Some(bytes)
    }

    fn step_call(&mut self, rest: &str, end: Option<TextEnd>) -> Option<usize> {
        let State::Call(call) = &mut self.state else {
            return None;
        };
        if end == Some(TextEnd::Cut) && self.writer.is_open() {
            // What is held may be a part of an argument or of a marker: nobody will know.
            self.writer.abandon();
            self.leave_call();
            return Some(rest.len());
        }
        let ended = self.writer.ended();
        let step = call.markup.step(rest, end, &mut self.writer);
        if self.writer.ended() > ended {
            call.raw.clear();
            call.marker = "";
            self.text.markup();
            self.reasoning.markup();
        }
        match step {
            Step::Took(bytes) => {
                if self.writer.ended() == ended {
                    call.raw.push_str(&rest[..bytes]);
                }
                Some(bytes)
            }
            Step::Wait => None,
            Step::Done => {
                self.leave_call();
                Some(0)
            }
            Step::Broken => Some(self.give_up_call(rest)),
        }
    }

    /// Goes back to the text that the markup came in, which is returned with its marker's length.
    fn leave_call(&mut self) -> Option<(String, usize)> {
        let before = std::mem::replace(&mut self.state, State::Text);
        let State::Call(call) = before else {
            return None;
        };
        if call.in_reasoning {
            self.state = State::Reasoning { fresh: false };
        }
        Some((call.raw, call.marker.len()))
    }

    /// What was read is no markup: it is text, and so is at least the marker that it began with.
    fn give_up_call(&mut self, rest: &str) -> usize {
        self.writer.abandon();
        let Some((raw, marker_bytes)) = self.leave_call() else {
            return 0;
        };
        self.say(&raw);
        let more = marker_bytes.saturating_sub(raw.len()).min(rest.len());
        self.say(&rest[..more]);
        more
    }

    fn say(&mut self, text: &str) {
        if self.markers.at_first.is_empty() {
            self.writer.text(text.to_owned());
            return;
        }
        match &mut self.state {
            State::Reasoning { fresh } => {
                *fresh &= text.trim_ascii().is_empty();
                let text = self.reasoning.push(text);
                self.writer.reasoning(text);
            }
            State::Text | State::Head { .. } | State::Call(_) => {
                let text = self.text.push(text);
                self.writer.text(text);
            }
        }
    }
}
