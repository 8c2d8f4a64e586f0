//! The grammar of events, and what requests become.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{MessageTeller, count_tokens, messages};
use crate::error::{Code, Error};
use crate::gateway::script::card;
use crate::gateway::{FinishReason, Prompt, ReasoningEffort, Structure, ToolChoice};
use crate::grammar::Constraint;
use crate::wire::answers::{Answer, any_answer, data, ending};
use crate::wire::{Frame, Teller};

fn teller() -> MessageTeller {
    MessageTeller::new("msg_1", "lab/bytes", 9)
}

/// Reads a stream as a client does, and panics where it breaks the grammar. A message whose calls were
/// cut off is returned without them, or `None` when the stream ended in an error.
fn read(frames: &[Frame]) -> Option<Value> {
    let mut events = frames.iter().map(|frame| {
        let event = data(frame);
        assert_eq!(frame.event, event["type"].as_str(), "{frame:?}");
        event
    });
    let start = events.next().expect("a stream begins");
    assert_eq!(start["type"], "message_start");
    let mut message = start["message"].clone();
    let mut open: Option<(Value, String)> = None;
    while let Some(event) = events.next() {
        match event["type"].as_str().unwrap() {
            "ping" => {}
            "content_block_start" => {
                assert!(open.is_none(), "a block within a block");
                assert_eq!(event["index"], message["content"].as_array().unwrap().len());
                open = Some((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                let (block, json) = open.as_mut().expect("a delta belongs to a block");
                assert_eq!(event["index"], message["content"].as_array().unwrap().len());
                take_delta(block, json, &event["delta"]);
            }
            "content_block_stop" => {
                let (mut block, json) = open.take().expect("an end belongs to a block");
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&json).unwrap_or(Value::Null);
                }
                message["content"].as_array_mut().unwrap().push(block);
            }
            "message_delta" => {
                assert!(open.is_none(), "the message ended within a block");
                assert_eq!(message["stop_reason"], Value::Null, "a second stop reason");
                for name in ["stop_reason", "stop_sequence", "stop_details"] {
                    message[name] = event["delta"][name].clone();
                }
                (message["usage"], message["timings"]) =
                    (event["usage"].clone(), event["timings"].clone());
            }
            "message_stop" => {
                assert_ne!(message["stop_reason"], Value::Null, "no stop reason");
                assert!(events.next().is_none(), "something follows the end");
                return Some(message);
            }
            "error" => {
                assert_eq!(event["error"]["type"], "overloaded_error");
                assert!(events.next().is_none(), "something follows the error");
                return None;
            }
            other => panic!("{other} is no event"),
        }
    }
    panic!("the stream does not end");
}

fn take_delta(block: &mut Value, json: &mut String, delta: &Value) {
    let append = |block: &mut Value, name: &str| {
        let text = format!("{}{}", block[name].as_str().unwrap(), delta[name].as_str().unwrap());
        block[name] = Value::from(text);
    };
    match (block["type"].as_str().unwrap(), delta["type"].as_str().unwrap()) {
        ("text", "text_delta") => append(block, "text"),
        ("thinking", "thinking_delta") => append(block, "thinking"),
        ("thinking", "signature_delta") => append(block, "signature"),
        ("tool_use", "input_json_delta") => json.push_str(delta["partial_json"].as_str().unwrap()),
        (block, delta) => panic!("a {delta} in a {block}"),
    }
}

/// A message without the calls that were cut off, which a whole one has not.
fn without_open_calls(mut message: Value) -> Value {
    message["content"]
        .as_array_mut()
        .unwrap()
        .retain(|block| block["type"] != "tool_use" || block["input"].is_object());
    message
}

proptest! {
    #[test]
    fn any_stream_keeps_the_grammar_ends_once_and_says_what_the_whole_message_says(
        answer in any_answer(),
    ) {
        let streamed = read(&answer.streamed(&mut teller()));
        prop_assert_eq!(streamed.map(without_open_calls), answer.whole(&mut teller()));
    }
}

