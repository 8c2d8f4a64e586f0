//! Answers as server-sent events.
//!
//! Frames, in order: a chat's role; parts of the answer; one finish reason; usage, if asked for; `[DONE]`. An
//! error in the middle is a frame with the error object in the place of all that was to follow,
//! and then `[DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use serde::Serialize;

use crate::error::{Code, Error, Result};
use crate::gateway::{AnswerEvent, Generation};
use crate::wire::openai::{ErrorBody, ReplyHead};

/// The stream of an answer. Dropping it cancels the row.
pub(super) fn events(
    head: ReplyHead,
    generation: Generation,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let frames = stream::unfold(Frames::new(head, generation), async |mut frames| {
        let data = frames.next().await?;
        Some((Ok(Event::default().data(data)), frames))
    });
    // Comments while a prompt waits or prefills: they keep proxies patient.
    Sse::new(frames).keep_alive(KeepAlive::default())
}

struct Frames {
    head: ReplyHead,
    /// None once the answer is complete or failed.
    generation: Option<Generation>,
    /// Frames that are known and not yet sent.
    ready: VecDeque<String>,
}

impl Frames {
    fn new(head: ReplyHead, generation: Generation) -> Self {
        let ready = head.opening().iter().map(frame).collect();
        Self { head, generation: Some(generation), ready }
    }

    async fn next(&mut self) -> Option<String> {
        while self.ready.is_empty() {
            let event = self.generation.as_mut()?.next().await.unwrap_or_else(unfinished);
            self.take(event);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: Result<AnswerEvent>) {
        match event {
            Ok(AnswerEvent::Finished { reason, usage }) => {
                self.ready.push_back(frame(&self.head.finish(reason)));
                self.ready.extend(self.head.usage(&usage).iter().map(frame));
                self.end();
            }
            Ok(event) => {
                let part = event.into_part().and_then(|part| self.head.part(part));
                self.ready.extend(part.iter().map(frame));
            }
            Err(error) => {
                self.ready.push_back(frame(&ErrorBody::from(&error)));
                self.end();
            }
        }
    }

    fn end(&mut self) {
        self.generation = None;
        self.ready.push_back("[DONE]".to_owned());
    }
}

fn frame(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("the bodies have string keys and cannot fail to serialize")
}

/// What takes the place of an end that never came.
pub(super) fn unfinished() -> Result<AnswerEvent> {
    Err(Error::new(Code::Internal, "the answer stopped without an end"))
}
