//! The markup of tool calls, one state machine per family of formats.
//!
//! A machine gets the text from where its markup begins, in pieces, and tells calls to a [`Writer`].
//! It takes only what it has understood, so that the rest comes again with more text. What it cannot
//! understand it reports as broken, and whoever drives it shows that text.
//!
//! A call is started when its name is known and its arguments begin, and ended when its arguments are
//! complete: its closing markup may lag behind or be missing.

mod arguments;
mod header;
mod json;
mod loose_json;
mod python;
mod sentinel;
mod tags;
mod text;
mod typed;
mod writer;

use super::markers::Found;
use super::parser::TextEnd;

pub(super) use arguments::Body;
pub(super) use header::{HeadStyle, HeaderCalls, HeaderStyle};
pub(super) use json::{JsonCalls, JsonStyle};
pub(super) use python::{PythonCalls, PythonStyle};
pub(super) use sentinel::{SentinelCalls, SentinelStyle};
pub(super) use tags::{NameStyle, TagCalls, TagStyle, Trim};
pub(super) use writer::{IdForm, Writer};

/// Longer names, keys and other heads of markup are none.
const HEAD_BYTES_MAX: usize = 256;

/// How far a machine came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It took this many bytes; it goes on with what follows.
    Took(usize),
    /// It needs to see more text. Never said when the text has ended.
    Wait,
    /// The markup ended before what follows.
    Done,
    /// What follows is no markup of this kind.
    Broken,
}

/// Where in its markup a machine is, and how it moves.
#[derive(Debug, Clone)]
struct Place<At>(At);

impl<At> Place<At> {
    /// Where it was; from here on it is at `at`.
    fn leave(&mut self, at: At) -> At {
        std::mem::replace(&mut self.0, at)
    }

    /// Takes so many bytes and goes on from `at`.
    fn go(&mut self, at: At, bytes: usize) -> Step {
        self.0 = at;
        Step::Took(bytes)
    }

    /// Stays `at` where it is until more text comes, which the text's end rules out.
    fn wait(&mut self, at: At, end: Option<TextEnd>) -> Step {
        self.0 = at;
        if end.is_some() { Step::Broken } else { Step::Wait }
    }

    /// Takes `marker`, perhaps behind spaces, which leads from `here` to `next`.
    fn pass(
        &mut self,
        marker: &str,
        (here, next): (At, At),
        rest: &str,
        end: Option<TextEnd>,
    ) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match begins_with(rest, marker, end.is_some()) {
            Match::Yes => self.go(next, spaces + marker.len()),
            Match::Maybe => self.wait(here, end),
            Match::No => Step::Broken,
        }
    }
}

/// Markup that is being read.
#[derive(Debug, Clone)]
pub(super) enum Markup {
    /// Objects with a name and arguments.
    Json(JsonCalls),
    /// Tags around names and values.
    Tags(TagCalls),
    /// A head with the name, and a JSON object.
    Header(HeaderCalls),
    /// Python calls.
    Python(PythonCalls),
    /// Gemma's notation.
    Sentinel(SentinelCalls),
    /// A JSON object of arguments alone.
    Body(Body),
    /// One of these, by what comes first.
    Choice(&'static [Branch]),
}

/// One way in which markup goes on after its opening.
#[derive(Debug)]
pub(super) struct Branch {
    /// What it begins with; empty for anything.
    pub(super) first: &'static str,
    /// The machine for it.
    pub(super) begin: fn() -> Markup,
}

impl Markup {
    /// Takes a step through `rest`. `end` says that no more text comes, and why.
    pub(super) fn step(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        match self {
            Self::Json(calls) => calls.step(rest, end, writer),
            Self::Tags(calls) => calls.step(rest, end, writer),
            Self::Header(calls) => calls.step(rest, end, writer),
            Self::Python(calls) => calls.step(rest, end, writer),
            Self::Sentinel(calls) => calls.step(rest, end, writer),
            Self::Body(body) => body.step(rest, end, writer),
            Self::Choice(branches) => match choose(branches, rest, end.is_some()) {
                Ok(branch) => {
                    *self = (branch.begin)();
                    Step::Took(0)
                }
                Err(step) => step,
            },
        }
    }
}

fn choose(branches: &'static [Branch], rest: &str, last: bool) -> Result<&'static Branch, Step> {
    let (_, rest) = skip_spaces(rest);
    if rest.is_empty() {
        return Err(if last { Step::Broken } else { Step::Wait });
    }
    for branch in branches {
        match begins_with(rest, branch.first, last) {
            Match::Yes => return Ok(branch),
            Match::Maybe => return Err(Step::Wait),
            Match::No => {}
        }
    }
    Err(Step::Broken)
}

/// Whether a text begins with a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Match {
    Yes,
    /// The text ends before it is known.
    Maybe,
    No,
}

fn begins_with(rest: &str, marker: &str, last: bool) -> Match {
    if rest.starts_with(marker) {
        Match::Yes
    } else if !last && marker.starts_with(rest) {
        Match::Maybe
    } else {
        Match::No
    }
}

/// The first of `markers` that `rest` begins with, by its place; `Err` when more has to be seen.
fn begins_with_any(rest: &str, markers: &[&str], last: bool) -> Result<Option<usize>, ()> {
    let mut maybe = false;
    let mut longest: Option<usize> = None;
    for (place, marker) in markers.iter().enumerate().filter(|(_, marker)| !marker.is_empty()) {
        match begins_with(rest, marker, last) {
            Match::Yes if longest.is_none_or(|other| markers[other].len() < marker.len()) => {
                longest = Some(place);
            }
            Match::Maybe => maybe = true,
            Match::Yes | Match::No => {}
        }
    }
    if maybe { Err(()) } else { Ok(longest) }
}

/// The spaces at the front of a text, and the rest.
fn skip_spaces(text: &str) -> (usize, &str) {
    let rest = text.trim_start();
    (text.len() - rest.len(), rest)
}

/// The bytes before `marker`; `Err` when it did not come yet, or is too far away.
fn up_to<'a>(rest: &'a str, marker: &'static str, last: bool) -> Result<&'a str, Step> {
    match super::markers::find(rest, &[(marker, ())], last) {
        Found::Marker { at, .. } if at <= HEAD_BYTES_MAX => Ok(&rest[..at]),
        Found::Nothing { safe } if safe <= HEAD_BYTES_MAX && !last => Err(Step::Wait),
        Found::Marker { .. } | Found::Nothing { .. } => Err(Step::Broken),
    }
}

/// Whether `name` can be a tool's.
fn is_name(name: &str) -> bool {
    let fits = |character: char| !character.is_whitespace() && !"<>{}()[]\"',".contains(character);
    !name.is_empty() && name.len() <= HEAD_BYTES_MAX && name.chars().all(fits)
}