#[test]
fn stop_reasons_are_anthropics_and_tokens_are_counted_once() {
    for (reason, stop, expected) in [
        (FinishReason::Stop, None, ("end_turn", Value::Null)),
        (FinishReason::Stop, Some("END"), ("stop_sequence", json!("END"))),
        (FinishReason::Length, None, ("max_tokens", Value::Null)),
        (FinishReason::ToolCalls, None, ("tool_use", Value::Null)),
        (FinishReason::Cancelled, None, ("refusal", Value::Null)),
    ] {
        let answer = Answer { parts: Vec::new(), end: Ok(ending(reason, stop)) };
        let message = answer.whole(&mut teller()).unwrap();
        assert_eq!(
            (message["stop_reason"].as_str().unwrap(), message["stop_sequence"].clone()),
            expected
        );
        let explained = !message["stop_details"]["explanation"].is_null();
        assert_eq!(explained, reason == FinishReason::Cancelled, "{message}");
        assert_eq!(
            message["usage"],
            json!({
                "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
                "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 0},
            })
        );
    }
}

#[test]
fn an_error_has_anthropics_family_and_a_long_prompt_its_words() {
    for (code, kind) in [
        (Code::InvalidRequest, "invalid_request_error"),
        (Code::ModelNotFound, "not_found_error"),
        (Code::QueueFull, "rate_limit_error"),
        (Code::Internal, "api_error"),
    ] {
        let frames = teller().error(&Error::new(code, "no"));
        let expected = json!({"type": "error", "error": {"type": kind, "message": "no"}});
        assert_eq!((frames.len(), data(&frames[0])), (1, expected));
    }
    let frames = teller().error(&Error::new(Code::ContextLengthExceeded, "9 of 8"));
    assert_eq!(data(&frames[0])["error"]["message"], "prompt is too long: 9 of 8");
}

fn body(fields: Value) -> Value {
    let mut body = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    });
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn conversation(fields: Value) -> Value {
    let Prompt::Chat { messages } = count_tokens(&body(fields), &card()).unwrap().prompt else {
        panic!("messages are a chat")
    };
    Value::from(messages)
}

#[test]
fn blocks_become_messages_that_templates_read() {
    let cached = json!({"type": "ephemeral"});
    let system = json!([
        {"type": "text", "text": "Be brief.", "cache_control": cached},
        {"type": "text", "text": "Be kind."},
    ]);
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "s"},
            {"type": "text", "text": "calling"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": [1]}},
            {"type": "tool_use", "id": "t2", "name": "stop", "input": {}, "cache_control": cached},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [
                {"type": "text", "text": "red"}, {"type": "text", "text": "blue"},
            ]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": true},
            {"type": "tool_result", "tool_use_id": "t2"},
            {"type": "text", "text": "go on", "cache_control": cached},
        ]},
    ]);
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let result =
        |id: &str, content: &str| json!({"role": "tool", "tool_call_id": id, "content": content});
    assert_eq!(
        conversation(json!({"system": system, "messages": messages})),
        json!([
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "a\nb"},
            {
                "role": "assistant", "content": "calling", "reasoning_content": "hm",
                "tool_calls": [call("t1", "look", json!({"at": [1]})), call("t2", "stop", json!({}))],
            },
            result("t1", "red\nblue"),
            result("t2", "Error: no"),
            result("t2", ""),
            {"role": "user", "content": "go on"},
        ])
    );
    assert_eq!(
        conversation(json!({"system": "Be brief."})),
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}])
    );
}

