//! The order of events, and what requests become.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Past, ResponseRequest, ResponseTeller, response};
use crate::error::{Code, Error, Result};
use crate::gateway::script::card;
use crate::gateway::{FinishReason, Prompt, Reasoning, ReasoningEffort, Structure, ToolChoice};
use crate::grammar::Constraint;
use crate::output::AnswerPart;
use crate::wire::Frame;
use crate::wire::answers::{Answer, any_answer, data, ending};

/// One response, `resp_1`, of one item, `msg_1`.
struct OneResponse;

impl Past for OneResponse {
    fn conversation(&self, id: &str) -> Result<Vec<Value>> {
        let said = [("user", "before"), ("assistant", "answer")];
        let messages = said.map(|(role, content)| json!({"role": role, "content": content}));
        if id == "resp_1" {
            Ok(messages.into())
        } else {
            Err(Error::invalid("previous_response_id", "none"))
        }
    }

    fn item(&self, id: &str) -> Option<Value> {
        let content = [json!({"type": "output_text", "text": "answer"})];
        let item =
            json!({"id": "msg_1", "type": "message", "role": "assistant", "content": content});
        (id == "msg_1").then_some(item)
    }
}

fn read(fields: Value) -> Result<ResponseRequest> {
    let mut body = json!({"input": "hi"});
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    body.as_object_mut().unwrap().extend(fields);
    response(&body, &card(), &OneResponse)
}

fn teller() -> ResponseTeller {
    let echo = read(json!({})).unwrap().echo;
    ResponseTeller::new("resp_9".to_owned(), 77, "lab/bytes".to_owned(), echo)
}

/// An item that is being told.
struct Open {
    item: Value,
    kind: &'static str,
}

/// Reads a stream as a strict client does, and panics where an event is out of place. Returns the last
/// event and the items that were done.
fn told(frames: &[Frame]) -> (Value, Vec<Value>) {
    let mut open: Option<Open> = None;
    let (mut done, mut added) = (Vec::new(), 0);
    for (number, frame) in frames.iter().enumerate() {
        let event = data(frame);
        let kind = event["type"].as_str().unwrap().to_owned();
        assert_eq!((frame.event, &event["sequence_number"]), (Some(&*kind), &json!(number)));
        match (number, kind.as_str()) {
            (0, "response.created") | (1, "response.in_progress") => {
                assert_eq!(event["response"]["status"], "in_progress");
            }
            (_, "response.output_item.added") => {
                let abandoned = open.take();
                let call = abandoned.is_none_or(|open| open.item["type"] == "function_call");
                assert!(call, "an item within an item");
                assert_eq!(event["output_index"], added);
                added += 1;
                open = Some(opened(event["item"].clone()));
            }
            (_, "response.output_item.done") => {
                let Open { mut item, .. } = open.take().expect("an item was open");
                for name in ["content", "arguments", "status"] {
                    if !item[name].is_null() {
                        item[name] = event["item"][name].clone();
                    }
                }
                assert_eq!(item, event["item"], "its head is the one it began with");
                done.push(item);
            }
            (_, "response.completed" | "response.incomplete" | "response.failed") => {
                assert_eq!(number + 1, frames.len(), "something follows the end");
                return (event, done);
            }
            (_, inner) => take(open.as_mut().expect("it belongs to an item"), inner, &event),
        }
    }
    panic!("the stream does not end");
}

fn opened(item: Value) -> Open {
    assert_eq!(item["status"], "in_progress");
    let kind = match item["type"].as_str().unwrap() {
        "reasoning" => "response.reasoning_text",
        "message" => "response.output_text",
        "function_call" => "response.function_call_arguments",
        other => panic!("{other} is no item"),
    };
    Open { item, kind }
}

/// Takes an event within an item: the part that is added, its deltas, its text, its end.
fn take(open: &mut Open, kind: &str, event: &Value) {
    assert_eq!(event["item_id"], open.item["id"]);
    if !kind.starts_with("response.function_call") {
        assert_eq!(event["content_index"], 0);
    }
    let path = match open.kind {
        "response.function_call_arguments" => "/arguments",
        _ => "/content/0/text",
    };
    let text = |open: &Open| open.item.pointer(path).and_then(Value::as_str).map(str::to_owned);
    match kind.strip_prefix(open.kind) {
        Some(".delta") => {
            let longer = text(open).expect("its part was added") + event["delta"].as_str().unwrap();
            *open.item.pointer_mut(path).unwrap() = Value::from(longer);
        }
        Some(".done") => {
            let whole = event.get("text").or_else(|| event.get("arguments"));
            assert_eq!(whole.and_then(Value::as_str).map(str::to_owned), text(open));
        }
        _ if kind == "response.content_part.added" => {
            open.item["content"].as_array_mut().unwrap().push(event["part"].clone());
        }
        _ if kind == "response.content_part.done" => {
            assert_eq!(event["part"], open.item["content"][0]);
        }
        _ => panic!("{kind} within {}", open.item["type"]),
    }
}

