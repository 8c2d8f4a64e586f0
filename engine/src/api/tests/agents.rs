//! Thinking and tools through messages and responses, turn by turn, as agents use them.

use serde_json::{Value, json};

use super::tools::server_saying;
use super::*;
use crate::api::tests::client::Answer;
use crate::gateway::script::says_in;

const MARKERS: &str = "<tool_call> <think>";
const ANSWER: &str = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}})
}

fn message_tools() -> Value {
    json!([
        {"name": "weather", "description": "Tells.", "input_schema": schema()},
        {"name": "now", "input_schema": {"type": "object"}},
    ])
}

fn response_tools() -> Value {
    json!([
        {"type": "function", "name": "weather", "description": "Tells.", "parameters": schema()},
        {"type": "function", "name": "now", "parameters": {"type": "object"}},
    ])
}

fn message_body(fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({
        "model": "claude", "max_tokens": 900, "messages": messages, "tools": message_tools(),
    });
    merged(body, fields)
}

fn response_body(fields: Value) -> Value {
    merged(json!({"input": "hi", "tools": response_tools(), "store": false}), fields)
}

/// What an agent makes of an answer, in whichever dialect it came.
#[derive(Debug, Clone, Default, PartialEq)]
struct Told {
    thinking: String,
    text: String,
    /// Names and arguments of the calls that it would run.
    calls: Vec<(String, Value)>,
    end: String,
    thinking_tokens: u64,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn message_told(message: &Value) -> Told {
    let details = &message["usage"]["output_tokens_details"];
    let mut told = Told {
        end: text(&message["stop_reason"]),
        thinking_tokens: details["thinking_tokens"].as_u64().unwrap(),
        ..Told::default()
    };
    for block in message["content"].as_array().unwrap() {
        match block["type"].as_str().unwrap() {
            "thinking" => told.thinking.push_str(&text(&block["thinking"])),
            "text" => told.text.push_str(&text(&block["text"])),
            "tool_use" => told.calls.push((text(&block["name"]), block["input"].clone())),
            other => panic!("{other} is no block"),
        }
    }
    told
}

/// The message that a stream adds up to. A call whose JSON is open is one that no agent runs.
fn streamed_message(answer: &Answer) -> Value {
    let (mut message, mut json) = (Value::Null, String::new());
    for event in answer.events() {
        let event: Value = serde_json::from_str(&event.data).unwrap();
        let last = |message: &Value| message["content"].as_array().unwrap().len() - 1;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let at = last(&message);
                let block = &mut message["content"][at];
                for name in ["text", "thinking"] {
                    if let Some(more) = event["delta"][name].as_str() {
                        block[name] = Value::from(text(&block[name]) + more);
                    }
                }
                json.push_str(&text(&event["delta"]["partial_json"]));
            }
            "content_block_stop" => {
                let at = last(&message);
                if message["content"][at]["type"] == "tool_use" {
                    match serde_json::from_str(&json) {
                        Ok(input) => message["content"][at]["input"] = input,
                        Err(_) => drop(message["content"].as_array_mut().unwrap().pop()),
                    }
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

fn response_told(response: &Value) -> Told {
    let details = &response["usage"]["output_tokens_details"];
    let mut told = Told {
        end: text(&response["status"]),
        thinking_tokens: details["reasoning_tokens"].as_u64().unwrap(),
        ..Told::default()
    };
    for item in response["output"].as_array().unwrap() {
        let said = text(&item["content"][0]["text"]);
        match item["type"].as_str().unwrap() {
            "reasoning" => told.thinking.push_str(&said),
            "message" => told.text.push_str(&said),
            "function_call" if item["status"] == "completed" => {
                let arguments = serde_json::from_str(item["arguments"].as_str().unwrap());
                told.calls.push((text(&item["name"]), arguments.unwrap()));
            }
            "function_call" => assert_eq!(item["status"], "incomplete"),
            other => panic!("{other} is no item"),
        }
    }
    told
}

/// The response that a stream ends in, and the items that it told as done.
fn streamed_response(answer: &Answer) -> (Value, Vec<Value>) {
    let mut done = Vec::new();
    let mut last = Value::Null;
    for event in answer.events() {
        last = serde_json::from_str(&event.data).unwrap();
        if last["type"] == "response.output_item.done" {
            done.push(last["item"].clone());
        }
    }
    (last["response"].clone(), done)
}

/// The answer to the two dialects, which tell it alike, streamed and whole.
async fn told(server: &Server, most: Option<usize>) -> Told {
    let (message, response) = match most {
        Some(most) => (json!({"max_tokens": most}), json!({"max_output_tokens": most})),
        None => (json!({}), json!({})),
    };
    let message = message_body(message);
    let whole = message_told(&server.client.post(MESSAGES, &message).await.json());
    let stream = merged(message, json!({"stream": true}));
    let streamed = streamed_message(&server.client.post(MESSAGES, &stream).await);
    assert_eq!(message_told(&streamed), whole);

    let body = response_body(response);
    let response = response_told(&server.client.post(RESPONSES, &body).await.json());
    let stream = merged(body, json!({"stream": true}));
    let (streamed, done) = streamed_response(&server.client.post(RESPONSES, &stream).await);
    assert_eq!(response_told(&streamed), response);
    // Agents run what is done, and look no further.
    let run = done.iter().filter(|item| item["type"] == "function_call").count();
    assert_eq!(run, response.calls.len());
    assert_eq!(Told { end: whole.end.clone(), ..response }, whole);
    whole
}

#[tokio::test]
async fn thinking_text_and_calls_are_told_alike_in_both_dialects() {
    let (server, _) = server_saying(MARKERS, &[], ANSWER).await;
    let told = told(&server, None).await;
    let weather = ("weather".to_owned(), json!({"city": "Rome"}));
    assert_eq!(told.calls, [weather, ("now".to_owned(), json!({}))]);
    assert_eq!((told.thinking.as_str(), told.text.as_str()), ("Hm.", "I look."));
    assert_eq!(told.end, "tool_use");
    assert!(told.thinking_tokens > 3, "{told:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_anywhere_runs_no_call_that_is_not_whole() {
    let (server, tokenizer) = server_saying(MARKERS, &[], ANSWER).await;
    let complete = told(&server, None).await;
    for most in (1..says_in(&tokenizer, ANSWER).len()).step_by(3) {
        let cut = told(&server, Some(most)).await;
        assert_eq!(cut.end, "max_tokens", "{most}");
        assert!(complete.calls.starts_with(&cut.calls), "{most}: {cut:?}");
    }
}

#[tokio::test]
async fn one_call_at_most_is_asked_for_in_each_dialects_words() {
    let (server, _) = server_saying(MARKERS, &[], ANSWER).await;
    let choice = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let message = server.client.post(MESSAGES, &message_body(choice)).await.json();
    let body = response_body(json!({"parallel_tool_calls": false}));
    let response = server.client.post(RESPONSES, &body).await.json();
    for told in [message_told(&message), response_told(&response)] {
        assert_eq!(told.calls.len(), 1, "{told:?}");
    }
}

#[tokio::test]
async fn tools_turns_and_results_reach_the_template_and_are_counted_as_they_are_run() {
    let (server, tokenizer) = server_saying(MARKERS, &[], "Sunny.").await;
    let turns = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"},
            {"type": "text", "text": "well?"},
        ]},
    ]);
    // Without it a model is told not to think, which responses have another word for.
    let thinking = json!({"type": "adaptive"});
    let asked = json!({"messages": turns, "system": "Be brief.", "thinking": thinking});
    let body = message_body(asked);
    let message = server.client.post(MESSAGES, &body).await.json();
    let prompt = || tokenizer.decode_spelled(&server.rows.specs().pop().unwrap().prompt).unwrap();
    let messages = prompt();
    for part in [
        "\"weather\"",
        "\"Tells.\"",
        "\"city\"",
        "Be brief.",
        "Hm.",
        "I look.",
        "Rome",
        "sun",
        "well?",
    ] {
        assert!(messages.contains(part), "{part}: {messages}");
    }
    let mut counted = body;
    counted.as_object_mut().unwrap().shift_remove("max_tokens");
    let count = server.client.post("/v1/messages/count_tokens", &counted).await.json();
    let usage = |name: &str| message["usage"][name].as_u64().unwrap();
    assert_eq!(count["input_tokens"], usage("input_tokens") + usage("cache_read_input_tokens"));

    let items = json!([
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
            {"type": "reasoning_text", "text": "Hm."},
        ]},
        {"role": "assistant", "content": "I look."},
        {
            "type": "function_call", "call_id": "toolu_1", "name": "weather",
            "arguments": "{\"city\": \"Rome\"}",
        },
        {"type": "function_call_output", "call_id": "toolu_1", "output": "sun"},
        {"role": "user", "content": "well?"},
    ]);
    let body = response_body(json!({"input": items, "instructions": "Be brief."}));
    assert_eq!(server.client.post(RESPONSES, &body).await.status, 200);
    assert_eq!(prompt(), messages, "one conversation is one prompt in both dialects");
}

