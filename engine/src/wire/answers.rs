//! Answers of every kind, for tests of tellers.

use proptest::prelude::*;
use serde_json::Value;

use super::{Ending, Frame, Teller};
use crate::error::{Code, Error};
use crate::gateway::{FinishReason, Usage};
use crate::output::{AnswerPart, FoldedAnswer};
use crate::scheduler::Lane;

/// An answer as a generation tells it.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) parts: Vec<AnswerPart>,
    /// How it ends, or that it fails.
    pub(super) end: Result<Ending, Error>,
}

impl Answer {
    /// What `teller` makes of it as a stream.
    pub(super) fn streamed(&self, teller: &mut impl Teller) -> Vec<Frame> {
        let mut frames = teller.opening();
        for part in &self.parts {
            frames.extend(teller.tell(part.clone()));
        }
        frames.extend(match &self.end {
            Ok(ending) => teller.ending(ending),
            Err(error) => teller.error(error),
        });
        frames
    }

    /// What `teller` makes of it as a whole; `None` when it fails.
    pub(super) fn whole(&self, teller: &mut impl Teller) -> Option<Value> {
        let ending = self.end.as_ref().ok()?;
        let whole = teller.whole(self.folded(), ending);
        Some(serde_json::to_value(whole).unwrap())
    }

    pub(super) fn folded(&self) -> FoldedAnswer {
        self.parts.iter().cloned().collect()
    }
}

/// An end for `reason`, of a prompt of 9 tokens of which a cache had 4.
pub(super) fn ending(reason: FinishReason, stop: Option<&str>) -> Ending {
    let usage = Usage {
        lane: Lane::Continuous,
        lane_reasons: Vec::new(),
        prompt_tokens: 9,
        cached_tokens: 4,
        cache_miss: None,
        generated_tokens: 5,
        reasoning_tokens: 0,
        queue_ms: 0.5,
        prefill_ms: 0.5,
        first_token_ms: 1.5,
        decode_ms: 2.5,
    };
    Ending { reason, stop: stop.map(str::to_owned), usage }
}

/// Any answer that a generation may tell.
pub(super) fn any_answer() -> impl Strategy<Value = Answer> {
    let piece = prop_oneof![
        "[a-z é\"]{1,6}".prop_map(|text| vec![AnswerPart::Reasoning(text)]),
        "[a-z é\"]{1,6}".prop_map(|text| vec![AnswerPart::Text(text)]),
        prop::collection::vec("[a-z\"\\\\é]{0,4}", 1..4).prop_map(call),
        // What turned out to be no call, in the middle of an answer.
        prop::collection::vec("[a-z\"\\\\é]{0,4}", 1..4).prop_map(|texts| {
            let mut parts = call(texts);
            parts.truncate(parts.len() - 2);
            parts
        }),
    ];
    let ends = prop_oneof![
        Just(Ok(FinishReason::Stop)),
        Just(Ok(FinishReason::Length)),
        Just(Ok(FinishReason::Cancelled)),
        Just(Err(Error::new(Code::EngineFailed, "gone"))),
    ];
    let cut = any::<prop::sample::Index>();
    (prop::collection::vec(piece, 0..6), ends, any::<bool>(), cut).prop_map(
        |(pieces, end, is_cut, cut)| {
            let mut parts: Vec<_> = numbered(pieces.into_iter().flatten());
            if is_cut && end != Ok(FinishReason::Stop) {
                parts.truncate(cut.index(parts.len() + 1));
                // A call that did not end is no whole JSON.
                parts.pop_if(|last| {
                    matches!(last, AnswerPart::ToolCallArguments { json, .. } if json.ends_with("]}"))
                });
            }
            let called = parts.iter().any(|part| matches!(part, AnswerPart::ToolCallEnded { .. }));
            let end = end.map(|reason| match reason {
                FinishReason::Stop if called => ending(FinishReason::ToolCalls, None),
                reason => ending(reason, None),
            });
            Answer { parts, end }
        },
    )
}

/// A whole call whose arguments come in as many pieces as `texts`.
fn call(texts: Vec<String>) -> Vec<AnswerPart> {
    let mut parts = vec![AnswerPart::ToolCallStarted {
        index: 0,
        id: String::new(),
        name: "weather".to_owned(),
    }];
    let last = texts.len() - 1;
    let pieces = texts.into_iter().enumerate().map(|(at, text)| {
        let quoted = Value::from(text).to_string();
        let (open, close) =
            (if at == 0 { "{\"k\":[" } else { "," }, if at == last { "]}" } else { "" });
        AnswerPart::ToolCallArguments { index: 0, json: format!("{open}{quoted}{close}") }
    });
    parts.extend(pieces);
    parts.push(AnswerPart::ToolCallEnded { index: 0 });
    parts
}

/// The same parts with calls that count from 0 and have ids.
fn numbered(parts: impl Iterator<Item = AnswerPart>) -> Vec<AnswerPart> {
    let mut calls = 0;
    parts
        .map(|part| match part {
            AnswerPart::ToolCallStarted { name, .. } => {
                calls += 1;
                AnswerPart::ToolCallStarted { index: calls - 1, id: format!("call_{calls}"), name }
            }
            AnswerPart::ToolCallArguments { json, .. } => {
                AnswerPart::ToolCallArguments { index: calls - 1, json }
            }
            AnswerPart::ToolCallEnded { .. } => AnswerPart::ToolCallEnded { index: calls - 1 },
            text => text,
        })
        .collect()
}

/// The data of a frame, which must be JSON.
pub(super) fn data(frame: &Frame) -> Value {
    serde_json::from_str(&frame.data).unwrap_or_else(|error| panic!("{error}: {frame:?}"))
}