#[test]
fn texts_with_a_source_are_text_wherever_a_user_hands_them_on() {
    let document = |source: Value| json!({"type": "document", "source": source, "title": "Bees", "citations": {"enabled": true}});
    let plain = document(json!({"type": "text", "media_type": "text/plain", "data": "They fly."}));
    let listed = document(
        json!({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
    );
    let found = json!({
        "type": "search_result", "title": "Wasps", "source": "https://wasps",
        "content": [{"type": "text", "text": "So do they."}],
    });
    let blocks = json!([plain, listed, found]);
    let said = "Bees\nThey fly.\nBees\na\nb\nWasps\nhttps://wasps\nSo do they.";
    let user = |content: &Value| json!([{"role": "user", "content": content}]);
    let told = conversation(json!({"messages": user(&blocks)}));
    assert_eq!(told, json!([{"role": "user", "content": said}]));
    let referred = json!([found, {"type": "tool_reference", "tool_name": "look"}]);
    for (content, failed, expected) in [
        (&blocks, false, said),
        (&referred, false, "Wasps\nhttps://wasps\nSo do they.\nlook"),
        (&json!([]), true, "Error:"),
        (&json!("gone"), true, "Error: gone"),
    ] {
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": failed});
        let told = conversation(json!({"messages": user(&json!([result]))}));
        assert_eq!(told[0]["content"], expected);
    }
}

#[test]
fn what_is_no_text_is_refused_where_it_stands() {
    let pdf = json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}});
    let image = json!({"type": "image", "source": {"type": "url", "url": "x"}});
    let in_result = json!({"type": "tool_result", "tool_use_id": "t", "content": [image]});
    for (content, code, param) in [
        (json!([pdf]), Code::Unsupported, "messages[0].content[0].source.type"),
        (json!([image]), Code::Unsupported, "messages[0].content[0].type"),
        (json!([in_result]), Code::Unsupported, "messages[0].content[0].content[0].type"),
        (json!([]), Code::InvalidRequest, "messages[0].content"),
    ] {
        let body = body(json!({"messages": [{"role": "user", "content": content}]}));
        let error = count_tokens(&body, &card()).unwrap_err();
        assert_eq!((error.code(), error.param()), (code, Some(param)), "{error}");
    }
}

#[test]
fn a_model_thinks_if_it_is_asked_to() {
    let (on, off) =
        (json!({"type": "enabled", "budget_tokens": 2048}), json!({"type": "disabled"}));
    let effort = json!({"effort": "low"});
    for (fields, expected) in [
        (json!({}), Some(false)),
        (json!({"thinking": on}), Some(true)),
        (json!({"thinking": off}), Some(false)),
        (json!({"thinking": {"type": "adaptive"}}), None),
        (json!({"output_config": effort}), None),
        (json!({"output_config": {}}), Some(false)),
        (json!({"output_config": effort, "thinking": off}), Some(false)),
    ] {
        let request = messages(&body(fields.clone()), &card()).unwrap();
        assert_eq!(request.generate.reasoning.enabled, expected, "{fields}");
    }
}

#[test]
fn every_field_of_a_request_reaches_the_engine() {
    let tool = json!({"name": "look", "description": "Looks.", "input_schema": {"type": "object"}});
    let other = json!({"type": "custom", "name": "stop", "input_schema": {"type": "object"}});
    let request = messages(
        &body(json!({
            "stop_sequences": ["a", "b"], "temperature": 0.5, "top_p": 0.25, "top_k": 7,
            "stream": true, "tools": [tool, other],
            "tool_choice": {"type": "tool", "name": "stop", "disable_parallel_tool_use": true},
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "metadata": {"user_id": "u"}, "service_tier": "auto",
            "context_management": {"edits": []}, "mcp_servers": [], "nobody_knows_this": 1,
        })),
        &card(),
    )
    .unwrap();
    let generate = &request.generate;
    assert!(request.stream && generate.id.starts_with("msg_"));
    assert_eq!(generate.max_tokens.map(usize::from), Some(9));
    assert_eq!(generate.stop, ["a", "b"]);
    let sampling = &generate.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.25, 7));
    let names: Vec<&str> = generate.tools.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["look", "stop"]);
    assert_eq!(generate.tools.tools[0].description.as_deref(), Some("Looks."));
    assert_eq!(generate.tools.choice, ToolChoice::Named("stop".to_owned()));
    assert!(!generate.tools.parallel);
    let schema = r#"{"type":"object"}"#.to_owned();
    let constraint = Constraint::JsonSchema { schema, strict: true };
    let param = "output_config.format.schema".to_owned();
    assert_eq!(generate.structure, Some(Structure { constraint, param }));
    assert_eq!(generate.reasoning.enabled, Some(true));
    assert_eq!(generate.reasoning.effort, Some(ReasoningEffort::ExtraHigh));
}
