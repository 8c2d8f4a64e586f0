//! Chat completions and completions as a [`Teller`] tells them.
//!
//! Frames, in order: a chat's role; parts of the answer; one finish reason; usage, if asked for;
//! `[DONE]`. An error is a frame with the error object in the place of all that was to follow, and
//! then `[DONE]`.

use super::error::ErrorBody;
use super::reply::{Body, ReplyHead};
use crate::error::Error;
use crate::gateway::LogprobEntry;
use crate::output::AnswerPart;
use crate::wire::{Ending, Frame, Teller};

/// Tells an answer in chunks, or as one body.
#[derive(Debug, Clone)]
pub struct Chunks {
    head: ReplyHead,
    /// What is known of tokens whose text is still to come.
    entries: Vec<LogprobEntry>,
}

impl Chunks {
    /// A teller of the answer of `head`.
    pub fn new(head: ReplyHead) -> Self {
        Self { head, entries: Vec::new() }
    }
}

fn done() -> Frame {
    Frame { event: None, data: "[DONE]".to_owned() }
}

impl Teller for Chunks {
    type Whole = Body;

    const COUNTS_EVENTS: bool = false;

    fn opening(&mut self) -> Vec<Frame> {
        self.head.opening().iter().map(Frame::data).collect()
    }

    fn tell(&mut self, part: AnswerPart) -> Vec<Frame> {
        // The end of a call has no chunk: what is known of tokens waits for one that has.
        match self.head.part(part, &self.entries) {
            Some(chunk) => {
                self.entries.clear();
                vec![Frame::data(&chunk)]
            }
            None => Vec::new(),
        }
    }

    fn logprobs(&mut self, entries: Vec<LogprobEntry>) {
        self.entries.extend(entries);
    }

    fn ending(&mut self, ending: &Ending) -> Vec<Frame> {
        let finish = self.head.finish(ending.reason, &self.entries);
        let chunks = std::iter::once(finish).chain(self.head.usage(&ending.usage));
        chunks.map(|chunk| Frame::data(&chunk)).chain([done()]).collect()
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        vec![Frame::data(&ErrorBody::from(error)), done()]
    }

    fn idle(&mut self) -> Frame {
        let nothing = self.head.part(AnswerPart::Text(String::new()), &[]);
        Frame::data(&nothing.expect("both kinds have chunks of text"))
    }

    fn whole(&mut self, parts: Vec<AnswerPart>, ending: &Ending) -> Body {
        self.head.whole(parts.into_iter().collect(), &self.entries, ending.reason, &ending.usage)
    }
}
