//! Answers as server-sent events.
//!
//! Frames, in order: a chat's role; text; one finish reason; usage, if asked for; `[DONE]`. An
//! error in the middle is a frame with the error object in the place of all that was to follow,
//! and then `[DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use serde::Serialize;

use crate::error::{Code, Error, Result};
use crate::gateway::{Generation, LogprobEntry, TextEvent};
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
    /// What is known of the tokens of the next frame.
    entries: Vec<LogprobEntry>,
    /// Frames that are known and not yet sent.
    ready: VecDeque<String>,
}

impl Frames {
    fn new(head: ReplyHead, generation: Generation) -> Self {
        let ready = head.opening().iter().map(frame).collect();
        Self { head, generation: Some(generation), entries: Vec::new(), ready }
    }

    async fn next(&mut self) -> Option<String> {
        while self.ready.is_empty() {
            let event = self.generation.as_mut()?.next().await.unwrap_or_else(unfinished);
            self.take(event);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: Result<TextEvent>) {
        match event {
            Ok(TextEvent::Logprobs(entries)) => self.entries.extend(entries),
            Ok(TextEvent::Text(text)) => {
                let entries = std::mem::take(&mut self.entries);
                self.ready.push_back(frame(&self.head.text(text, &entries)));
            }
            Ok(TextEvent::Finished { reason, usage }) => {
                let entries = std::mem::take(&mut self.entries);
                self.ready.push_back(frame(&self.head.finish(reason, &entries)));
                self.ready.extend(self.head.usage(&usage).iter().map(frame));
                self.end();
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
pub(super) fn unfinished() -> Result<TextEvent> {
    Err(Error::new(Code::Internal, "the answer stopped without an end"))
}
