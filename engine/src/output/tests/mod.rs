//! Answers of every format, cut in every way.

mod formats;
mod fuzz;
mod reasoning;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

/// Tools with arguments of every type.
pub(super) fn tools() -> Arc<[Tool]> {
    let tool = |name: &str, parameters: Value| Tool {
        name: name.to_owned(),
        description: None,
        parameters: parameters.as_object().cloned(),
    };
    Arc::new([
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string"}, "days": {"type": "integer"},
                "metric": {"type": "boolean"}, "hours": {"type": "array", "items": {"type": "integer"}},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            }}),
        ),
        tool("now", json!({"type": "object", "properties": {}})),
        tool(
            "write-file",
            json!({"properties": {"path": {"type": "string"}, "text": {"type": "string"}}}),
        ),
    ])
}

pub(super) fn options() -> ParserOptions {
    ParserOptions { tools: tools(), id_seed: "seed".to_owned(), ..ParserOptions::default() }
}

pub(super) fn calls(tools: ToolFormat) -> AnswerFormat {
    AnswerFormat { tools: Some(tools), reasoning: Some(ReasoningFormat::Think), messages: None }
}

/// Every part that `pieces` give, in order.
pub(super) fn parts<'a>(
    format: &AnswerFormat,
    options: &ParserOptions,
    pieces: impl IntoIterator<Item = &'a str>,
    end: TextEnd,
) -> Vec<AnswerPart> {
    let mut parser = AnswerParser::new(format, options.clone());
    let mut parts: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish(end));
    check_order(&parts);
    assert_eq!(parser.calls_ended(), folded(&parts).calls.iter().filter(|call| call.ended).count());
    parts
}

pub(super) fn folded(parts: &[AnswerPart]) -> FoldedAnswer {
    parts.iter().cloned().collect()
}

/// What [`AnswerPart`] promises.
fn check_order(parts: &[AnswerPart]) {
    let mut open = None;
    let mut ids = Vec::new();
    for part in parts {
        match part {
            AnswerPart::Reasoning(text) | AnswerPart::Text(text) => assert!(!text.is_empty()),
            AnswerPart::ToolCallStarted { index, id, name } => {
                assert_eq!(*index, ids.len());
                assert!(!id.is_empty() && !name.is_empty() && !ids.contains(id), "{id} of {ids:?}");
                ids.push(id.clone());
                open = Some(*index);
            }
            AnswerPart::ToolCallArguments { index, json } => {
                assert_eq!(Some(*index), open);
                assert!(!json.is_empty());
            }
            AnswerPart::ToolCallEnded { index } => assert_eq!(Some(*index), open.take()),
        }
    }
    for call in folded(parts).calls {
        let json = serde_json::from_str::<Value>(&call.arguments);
        if call.ended {
            assert!(json.is_ok_and(|json| json.is_object()), "{call:?}");
        } else {
            assert!(json.is_err(), "{call:?} looks complete");
        }
    }
}

/// The answer of `text` however it is cut.
#[track_caller]
pub(super) fn whole(format: &AnswerFormat, options: &ParserOptions, text: &str) -> FoldedAnswer {
    let whole = folded(&parts(format, options, [text], TextEnd::Complete));
    for pieces in cuts(text) {
        let cut = folded(&parts(format, options, pieces.iter().copied(), TextEnd::Complete));
        assert_eq!(cut, whole, "{pieces:?}");
    }
    whole
}

/// `text` in characters, in two pieces in every way, and in three in some.
fn cuts(text: &str) -> Vec<Vec<&str>> {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
    let mut cuts: Vec<Vec<&str>> =
        places.iter().map(|at| vec![&text[..*at], &text[*at..]]).collect();
    cuts.push(text.split_inclusive(|_: char| true).collect());
    for (step, at) in places.iter().enumerate() {
        let next = places.get(step + 1 + step % 9).copied().unwrap_or(text.len());
        cuts.push(vec![&text[..*at], &text[*at..next], &text[next..]]);
    }
    cuts
}

/// What an answer holds: reasoning, text, and name and arguments of each call.
#[track_caller]
pub(super) fn check(
    format: AnswerFormat,
    text: &str,
    reasoning: &str,
    visible: &str,
    calls: &[(&str, Value)],
) -> FoldedAnswer {
    let answer = whole(&format, &options(), text);
    assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), (reasoning, visible));
    let called: Vec<(&str, Value)> = answer
        .calls
        .iter()
        .map(|call| {
            assert!(call.ended, "{call:?}");
            (call.name.as_str(), serde_json::from_str(&call.arguments).unwrap())
        })
        .collect();
    assert_eq!(called, calls);
    check_truncations(&format, text, &answer);
    answer
}

/// An answer that was cut off anywhere presents nothing as complete that the whole one does not have,
/// and says no reasoning and no text that the whole one does not say.
fn check_truncations(format: &AnswerFormat, text: &str, whole: &FoldedAnswer) {
    for (at, _) in text.char_indices() {
        let pieces = [&text[..at]];
        let cut = folded(&parts(format, &options(), pieces, TextEnd::Cut));
        for (call, full) in cut.calls.iter().zip(&whole.calls) {
            assert_eq!((call.index, &call.id, &call.name), (full.index, &full.id, &full.name));
            assert!(full.arguments.starts_with(&call.arguments), "{call:?} {full:?}");
            assert!(!call.ended || call == full, "{call:?} {full:?}");
        }
        assert!(cut.calls.len() <= whole.calls.len());
        assert!(
            whole.reasoning.starts_with(cut.reasoning.trim_end_matches(['<', '[', '\n']))
                || cut.reasoning.contains(['<', '[', '◁']),
            "{cut:?}"
        );
    }
}
