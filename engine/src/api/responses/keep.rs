//! A response that is kept once it is whole.

use std::sync::Arc;

use serde_json::Value;

use super::store::{Kept, ResponseStore};
use crate::error::Error;
use crate::gateway::LogprobEntry;
use crate::output::{AnswerPart, FoldedAnswer};
use crate::wire::responses::{Response, ResponseTeller};
use crate::wire::{Ending, Frame, Teller};

/// Tells a response, and stores it before its client hears of its end.
pub(super) struct Keeping {
    teller: ResponseTeller,
    store: Arc<ResponseStore>,
    owner: Option<Arc<str>>,
    /// What the response answers.
    conversation: Vec<Value>,
}

impl Keeping {
    pub(super) fn new(
        teller: ResponseTeller,
        store: Arc<ResponseStore>,
        owner: Option<Arc<str>>,
        conversation: Vec<Value>,
    ) -> Self {
        Self { teller, store, owner, conversation }
    }

    fn keep(&mut self) {
        let response = self.teller.response();
        if !response.is_kept() {
            return;
        }
        let body = serde_json::to_value(response);
        let body = body.expect("responses have string keys and cannot fail to serialize");
        let conversation = self.teller.continued(std::mem::take(&mut self.conversation));
        let kept = Kept { owner: self.owner.clone(), body, conversation };
        self.store.keep(response.id(), kept);
    }
}

impl Teller for Keeping {
    type Whole = Response;

    const COUNTS_EVENTS: bool = ResponseTeller::COUNTS_EVENTS;

    fn opening(&mut self) -> Vec<Frame> {
        self.teller.opening()
    }

    fn tell(&mut self, part: AnswerPart) -> Vec<Frame> {
        self.teller.tell(part)
    }

    fn logprobs(&mut self, entries: Vec<LogprobEntry>) {
        self.teller.logprobs(entries);
    }

    fn ending(&mut self, ending: &Ending) -> Vec<Frame> {
        let frames = self.teller.ending(ending);
        self.keep();
        frames
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        self.teller.error(error)
    }

    fn idle(&mut self) -> Frame {
        self.teller.idle()
    }

    fn whole(&mut self, answer: FoldedAnswer, ending: &Ending) -> Response {
        let whole = self.teller.whole(answer, ending);
        self.keep();
        whole
    }
}
