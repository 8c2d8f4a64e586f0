//! Calls in Gemma's notation: `call:NAME{key:value,…}`, strings between markers of their own.

use super::arguments::Arguments;
use super::loose_json::Notation;
use super::writer::Writer;
use super::{HEAD_BYTES_MAX, Place, Step, begins_with_any, is_name, skip_spaces};
use crate::output::parser::TextEnd;

const CALL: &str = "call:";

/// The markers of a family.
#[derive(Debug)]
pub(in crate::output) struct SentinelStyle {
    /// What closes the markup.
    pub(in crate::output) close: &'static str,
    /// What stands before and after a string.
    pub(in crate::output) quote: &'static str,
}

/// Reads the calls between two markers.
#[derive(Debug, Clone)]
pub(in crate::output) struct SentinelCalls {
    style: &'static SentinelStyle,
    at: Place<At>,
}

#[derive(Debug, Clone)]
enum At {
    Call,
    Name,
    Arguments(Arguments),
    After,
    Finished,
}

impl SentinelCalls {
    pub(in crate::output) fn new(style: &'static SentinelStyle) -> Self {
        Self { style, at: Place(At::Call) }
    }

    pub(super) fn step(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        match self.at.leave(At::Finished) {
            At::Call => self.at.pass(CALL, (At::Call, At::Name), rest, end),
            At::Name => self.name(rest, end, writer),
            At::Arguments(arguments) => self.arguments(arguments, rest, end, writer),
            At::After => self.after(rest, end),
            At::Finished => Step::Done,
        }
    }

    fn name(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        match rest.find('{') {
            Some(len) if is_name(rest[..len].trim()) => {
                if !writer.start(rest[..len].trim(), None, false) {
                    return Step::Broken;
                }
                let notation = Notation::Marked(self.style.quote);
                self.at.go(At::Arguments(Arguments::new(notation)), len)
            }
            None if rest.len() <= HEAD_BYTES_MAX => self.at.wait(At::Name, end),
            Some(_) | None => Step::Broken,
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
            return self.at.go(At::After, 0);
        }
        let step = arguments.step(rest, &[self.style.close], end, writer);
        self.at = Place(At::Arguments(arguments));
        if step == Step::Done { self.at.go(At::After, 0) } else { step }
    }

    fn after(&mut self, rest: &str, end: Option<TextEnd>) -> Step {
        let (spaces, rest) = skip_spaces(rest);
        match begins_with_any(rest, &[self.style.close, CALL, "}"], end.is_some()) {
            Ok(Some(0)) => self.at.go(At::Finished, spaces + self.style.close.len()),
            Ok(Some(1)) => self.at.go(At::Name, spaces + CALL.len()),
            // One bracket too many is a usual slip.
            Ok(Some(_)) => self.at.go(At::After, spaces + 1),
            Ok(None) => Step::Done,
            Err(()) => self.at.wait(At::After, end),
        }
    }
}
