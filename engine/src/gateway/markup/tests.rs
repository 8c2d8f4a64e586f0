//! What the grammars of calls let a model say, and what the parsers make of it.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::error::Code;
use crate::grammar::Constraint;
use crate::grammar::Grammars;
use crate::grammar::tests::{babble, compile, grammars_with};
use crate::output::{
    AnswerFormat, AnswerParser, Beginning, FoldedAnswer, MessageFormat, ParserOptions, TextEnd,
};

/// Pieces of markup and of values, and what looks like either.
const PIECES: &[&str] = &[
    "\n</parameter>",
    "</parameter>",
    "</arg_value>",
    "</longcat_arg_value>",
    "</param>",
    "</",
    "</atem:parameter>",
    "</｜DSML｜parameter>",
    "<|close|>argument<|sep|>",
    "<|\"|>",
    "<escape>",
    "<|end|>",
    "<|eom|>",
    "<|message|>",
    "<|start|>",
    "<|call|>",
    "<|eot|>",
    "<atem:function_calls>",
    "assistant",
    " to=user",
    " to=self",
    "true",
    "True",
    "None",
    "null",
    "abc",
    "{\"",
    "\": ",
    "\", \"",
    "\"}",
    "\\\"",
    "look",
    "at",
    "é",
    "\u{20ac}",
    "12",
    "e1",
    "),",
    "='",
];

fn tool(name: &str, parameters: &Value) -> Tool {
    Tool { name: name.to_owned(), description: None, parameters: parameters.as_object().cloned() }
}

