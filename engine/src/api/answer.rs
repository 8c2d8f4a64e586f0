//! Answers, streamed or whole: the same events, told by the dialect's [`Teller`].
//!
//! Dropping a stream, or the future of a whole answer, cancels the row.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::Json;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};

use super::pulse::{Beat, Pulse};
use super::rejection::Rejection;
use crate::config::KeepAlive;
use crate::error::{Code, Error, Result};
use crate::gateway::{AnswerEvent, Engine, Generation, LogprobEntry};
use crate::output::AnswerPart;
use crate::wire::{Ending, Frame, Teller};

/// How an answer is to be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// In events, or whole.
    pub(super) stream: bool,
    /// What a silent stream sends.
    pub(super) keep_alive: KeepAlive,
}

/// Answers with what `teller` makes of `generation`, a request of `engine`.
pub(super) async fn respond(
    engine: Engine,
    manner: Manner,
    teller: impl Teller,
    generation: Generation,
) -> Result<Response, Rejection> {
    if manner.stream {
        let frames = Frames::new(engine, manner.keep_alive, teller, generation);
        Ok(Sse::new(events(frames)).into_response())
    } else {
        Ok(Json(whole(teller, generation).await?).into_response())
    }
}

/// The answer as server-sent events.
fn events<T: Teller>(frames: Frames<T>) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(frames, async |mut frames| Some((Ok(frames.next().await?), frames)))
}

struct Frames<T> {
    engine: Engine,
    pulse: Pulse,
    teller: T,
    id: String,
    /// None once the answer is complete or failed.
    generation: Option<Generation>,
    /// Frames that are known and not yet sent.
    ready: VecDeque<Event>,
}

impl<T: Teller> Frames<T> {
    fn new(engine: Engine, keep_alive: KeepAlive, mut teller: T, generation: Generation) -> Self {
        let pulse = Pulse::new(keep_alive, T::COUNTS_EVENTS, engine.clock().now());
        let ready = teller.opening().into_iter().map(event).collect();
        let id = generation.id().to_owned();
        Self { engine, pulse, teller, id, generation: Some(generation), ready }
    }

    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            let generation = self.generation.as_mut()?;
            let told = tokio::select! {
                biased;
                told = next_of(generation) => Some(told),
                () = self.engine.clock().sleep_until(self.pulse.due()) => None,
            };
            match told {
                Some(told) => {
                    self.pulse.note_answer(self.engine.clock().now());
                    let frames = self.take(told);
                    self.ready.extend(frames.into_iter().map(event));
                }
                None => self.beat(),
            }
        }
        self.ready.pop_front()
    }

    fn beat(&mut self) {
        let now = self.engine.clock().now();
        match self.pulse.beat(now, &self.engine.snapshot(), &self.id) {
            Beat::Rest => {}
            Beat::Comment(text) => self.ready.push_back(Event::default().comment(text)),
            Beat::Idle => self.ready.push_back(event(self.teller.idle())),
        }
    }

    fn take(&mut self, told: Result<Told>) -> Vec<Frame> {
        match told {
            Ok(Told::Part(part)) => self.teller.tell(part),
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

fn event(Frame { event, data }: Frame) -> Event {
    event.map_or_else(Event::default, |name| Event::default().event(name)).data(data)
}

/// The same events, joined to one answer.
async fn whole<T: Teller>(mut teller: T, mut generation: Generation) -> Result<T::Whole> {
    let mut parts = Vec::new();
    loop {
        match next_of(&mut generation).await? {
            Told::Part(part) => AnswerPart::join(&mut parts, part),
            Told::Logprobs(entries) => teller.logprobs(entries),
            Told::End(ending) => return Ok(teller.whole(parts, &ending)),
        }
    }
}

/// What a generation tells next.
enum Told {
    Part(AnswerPart),
    Logprobs(Vec<LogprobEntry>),
    End(Ending),
}

/// Dropping the future loses nothing.
async fn next_of(generation: &mut Generation) -> Result<Told> {
    match generation.next().await.unwrap_or_else(unfinished)? {
        AnswerEvent::Finished { reason, usage } => {
            let stop = generation.matched_stop().map(str::to_owned);
            Ok(Told::End(Ending { reason, stop, usage }))
        }
        AnswerEvent::Logprobs(entries) => Ok(Told::Logprobs(entries)),
        AnswerEvent::Part(part) => Ok(Told::Part(part)),
    }
}

/// What takes the place of an end that never came.
fn unfinished() -> Result<AnswerEvent> {
    Err(Error::new(Code::Internal, "the answer stopped without an end"))
}