#[tokio::test]
async fn an_agents_turns_build_on_each_other_by_id_as_they_do_by_items() {
    let (server, tokenizer) = server_saying(MARKERS, &[], ANSWER).await;
    let prompt = || tokenizer.decode_spelled(&server.rows.specs().pop().unwrap().prompt).unwrap();
    let body = response_body(json!({"store": true}));
    let first = server.client.post(RESPONSES, &body).await.json();
    let output = first["output"].as_array().unwrap();
    let call = output.iter().find(|item| item["type"] == "function_call").unwrap();
    let result =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sun"});
    let by_id = json!({"previous_response_id": first["id"], "input": [result]});
    assert_eq!(server.client.post(RESPONSES, &response_body(by_id)).await.status, 200);
    let continued = prompt();
    let mut items = vec![json!({"role": "user", "content": "hi"})];
    items.extend(output.iter().cloned());
    items.push(result);
    let by_items = response_body(json!({"input": items}));
    assert_eq!(server.client.post(RESPONSES, &by_items).await.status, 200);
    assert_eq!(prompt(), continued);
}

#[tokio::test]
async fn a_response_tells_log_probabilities_of_its_visible_text_alone() {
    const TEXT: &str = "th\u{e9} end";
    let answer = format!("<think>\nthink\n</think>\n\n{TEXT}");
    let (server, _) = server_saying(MARKERS, &[], &answer).await;
    let include = json!(["message.output_text.logprobs"]);
    for (asked, top) in [
        (json!({"include": include}), Some(0)),
        (json!({"include": include, "top_logprobs": 2}), Some(2)),
        (json!({"top_logprobs": 3}), Some(3)),
        (json!({"top_logprobs": 0}), None),
        (json!({"include": ["reasoning.encrypted_content"]}), None),
    ] {
        let body = merged(json!({"input": "hi", "store": false}), asked.clone());
        let whole = server.client.post(RESPONSES, &body).await.json();
        let asked_of_row = server.rows.specs().pop().unwrap().sampling.logprobs;
        assert_eq!(asked_of_row, top, "{asked}");
        assert_eq!(whole["top_logprobs"], json!(asked["top_logprobs"].as_u64().unwrap_or(0)));
        let logprobs = &whole["output"][1]["content"][0]["logprobs"];
        check_spelled(logprobs, top.map_or("", |_| TEXT), top);

        let stream = server.client.post(RESPONSES, &merged(body, json!({"stream": true}))).await;
        let events = stream.events().into_iter().map(|event| event.data);
        let events: Vec<Value> = events.map(|data| serde_json::from_str(&data).unwrap()).collect();
        let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
        let deltas = of("response.output_text.delta").flat_map(|event| {
            let (text, entries) = (text(&event["delta"]), event["logprobs"].as_array().unwrap());
            assert_eq!(top.is_some(), !entries.is_empty(), "{text}");
            entries.clone()
        });
        assert_eq!(deltas.collect::<Value>(), *logprobs, "{asked}");
        let done = of("response.output_text.done").map(|event| &event["logprobs"]);
        assert_eq!(done.collect::<Vec<_>>(), [logprobs], "{asked}");
        let last = &events.last().unwrap()["response"]["output"][1]["content"][0]["logprobs"];
        assert_eq!(last, logprobs, "{asked}");
    }
}

/// Holds entries against the text that their bytes must spell.
fn check_spelled(entries: &Value, text: &str, top: Option<u32>) {
    let mut spelled = Vec::new();
    for entry in entries.as_array().unwrap() {
        assert!(entry["token"].is_string() && entry["logprob"].as_f64().unwrap() < 0.0, "{entry}");
        let others = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(Some(u32::try_from(others.len()).unwrap()), top, "{entry}");
        assert!(others.iter().all(|other| other["bytes"].is_array()), "{entry}");
        let bytes = entry["bytes"].as_array().unwrap().iter();
        spelled.extend(bytes.map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()));
    }
    assert_eq!(String::from_utf8(spelled).unwrap(), text);
}

#[tokio::test]
async fn messages_know_no_log_probabilities() {
    let (server, _) = server_saying(MARKERS, &[], ANSWER).await;
    // Not even as fields that could be wrong.
    let body = message_body(json!({"top_logprobs": 5, "logprobs": "yes"}));
    assert_eq!(server.client.post(MESSAGES, &body).await.status, 200);
    assert_eq!(server.rows.specs().pop().unwrap().sampling.logprobs, None);
}
