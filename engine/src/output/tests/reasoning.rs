//! Reasoning, opened by the model or by its prompt.

use serde_json::json;

use super::*;

fn thinking(reasoning: ReasoningFormat) -> AnswerFormat {
    AnswerFormat { reasoning: Some(reasoning), ..AnswerFormat::default() }
}

#[track_caller]
fn check_open(format: AnswerFormat, text: &str, reasoning: &str, visible: &str) {
    let options = ParserOptions { beginning: Beginning::Reasoning, ..options() };
    let answer = whole(&format, &options, text);
    assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), (reasoning, visible));
}

#[test]
fn every_pair_of_markers_splits_reasoning_from_text() {
    for format in ReasoningFormat::ALL {
        let (begin, end) = format.markers();
        let text = format!("{begin}\nSo  it\n is.\n{end}\n\nHi.\n\n");
        check(thinking(format), &text, "So  it\n is.", "Hi.\n\n", &[]);
        check(thinking(format), "Hi.", "", "Hi.", &[]);
        check(thinking(format), &format!("{begin}\n\n{end}\n\nHi."), "", "Hi.", &[]);
        check_open(thinking(format), &format!("So.\n{end}\nHi."), "So.", "Hi.");
        check_open(thinking(format), "So.", "So.", "");
        // A prompt that opened reasoning, and a model that does so once more.
        check_open(thinking(format), &format!("\n{begin}So.{end}Hi."), "So.", "Hi.");
    }
}

#[test]
fn reasoning_may_come_again() {
    let text = "<think>a</think>One.\n<think>\nb\n</think>\nTwo.";
    check(thinking(ReasoningFormat::Think), text, "a\n\nb", "One.\n\nTwo.", &[]);
}

#[test]
fn a_closing_marker_that_closes_nothing_is_text_unless_it_repeats_one() {
    let format = thinking(ReasoningFormat::Think);
    check(format, "The tag </think> ends it.", "", "The tag </think> ends it.", &[]);
    check(format, "<think>a</think>\n</think>\nHi </think>.", "a", "Hi </think>.", &[]);
}

#[test]
fn the_beginning_of_a_marker_at_the_end_is_text() {
    check(thinking(ReasoningFormat::Think), "Hi <thi", "", "Hi <thi", &[]);
    check(thinking(ReasoningFormat::Think), "<think>Hi </thi", "Hi </thi", "", &[]);
}

#[test]
fn a_known_tool_can_be_called_out_of_reasoning_that_was_never_closed() {
    let format = calls(ToolFormat::Json);
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    check(format, &format!("<think>I look.\n{call}"), "I look.", "", &[("now", json!({}))]);
    let text = format!(
        "<think>I write <tool_call> and {} first</think>Hi.",
        call.replace("now", "unknown")
    );
    let reasoning = text[7..].strip_suffix("</think>Hi.").unwrap();
    check(format, &text, reasoning, "Hi.", &[]);
}

#[test]
fn the_parser_knows_when_it_reads_reasoning() {
    let mut parser = AnswerParser::new(&thinking(ReasoningFormat::Think), ParserOptions::default());
    let mut states = Vec::new();
    for piece in ["<think>", "a", "</think>", "b"] {
        parser.push(piece);
        states.push(parser.is_reasoning());
    }
    assert_eq!(states, [true, true, false, false]);
}