/// What an output says: its reasoning, its text and its calls, without ids.
fn said(output: &Value) -> (String, String, Vec<Value>) {
    let items = output.as_array().unwrap();
    let joined = |kind: &str| -> String {
        let texts = items.iter().filter(|item| item["type"] == kind);
        texts.filter_map(|item| item["content"][0]["text"].as_str()).collect()
    };
    let calls = items.iter().filter(|item| item["type"] == "function_call").map(|call| {
        let mut call: Map<String, Value> = call.as_object().unwrap().clone();
        call.shift_remove("id");
        Value::Object(call)
    });
    (joined("reasoning"), joined("message"), calls.collect())
}

proptest! {
    #[test]
    fn any_stream_keeps_the_order_ends_once_and_says_what_the_whole_response_says(
        answer in any_answer(),
    ) {
        let (end, done) = told(&answer.streamed(&mut teller()));
        let response = &end["response"];
        match answer.whole(&mut teller()) {
            Some(whole) => {
                prop_assert_eq!(said(&response["output"]), said(&whole["output"]));
                for name in ["status", "incomplete_details", "usage", "error", "timings", "id"] {
                    prop_assert_eq!(&response[name], &whole[name], "{}", name);
                }
            }
            None => {
                prop_assert_eq!(&end["type"], "response.failed");
                prop_assert_eq!(&response["error"], &json!({"code": "server_error", "message": "gone"}));
            }
        }
        // What is not done are calls that never ended, and what an error cut off.
        let failed = end["type"] == "response.failed";
        let output = response["output"].as_array().unwrap();
        let (told, cut): (Vec<_>, Vec<_>) = output.iter().partition(|item| done.contains(item));
        prop_assert_eq!(told, done.iter().collect::<Vec<_>>());
        for cut in cut {
            prop_assert_eq!(&cut["status"], "incomplete");
            prop_assert!(failed || cut["type"] == "function_call");
        }
        for call in done.iter().filter(|item| item["type"] == "function_call") {
            let arguments = serde_json::from_str::<Value>(call["arguments"].as_str().unwrap());
            prop_assert!(arguments.is_ok() && call["status"] == "completed", "{}", call);
        }
    }
}

#[test]
fn an_end_has_its_event_its_status_and_its_reason() {
    for (reason, event, detail) in [
        (FinishReason::Stop, "completed", Value::Null),
        (FinishReason::ToolCalls, "completed", Value::Null),
        (FinishReason::Length, "incomplete", json!({"reason": "max_output_tokens"})),
        (
            FinishReason::Cancelled,
            "incomplete",
            json!({"reason": "content_filter", "explanation": "the request was cancelled"}),
        ),
    ] {
        let answer = Answer {
            parts: vec![AnswerPart::Text("hi".to_owned())],
            end: Ok(ending(reason, None)),
        };
        let (end, _) = told(&answer.streamed(&mut teller()));
        assert_eq!(end["type"], format!("response.{event}"));
        let response = &end["response"];
        assert_eq!(
            (&response["status"], &response["incomplete_details"]),
            (&json!(event), &detail)
        );
        assert_eq!(response["output"][0]["status"], event);
        let usage = json!({
            "input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0}, "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 14,
        });
        assert_eq!(response["usage"], usage);
    }
}

fn conversation(fields: Value) -> Value {
    Value::from(read(fields).unwrap().conversation)
}

fn prompt(fields: Value) -> Value {
    let Prompt::Chat { messages } = read(fields).unwrap().generate.prompt else {
        panic!("a response's prompt is a chat")
    };
    Value::from(messages)
}

#[test]
fn items_become_messages_that_templates_read() {
    let input = json!([
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"},
        ]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
            {"type": "reasoning_text", "text": "hm"},
        ], "encrypted_content": null},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "calling", "annotations": []},
        ]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "stop", "arguments": "{\"broken"},
        {"type": "function_call_output", "call_id": "c1", "output": "red"},
        {"type": "function_call_output", "call_id": "c2", "output": [
            {"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"},
        ]},
        {"type": "item_reference", "id": "msg_1"},
        {"id": "msg_1"},
    ]);
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let result =
        |id: &str, content: &str| json!({"role": "tool", "tool_call_id": id, "content": content});
    assert_eq!(
        conversation(json!({"input": input})),
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "ab"},
            {
                "role": "assistant", "content": "calling", "reasoning_content": "hm", "tool_calls": [
                    call("c1", "look", json!("{\"at\": 1}")), call("c2", "stop", json!("{\"broken")),
                ],
            },
            result("c1", "red"),
            result("c2", "x\ny"),
            {"role": "assistant", "content": "answer\nanswer"},
        ])
    );
}

#[test]
fn a_conversation_goes_on_from_its_past_and_instructions_are_of_one_response_alone() {
    let past = json!([
        {"role": "user", "content": "before"}, {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "hi"},
    ]);
    let fields = json!({"previous_response_id": "resp_1", "instructions": "Be kind."});
    assert_eq!(conversation(fields.clone()), past);
    let prompt = prompt(fields);
    assert_eq!(prompt[0], json!({"role": "system", "content": "Be kind."}));
    assert_eq!(prompt.as_array().unwrap()[1..], past.as_array().unwrap()[..]);
    let unknown = read(json!({"previous_response_id": "resp_2"})).unwrap_err();
    assert_eq!(unknown.param(), Some("previous_response_id"));
}

