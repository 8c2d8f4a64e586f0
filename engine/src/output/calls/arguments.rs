//! Arguments written as one JSON object.

use super::loose_json::{LooseJson, Notation, Progress};
use super::writer::Writer;
use super::{Match, Step, begins_with};
use crate::output::parser::TextEnd;

/// Reads the arguments of a call that is open, and ends it.
#[derive(Debug, Clone)]
pub(super) struct Arguments(LooseJson);

impl Arguments {
    /// Reads an object in `notation`.
    pub(super) fn new(notation: Notation) -> Self {
        Self(LooseJson::value(notation))
    }

    /// Takes a step; `closers` are what may follow when brackets are missing.
    pub(super) fn step(
        &mut self,
        rest: &str,
        closers: &[&str],
        end: Option<TextEnd>,
        writer: &mut Writer,
    ) -> Step {
        if self.0.is_untouched() && !rest.trim_start().starts_with('{') {
            let waits = end.is_none() && rest.trim_start().is_empty();
            return if waits { Step::Wait } else { Step::Broken };
        }
        let mut json = String::new();
        let (taken, progress) = self.0.read(rest, end.is_some(), &mut json);
        let step = read_on(&mut self.0, (taken, progress), rest, closers, end, &mut json);
        writer.arguments(&json);
        if step == Step::Done {
            writer.end();
        }
        if taken > 0 { Step::Took(taken) } else { step }
    }

    /// Whether the object is complete.
    pub(super) fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

/// What reading `rest` comes to: `Done` when the value is complete, if need be by closing brackets
/// before one of `closers` or at an end that the model chose.
pub(super) fn read_on(
    reader: &mut LooseJson,
    (taken, progress): (usize, Progress),
    rest: &str,
    closers: &[&str],
    end: Option<TextEnd>,
    json: &mut String,
) -> Step {
    let next = rest[taken..].trim_start();
    let closes = |marker: &&str| begins_with(next, marker, end.is_some());
    let (closed, waits) = match progress {
        Progress::Done => return Step::Done,
        Progress::Broken => (false, false),
        Progress::More => (end == Some(TextEnd::Complete), end.is_none()),
        Progress::Unclosed => {
            let closes = |wanted| closers.iter().any(|marker| closes(marker) == wanted);
            (closes(Match::Yes), closes(Match::Maybe))
        }
    };
    match (closed && reader.close(json), taken) {
        (true, _) => Step::Done,
        // What was read is not given back, so that what breaks is the same however the text is cut.
        (false, 1..) => Step::Took(taken),
        (false, 0) if waits => Step::Wait,
        (false, 0) => Step::Broken,
    }
}

/// A message whose whole text is the arguments of a call, whose name its head told.
#[derive(Debug, Clone)]
pub(in crate::output) struct Body {
    name: String,
    closers: &'static [&'static str],
    arguments: Option<Arguments>,
}

impl Body {
    /// The arguments of a call of `name`, before one of `closers`.
    pub(in crate::output) fn new(name: String, closers: &'static [&'static str]) -> Self {
        Self { name, closers, arguments: None }
    }

    pub(super) fn step(&mut self, rest: &str, end: Option<TextEnd>, writer: &mut Writer) -> Step {
        if let Some(arguments) = &mut self.arguments {
            if arguments.is_done() {
                return Step::Done;
            }
            return arguments.step(rest, self.closers, end, writer);
        }
        let rest = rest.trim_start();
        if rest.starts_with('{') {
            if !writer.start(&self.name, None, false) {
                return Step::Broken;
            }
            self.arguments = Some(Arguments::new(Notation::Json));
            return Step::Took(0);
        }
        if rest.is_empty() && end.is_none() { Step::Wait } else { Step::Broken }
    }
}
