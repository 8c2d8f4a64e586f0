//! Chat completions and completions as a [`Teller`] tells them.
//!
//! Frames, in order: a chat's role; parts of the answer; one finish reason; usage, if asked for;
//! `[DONE]`. An error is a frame with the error object in the place of all that was to follow, and
//! then `[DONE]`.

use super::error::ErrorBody;
use super::reply::{Body, ReplyHead};
use crate::error::Error;
use crate::gateway::AnswerEvent;
use crate::output::{AnswerPart, FoldedAnswer};
use crate::wire::{Ending, Frame, Teller};

/// Tells an answer in chunks, or as one body.
#[derive(Debug, Clone)]
pub struct Chunks(ReplyHead);

impl Chunks {
    /// A teller of the answer of `head`.
    pub fn new(head: ReplyHead) -> Self {
        Self(head)
    }
}

fn done() -> Frame {
    Frame { event: None, data: "[DONE]".to_owned() }
}

impl Teller for Chunks {
    type Whole = Body;

    const COUNTS_EVENTS: bool = false;

    fn opening(&mut self) -> Vec<Frame> {
        self.0.opening().iter().map(Frame::data).collect()
    }

    fn event(&mut self, event: AnswerEvent) -> Vec<Frame> {
        let chunk = event.into_part().and_then(|part| self.0.part(part));
        chunk.iter().map(Frame::data).collect()
    }

    fn ending(&mut self, ending: &Ending) -> Vec<Frame> {
        let finish = self.0.finish(ending.reason);
        let chunks = std::iter::once(finish).chain(self.0.usage(&ending.usage));
        chunks.map(|chunk| Frame::data(&chunk)).chain([done()]).collect()
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        vec![Frame::data(&ErrorBody::from(error)), done()]
    }

    fn idle(&mut self) -> Frame {
        let nothing = self.0.part(AnswerPart::Text(String::new()));
        Frame::data(&nothing.expect("both kinds have chunks of text"))
    }

    fn whole(&mut self, answer: FoldedAnswer, ending: &Ending) -> Body {
        self.0.whole(answer, ending.reason, &ending.usage)
    }
}
