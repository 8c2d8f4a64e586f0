//! Answers, streamed or whole: the same events, told by the dialect's [`Teller`].
//!
//! Dropping a stream, or the future of a whole answer, cancels the row.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};

use super::rejection::Rejection;
use crate::error::{Code, Error, Result};
use crate::gateway::{AnswerEvent, Generation, LogprobEntry};
use crate::output::FoldedAnswer;
use crate::wire::{Ending, Frame, Teller};

/// Answers with what `teller` makes of `generation`.
pub(super) async fn respond(
    teller: impl Teller,
    generation: Generation,
    stream: bool,
) -> Result<Response, Rejection> {
    if stream {
        Ok(events(teller, generation).into_response())
    } else {
        Ok(Json(whole(teller, generation).await?).into_response())
    }
}

/// The answer as server-sent events.
fn events<T: Teller>(
    teller: T,
    generation: Generation,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let frames = stream::unfold(Frames::new(teller, generation), async |mut frames| {
        let Frame { event, data } = frames.next().await?;
        let named = event.map_or_else(Event::default, |name| Event::default().event(name));
        Some((Ok(named.data(data)), frames))
    });
    // Comments while a prompt waits or prefills: they keep proxies patient.
    Sse::new(frames).keep_alive(KeepAlive::default())
}

struct Frames<T> {
    teller: T,
    /// None once the answer is complete or failed.
    generation: Option<Generation>,
    /// Frames that are known and not yet sent.
    ready: VecDeque<Frame>,
}

impl<T: Teller> Frames<T> {
    fn new(mut teller: T, generation: Generation) -> Self {
        let ready = teller.opening().into();
        Self { teller, generation: Some(generation), ready }
    }

    async fn next(&mut self) -> Option<Frame> {
        while self.ready.is_empty() {
            let told = next_of(self.generation.as_mut()?).await;
            let frames = self.take(told);
            self.ready.extend(frames);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, told: Result<Told>) -> Vec<Frame> {
        match told {
            Ok(Told::Event(event)) => self.teller.event(event),
            Ok(Told::Logprobs(entries)) => {
                self.teller.logprobs(entries);
                Vec::new()
            }
            Ok(Told::End(ending)) => {
                self.generation = None;
                self.teller.ending(&ending)
            }
            Err(error) => {
                self.generation = None;
                self.teller.error(&error)
            }
        }
    }
}

/// The same events, folded into one answer.
async fn whole<T: Teller>(mut teller: T, mut generation: Generation) -> Result<T::Whole> {
    let mut answer = FoldedAnswer::default();
    loop {
        match next_of(&mut generation).await? {
            Told::Event(event) => answer.extend(event.into_part()),
            Told::Logprobs(entries) => teller.logprobs(entries),
            Told::End(ending) => return Ok(teller.whole(answer, &ending)),
        }
    }
}

/// What a generation tells next.
enum Told {
    Event(AnswerEvent),
    Logprobs(Vec<LogprobEntry>),
    End(Ending),
}

async fn next_of(generation: &mut Generation) -> Result<Told> {
    match generation.next().await.unwrap_or_else(unfinished)? {
        AnswerEvent::Finished { reason, usage } => {
            let stop = generation.matched_stop().map(str::to_owned);
            Ok(Told::End(Ending { reason, stop, usage }))
        }
        AnswerEvent::Logprobs(entries) => Ok(Told::Logprobs(entries)),
        event => Ok(Told::Event(event)),
    }
}

/// What takes the place of an end that never came.
fn unfinished() -> Result<AnswerEvent> {
    Err(Error::new(Code::Internal, "the answer stopped without an end"))
}