fn tools() -> Arc<[Tool]> {
    [
        tool("look_at", &json!({"type": "object", "properties": {
            "place": {"type": "string"}, "zoom": {"type": "integer", "minimum": 1, "maximum": 20},
            "mode": {"enum": ["near", "far"]}, "tags": {"$ref": "#/$defs/tags"},
        }, "required": ["place", "zoom"], "additionalProperties": false,
            "$defs": {"tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}})),
        tool("write", &json!({"type": "object", "properties": {
            "text": {"type": ["string", "null"]},
            "at": {"type": "object", "properties": {
                "line": {"type": "integer"}, "in": {"type": "string"}, "deep": {"type": "boolean"},
            }, "required": ["in"], "additionalProperties": false},
            "size": {"type": "number", "minimum": -9.5, "maximum": 100}, "only": {"const": "this"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"enum": ["a", 1, null]},
                "minItems": 1, "maxItems": 3}]},
            "sure": {"type": "boolean"}, "free": {},
        }, "required": ["at", "sure"], "additionalProperties": false})),
        tool("stop", &json!({"type": "object", "properties": {}, "additionalProperties": false})),
    ]
    .into()
}

/// How a model that writes `format` answers, and where its answers begin.
fn answers(format: ToolFormat) -> (AnswerFormat, Beginning) {
    let (messages, beginning) = match format {
        ToolFormat::Harmony => (Some(MessageFormat::Harmony), Beginning::Head),
        ToolFormat::MuseSpark => (Some(MessageFormat::MuseSpark), Beginning::Head),
        _ => (None, Beginning::Text),
    };
    (AnswerFormat { tools: Some(format), messages, ..AnswerFormat::default() }, beginning)
}

fn parsed(format: ToolFormat, said: &str, piece_characters: usize) -> FoldedAnswer {
    let (format, beginning) = answers(format);
    let options = ParserOptions { tools: tools(), beginning, ..ParserOptions::default() };
    let mut parser = AnswerParser::new(&format, options);
    let characters: Vec<char> = said.chars().collect();
    let mut folded = FoldedAnswer::default();
    for piece in characters.chunks(piece_characters) {
        folded.extend(parser.push(&piece.iter().collect::<String>()));
    }
    folded.extend(parser.finish(TextEnd::Complete));
    folded
}

/// Holds what is said against `tools`; the names of the calls.
#[track_caller]
fn check_calls(format: ToolFormat, said: &str, tools: &[&Tool]) -> Vec<String> {
    let answer = parsed(format, said, 100_000);
    assert_eq!(parsed(format, said, 1).calls.len(), answer.calls.len(), "{format:?}: {said}");
    assert!(!answer.calls.is_empty(), "{format:?}: {said}");
    assert_eq!(answer.text.trim(), "", "{format:?}: {said}");
    let check = |call: crate::output::FoldedCall| {
        assert!(call.ended, "{format:?}: {said}");
        let tool = tools.iter().find(|tool| tool.name == call.name);
        let tool = tool.unwrap_or_else(|| panic!("{format:?} calls {}: {said}", call.name));
        let schema = Value::Object(tool.parameters.clone().unwrap());
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        assert!(jsonschema::is_valid(&schema, &arguments), "{format:?}: {said}\n{arguments}");
        call.name
    };
    answer.calls.into_iter().map(check).collect()
}

/// The names of the calls in each of `answers` answers that chance chooses.
fn called(
    format: ToolFormat,
    grammars: &Grammars,
    tools: &[&Tool],
    several: bool,
    answers: u64,
) -> Vec<Vec<String>> {
    let calls = calls(format, tools, several, None, &grammars.tokenizer).unwrap();
    let grammar = compile(grammars, &Constraint::Calls(calls));
    let said = |seed| {
        let tokens = babble(&mut grammar.matcher(), grammars, seed);
        grammars.tokenizer.decode_spelled(&tokens).unwrap()
    };
    (0..answers).map(|seed| check_calls(format, &said(seed), tools)).collect()
}

/// A vocabulary that spells the markers of `format`, and one that has them as tokens.
fn vocabularies(format: ToolFormat) -> [Grammars; 2] {
    let markers = answers(format).0.tokens(true);
    [grammars_with(PIECES, &[]), grammars_with(PIECES, &markers)]
}

#[test]
fn calls_in_every_markup_are_read_back_as_calls_that_match_their_schemas() {
    let tools = tools();
    let tools: Vec<&Tool> = tools.iter().collect();
    for format in ToolFormat::ALL {
        let seen = vocabularies(format)
            .map(|grammars| called(format, &grammars, &tools, true, 16))
            .concat();
        for tool in &tools {
            assert!(seen.iter().flatten().any(|name| *name == tool.name), "{format:?}");
        }
        let one = matches!(format, ToolFormat::Harmony | ToolFormat::Llama3);
        assert_eq!(seen.iter().any(|names| names.len() > 1), !one, "{format:?}");
    }
}

#[test]
fn one_call_is_one_call_and_a_named_tool_is_that_tool_in_every_markup() {
    let tools = tools();
    for format in ToolFormat::ALL {
        for grammars in vocabularies(format) {
            let any: Vec<&Tool> = tools.iter().collect();
            let seen = called(format, &grammars, &any, false, 4);
            assert!(seen.iter().all(|names| names.len() == 1), "{format:?}");
            for tool in tools.iter() {
                let seen = called(format, &grammars, &[tool], false, 2);
                let only = |names: &Vec<String>| *names == [tool.name.clone()];
                assert!(seen.iter().all(only), "{format:?}: {seen:?}");
            }
        }
    }
}

#[test]
fn json_that_may_stand_instead_of_a_call_is_the_visible_answer_in_every_markup() {
    let tools = tools();
    let tools: Vec<&Tool> = tools.iter().collect();
    let schema = json!({"type": "object", "properties": {"done": {"const": true}},
        "required": ["done"], "additionalProperties": false});
    for format in ToolFormat::ALL {
        let [grammars, _] = vocabularies(format);
        let instead = Part::Json { schema: schema.to_string(), strict: true };
        let calls = calls(format, &tools, true, Some(instead), &grammars.tokenizer).unwrap();
        let grammar = compile(&grammars, &Constraint::Calls(calls));
        let mut answered = 0;
        for seed in 0..20 {
            let tokens = babble(&mut grammar.matcher(), &grammars, seed);
            let said = grammars.tokenizer.decode_spelled(&tokens).unwrap();
            let answer = parsed(format, &said, 1000);
            if answer.calls.is_empty() {
                let value: Value = serde_json::from_str(&answer.text)
                    .unwrap_or_else(|error| panic!("{error}: {format:?}: {said}"));
                assert_eq!(value, json!({"done": true}));
                answered += 1;
            } else {
                check_calls(format, &said, &tools);
            }
        }
        assert!(answered > 0 && answered < 20, "{format:?}: {answered}");
    }
}

#[test]
fn what_a_form_cannot_write_is_refused_by_name_or_left_out() {
    let [grammars, _] = vocabularies(ToolFormat::Json);
    let odd = |required: bool| {
        let required = if required { json!(["two <words>"]) } else { json!([]) };
        tool(
            "f",
            &json!({"properties": {"two <words>": {"type": "integer"}}, "required": required}),
        )
    };
    for format in ToolFormat::ALL {
        let calls = |tool: &Tool| calls(format, &[tool], false, None, &grammars.tokenizer);
        assert!(calls(&odd(false)).is_ok(), "{format:?}");
        if let Err(error) = calls(&odd(true)) {
            assert_eq!((error.code(), error.param()), (Code::Unsupported, Some("tool_choice")));
            assert!(error.message().contains("`two <words>`"), "{error}");
        }
    }
    let name = tool("f:g", &json!({"type": "object"}));
    let python = calls(ToolFormat::Pythonic, &[&name], false, None, &grammars.tokenizer);
    assert!(python.unwrap_err().message().contains("`f:g`"));
}

#[test]
fn a_schema_that_refers_to_itself_is_written_as_deep_as_it_can_be() {
    let tree = tool(
        "grow",
        &json!({"type": "object", "properties": {"tree": {"$ref": "#/$defs/tree"}},
        "required": ["tree"], "additionalProperties": false,
        "$defs": {"tree": {"type": "object", "properties": {
            "leaf": {"type": "string"}, "below": {"$ref": "#/$defs/tree"},
        }, "required": ["leaf"], "additionalProperties": false}}}),
    );
    let endless = tool(
        "sink",
        &json!({"properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"],
        "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
            "required": ["a"]}}}),
    );
    let [grammars, _] = vocabularies(ToolFormat::Gemma4);
    let format = ToolFormat::Gemma4;
    assert_eq!(called(format, &grammars, &[&tree], false, 8), vec![["grow".to_owned()]; 8]);
    let error = calls(format, &[&endless], false, None, &grammars.tokenizer).unwrap_err();
    assert!(error.message().contains("`a`"), "{error}");
}
