//! Responses, as events and whole.
//!
//! Events are numbered from 0. In order: `response.created`, `response.in_progress`; items one after the
//! other, each from its `response.output_item.added` over its part and deltas to its
//! `response.output_item.done`; and then one of `response.completed`, `response.incomplete` and
//! `response.failed`, with the whole response.
//!
//! A function call that was cut off, or turned out to be none, is never done: its item is in the
//! response, as incomplete.

use serde::Serialize;
use serde_json::Value;

use super::items::{Item, Part, Status, TokenEntry};
use super::request::{Echo, new_id};
use crate::error::{Code, Error};
use crate::gateway::{FinishReason, LogprobEntry, Usage};
use crate::output::AnswerPart;
use crate::wire::conversation::Conversation;
use crate::wire::timings::Timings;
use crate::wire::{Ending, Frame, Teller, tools};

/// A response, whole or on its way.
#[derive(Debug, Clone, Serialize)]
pub struct Response {
    id: String,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    background: bool,
    error: Option<Failure>,
    incomplete_details: Option<Cut>,
    model: String,
    output: Vec<Item>,
    usage: Option<UsageCounts>,
    #[serde(flatten)]
    echo: Echo,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Debug, Clone, Serialize)]
struct Failure {
    code: &'static str,
    message: String,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Cut {
    reason: &'static str,
    /// In words of ours, where OpenAI's say less.
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct UsageCounts {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct InputDetails {
    cached_tokens: usize,
    /// Always 0: nothing is billed for keeping them.
    cache_write_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
}

impl Response {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What it says.
    pub fn output(&self) -> &[Item] {
        &self.output
    }

    /// Whether it may be asked for later.
    pub fn is_kept(&self) -> bool {
        self.echo.store
    }
}

/// Tells one response.
#[derive(Debug)]
pub struct ResponseTeller {
    response: Response,
    /// Whether the last item of the output is still being told.
    open: bool,
    /// The number of the next event.
    sequence: u64,
    /// What is known of tokens whose text is still to come.
    entries: Vec<TokenEntry>,
}

/// An event without its number.
struct Event {
    kind: &'static str,
    body: EventBody,
}

#[derive(Serialize)]
struct NumberedEvent {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    body: EventBody,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EventBody {
    Response {
        response: Box<Response>,
    },
    Item {
        output_index: usize,
        item: Item,
    },
    Part {
        #[serde(flatten)]
        place: Place,
        part: Part,
    },
    Delta {
        #[serde(flatten)]
        place: Place,
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenEntry>>,
    },
    Text {
        #[serde(flatten)]
        place: Place,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenEntry>>,
    },
    Arguments {
        #[serde(flatten)]
        place: Place,
        name: String,
        arguments: String,
    },
}

/// Where in the output something is.
#[derive(Clone, Serialize)]
struct Place {
    item_id: String,
    output_index: usize,
    /// Of the part, in items that have any.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
}

impl Place {
    fn of(item: &Item, output_index: usize) -> Self {
        let content_index = item.part().map(|_| 0);
        Self { item_id: item.id().to_owned(), output_index, content_index }
    }
}

impl ResponseTeller {
    /// A teller of the response `id` of `model` to a request that is echoed as `echo`.
    pub fn new(id: String, created_at: u64, model: String, echo: Echo) -> Self {
        let response = Response {
            id,
            object: "response",
            created_at,
            status: "in_progress",
            background: false,
            error: None,
            incomplete_details: None,
            model,
            output: Vec::new(),
            usage: None,
            echo,
            timings: None,
        };
        Self { response, open: false, sequence: 0, entries: Vec::new() }
    }

    /// The response as it is by now.
    pub fn response(&self) -> &Response {
        &self.response
    }

    /// `conversation` with the answer behind it, as it would be if its client sent the output back.
    pub fn continued(&self, conversation: Vec<Value>) -> Vec<Value> {
        let mut conversation = Conversation::after(conversation);
        for item in &self.response.output {
            match item {
                Item::Reasoning { .. } => conversation.think(item.text()),
                Item::Message { .. } => conversation.answer(item.text()),
                Item::FunctionCall {
                    status: Status::Completed,
                    call_id,
                    name,
                    namespace,
                    arguments,
                    ..
                } => {
                    let name = tools::joined(namespace.as_deref(), name);
                    conversation.call(Some(call_id), &name, &arguments.as_str().into());
                }
                // Nobody can have run it.
                Item::FunctionCall { .. } => {}
            }
        }
        conversation.into_messages()
    }

    fn part(&mut self, part: AnswerPart) -> Vec<Event> {
        match part {
            AnswerPart::Reasoning(text) => {
                let mut events = self.enter(
                    |item| matches!(item, Item::Reasoning { .. }),
                    || {
                        let (id, content) = (new_id("rs"), vec![Part::reasoning_text()]);
                        Item::Reasoning {
                            id,
                            status: Status::InProgress,
                            summary: [],
                            content,
                            encrypted_content: None,
                        }
                    },
                );
                events.extend(self.say("response.reasoning_text.delta", text));
                events
            }
            AnswerPart::Text(text) => {
                let mut events = self.enter(
                    |item| matches!(item, Item::Message { .. }),
                    || {
                        let (id, content) = (new_id("msg"), vec![Part::output_text()]);
                        Item::Message { id, status: Status::InProgress, role: "assistant", content }
                    },
                );
                events.extend(self.say("response.output_text.delta", text));
                events
            }
            AnswerPart::ToolCallStarted { id: call_id, name, .. } => {
                let own = self.response.echo.namespaced(&name);
                let own = own.map(|(namespace, name)| (Some(namespace.into()), name.into()));
                let (namespace, name) = own.unwrap_or((None, name));
                let (id, status, arguments) = (new_id("fc"), Status::InProgress, String::new());
                let call = Item::FunctionCall { id, status, call_id, name, namespace, arguments };
                self.enter(|_| false, || call)
            }
            AnswerPart::ToolCallArguments { json, .. } => {
                self.say("response.function_call_arguments.delta", json).into_iter().collect()
            }
            AnswerPart::ToolCallEnded { .. } => self.close(Status::Completed),
        }
    }

    /// Goes on with the open item if it `fits`, or else ends it and begins a new one.
    fn enter(&mut self, fits: impl Fn(&Item) -> bool, new: impl FnOnce() -> Item) -> Vec<Event> {
        if self.open && self.response.output.last().is_some_and(fits) {
            return Vec::new();
        }
        let mut events = self.close_unfinished(Status::Completed);
        let (item, output_index) = (new(), self.response.output.len());
        let added = EventBody::Item { output_index, item: item.bare() };
        events.push(Event { kind: "response.output_item.added", body: added });
        if let Some(part) = item.part().cloned() {
            let body = EventBody::Part { place: Place::of(&item, output_index), part };
            events.push(Event { kind: "response.content_part.added", body });
        }
        self.response.output.push(item);
        self.open = true;
        events
    }

    /// Adds to the open item.
    fn say(&mut self, kind: &'static str, delta: String) -> Option<Event> {
        let output_index = self.response.output.len().checked_sub(1)?;
        let item = self.response.output.last_mut()?;
        item.append(&delta)?;
        let logprobs = matches!(item, Item::Message { .. }).then(|| {
            let entries = std::mem::take(&mut self.entries);
            item.append_logprobs(&entries);
            entries
        });
        let body = EventBody::Delta { place: Place::of(item, output_index), delta, logprobs };
        Some(Event { kind, body })
    }

    /// Ends the open item, if one is, as `status`; or as incomplete when it is a call, whose own end is yet
    /// to come then.
    fn close_unfinished(&mut self, status: Status) -> Vec<Event> {
        let last = self.response.output.last();
        let call = last.is_some_and(|item| matches!(item, Item::FunctionCall { .. }));
        self.close(if call { Status::Incomplete } else { status })
    }

    /// Ends the open item, if one is. A call that did not complete has no end to tell.
    fn close(&mut self, status: Status) -> Vec<Event> {
        let Some(item) = self.response.output.last_mut().filter(|_| self.open) else {
            return Vec::new();
        };
        self.open = false;
        item.set_status(status);
        if self.response.echo.seals_reasoning {
            item.seal();
        }
        if status != Status::Completed && matches!(item, Item::FunctionCall { .. }) {
            return Vec::new();
        }
        let item = item.clone();
        let output_index = self.response.output.len() - 1;
        let place = Place::of(&item, output_index);
        let text = item.text().to_owned();
        let logprobs = item.part().and_then(Part::logprobs).map(<[_]>::to_vec);
        let (kind, body) = match &item {
            Item::Reasoning { .. } => {
                ("response.reasoning_text.done", EventBody::Text { place, text, logprobs })
            }
            Item::Message { .. } => {
                ("response.output_text.done", EventBody::Text { place, text, logprobs })
            }
            Item::FunctionCall { name, .. } => {
                let (name, arguments) = (name.clone(), text);
                let body = EventBody::Arguments { place, name, arguments };
                ("response.function_call_arguments.done", body)
            }
        };
        let mut events = vec![Event { kind, body }];
        if let Some(part) = item.part().cloned() {
            let body = EventBody::Part { place: Place::of(&item, output_index), part };
            events.push(Event { kind: "response.content_part.done", body });
        }
        let body = EventBody::Item { output_index, item };
        events.push(Event { kind: "response.output_item.done", body });
        events
    }

    /// Makes the response whole and tells what was still open.
    fn finish(&mut self, ending: &Ending) -> Vec<Event> {
        let (status, cut) = match ending.reason {
            FinishReason::Stop | FinishReason::ToolCalls => ("completed", None),
            FinishReason::Length => ("incomplete", Some("max_output_tokens")),
            // OpenAI's word for an answer whose rest the server withholds: strict clients refuse others.
            FinishReason::Cancelled => ("incomplete", Some("content_filter")),
        };
        let cancelled = ending.reason == FinishReason::Cancelled;
        let explanation = cancelled.then_some("the request was cancelled");
        let whole = if cut.is_none() { Status::Completed } else { Status::Incomplete };
        let events = self.close_unfinished(whole);
        self.response.status = status;
        self.response.incomplete_details = cut.map(|reason| Cut { reason, explanation });
        self.response.usage = Some(UsageCounts::from(&ending.usage));
        self.response.timings = Some(Timings::from(&ending.usage));
        events
    }

    fn whole_event(&self, kind: &'static str) -> Event {
        Event { kind, body: EventBody::Response { response: Box::new(self.response.clone()) } }
    }

    fn frames(&mut self, events: Vec<Event>) -> Vec<Frame> {
        events.into_iter().map(|event| self.frame(event)).collect()
    }

    fn frame(&mut self, Event { kind, body }: Event) -> Frame {
        let sequence_number = self.sequence;
        self.sequence += 1;
        Frame::named(kind, &NumberedEvent { kind, sequence_number, body })
    }
}

impl Teller for ResponseTeller {
    type Whole = Response;

    const COUNTS_EVENTS: bool = true;

    fn opening(&mut self) -> Vec<Frame> {
        let kinds = ["response.created", "response.in_progress"];
        let events = kinds.map(|kind| self.whole_event(kind));
        self.frames(events.into())
    }

    fn tell(&mut self, part: AnswerPart) -> Vec<Frame> {
        let events = self.part(part);
        self.frames(events)
    }

    fn logprobs(&mut self, entries: Vec<LogprobEntry>) {
        self.entries.extend(entries.iter().filter(|entry| entry.visible).map(TokenEntry::from));
    }

    fn ending(&mut self, ending: &Ending) -> Vec<Frame> {
        let mut events = self.finish(ending);
        let kind = match self.response.incomplete_details {
            None => "response.completed",
            Some(_) => "response.incomplete",
        };
        events.push(self.whole_event(kind));
        self.frames(events)
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        self.close(Status::Incomplete);
        self.response.status = "failed";
        let (code, message) = (failure_code(error.code()), error.to_string());
        self.response.error = Some(Failure { code, message });
        let failed = self.whole_event("response.failed");
        vec![self.frame(failed)]
    }

    fn idle(&mut self) -> Frame {
        let event = self.whole_event("response.in_progress");
        self.frame(event)
    }

    fn fold(&mut self, part: AnswerPart) {
        self.part(part);
    }

    fn whole(&mut self, ending: &Ending) -> Response {
        self.finish(ending);
        self.response.clone()
    }
}

/// That a stored response was forgotten.
#[derive(Debug, Clone, Serialize)]
pub struct DeletedBody {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl DeletedBody {
    /// The response `id` was.
    pub fn new(id: String) -> Self {
        Self { id, object: "response", deleted: true }
    }
}

/// The code of a failed response, of those that OpenAI's clients know.
fn failure_code(code: Code) -> &'static str {
    match code {
        Code::QueueFull => "rate_limit_exceeded",
        Code::ContextLengthExceeded => "context_length_exceeded",
        Code::InvalidRequest | Code::Unsupported | Code::OverBudget => "invalid_prompt",
        Code::ModelNotFound
        | Code::ModelUnavailable
        | Code::InUse
        | Code::ShuttingDown
        | Code::EngineFailed
        | Code::BadModel
        | Code::BadImport
        | Code::HubDenied
        | Code::HubUnreachable
        | Code::DiskFull
        | Code::Io
        | Code::Internal => "server_error",
    }
}

impl From<&Usage> for UsageCounts {
    fn from(usage: &Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.generated_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.generated_tokens,
        }
    }
}