#[test]
fn an_answer_is_a_part_of_the_conversation_that_goes_on() {
    let call = |index: usize, ended: bool| {
        let mut parts = vec![
            AnswerPart::ToolCallStarted { index, id: format!("c{index}"), name: "look".to_owned() },
            AnswerPart::ToolCallArguments { index, json: "{\"at\":1}".to_owned() },
        ];
        parts.extend(ended.then_some(AnswerPart::ToolCallEnded { index }));
        parts
    };
    let mut parts = vec![
        AnswerPart::Reasoning("hm".to_owned()),
        AnswerPart::Text("call".to_owned()),
        AnswerPart::Text("ing".to_owned()),
    ];
    parts.extend(call(0, true).into_iter().chain(call(1, false)));
    let answer = Answer { parts, end: Ok(ending(FinishReason::Length, None)) };
    let before = vec![json!({"role": "user", "content": "hi"})];
    let (mut streamed, mut whole) = (teller(), teller());
    answer.streamed(&mut streamed);
    answer.whole(&mut whole);
    for teller in [streamed, whole] {
        assert_eq!(
            Value::from(teller.continued(before.clone())),
            json!([
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant", "content": "calling", "reasoning_content": "hm",
                    "tool_calls": [{
                        "id": "c0", "type": "function",
                        "function": {"name": "look", "arguments": "{\"at\":1}"},
                    }],
                },
            ])
        );
    }
}

#[test]
fn every_field_of_a_request_reaches_the_engine_or_is_echoed() {
    let function = json!({"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": true});
    let hosted = json!({"type": "web_search", "external_web_access": false});
    let fields = json!({
        "instructions": "Be kind.", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.25,
        "stream": true, "store": false, "tools": [function, hosted], "parallel_tool_calls": false,
        "tool_choice": {"type": "function", "name": "look"},
        "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"}, "user": "u",
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"], "truncation": "disabled", "background": false,
        "safety_identifier": "s", "top_logprobs": 0, "nobody_knows_this": 1,
    });
    let request = read(fields.clone()).unwrap();
    let generate = &request.generate;
    assert!(request.stream && generate.id.starts_with("resp_"));
    assert_eq!(generate.max_tokens.map(usize::from), Some(9));
    assert_eq!((generate.sampling.temperature, generate.sampling.top_p), (0.5, 0.25));
    assert_eq!(generate.tools.choice, ToolChoice::Named("look".to_owned()));
    assert_eq!((generate.tools.tools.len(), generate.tools.parallel), (1, false));
    let low = Reasoning { enabled: Some(true), effort: Some(ReasoningEffort::Low) };
    assert_eq!(generate.reasoning, low);
    assert_eq!(request.warnings.len(), 1);
    assert!(request.warnings[0].contains("web_search"), "{:?}", request.warnings);
    let echo = serde_json::to_value(&request.echo).unwrap();
    for name in [
        "instructions",
        "max_output_tokens",
        "temperature",
        "top_p",
        "store",
        "tools",
        "parallel_tool_calls",
        "tool_choice",
        "reasoning",
        "metadata",
        "user",
        "text",
        "prompt_cache_key",
        "safety_identifier",
        "truncation",
        "top_logprobs",
    ] {
        assert_eq!(echo[name], fields[name], "{name}");
    }
}

#[test]
fn a_format_of_the_text_is_a_constraint_of_the_answer() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let json = |strict| Constraint::JsonSchema { schema: schema.to_string(), strict };
    for (format, constraint, param) in [
        (
            json!({"type": "json_schema", "name": "n", "schema": schema}),
            json(false),
            "text.format.schema",
        ),
        (
            json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true}),
            json(true),
            "text.format.schema",
        ),
        (json!({"type": "json_object"}), Constraint::JsonObject, "text.format"),
    ] {
        let request = read(json!({"text": {"format": format}})).unwrap();
        let expected = Structure { constraint, param: param.to_owned() };
        assert_eq!(request.generate.structure, Some(expected));
        assert_eq!(serde_json::to_value(&request.echo).unwrap()["text"]["format"], format);
    }
    let plain = read(json!({"text": {"verbosity": "low"}})).unwrap();
    assert_eq!(plain.generate.structure, None);
    let text = json!({"verbosity": "low", "format": {"type": "text"}});
    assert_eq!(serde_json::to_value(&plain.echo).unwrap()["text"], text);
}

#[test]
fn what_is_known_and_lacking_is_refused_by_name() {
    for (fields, param) in [
        (json!({"background": true}), "background"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"tools": [{"type": "custom", "name": "x"}]}), "tools[0].type"),
        (json!({"tool_choice": {"type": "web_search"}}), "tool_choice.type"),
        (json!({"input": [{"type": "computer_call"}]}), "input[0].type"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
    ] {
        let error = read(fields.clone()).unwrap_err();
        assert_eq!((error.code(), error.param()), (Code::Unsupported, Some(param)), "{fields}");
    }
}
