//! The JavaScript SDKs on a real model: `openai`, and the AI SDK with its providers.

use std::process::Command;

use serde_json::{Value, json};
use slipstream_tests::demo;
use slipstream_tests::server::Server;

/// What `script` makes of the server.
fn told_by(script: &str, server: &Server) -> Value {
    let mut node = Command::new("node");
    let output = node.arg(demo::node_clients().join(script)).arg(server.url()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Holds streamed answers against whole ones, with and without a call.
fn check_alike(told: &Value) {
    for (whole, streamed) in [("whole", "streamed"), ("called", "called streamed")] {
        assert_eq!(told[whole], told[streamed], "{streamed}");
    }
    assert!(told["whole"]["text"].as_str().unwrap().contains("blue"), "{told}");
    assert_eq!((&told["whole"]["finish"], &told["whole"]["calls"]), (&json!("length"), &json!([])));
}

#[test]
fn the_openai_sdk_for_node_hears_the_same_streamed_and_whole_and_leaves_no_row_behind() {
    let server = Server::start(&["--prompt-cache", "off"]);
    let told = told_by("openai.mjs", &server);
    check_alike(&told);
    let usage = &told["whole"]["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    assert_eq!(usage["total_tokens"].as_u64(), usage["prompt_tokens"].as_u64().map(|n| n + 24));
    let called = &told["called"];
    assert_eq!(called["calls"], json!([["get_weather", {"city": called["calls"][0][1]["city"]}]]));
    assert_eq!(called["finish"], "tool_calls");

    assert_eq!(told["response"], told["response streamed"]);
    assert_eq!(told["response"]["text"], told["whole"]["text"]);
    assert_eq!(told["response"]["usage"]["output_tokens"], 24);

    let error =
        |name: &str, status: u16, param: &str, code: &str| json!([name, true, status, param, code]);
    let bad = error("BadRequestError", 400, "temperature", "invalid_request");
    assert_eq!(told["bad value"], bad);
    assert_eq!(told["bad stream"], error("BadRequestError", 400, "n", "unsupported"));
    assert_eq!(told["unknown model"], error("NotFoundError", 404, "model", "model_not_found"));
    assert_eq!(told["aborted"], "aborted");
    assert_eq!(told["cancelled"], "content_filter");
}

#[test]
fn the_ai_sdk_hears_chats_and_responses_alike_and_leaves_no_row_behind() {
    let server = Server::start(&["--prompt-cache", "off"]);
    let told = told_by("ai.mjs", &server);
    for (name, told) in told.as_object().unwrap() {
        check_alike(told);
        let [input, output, total] =
            [0, 1, 2].map(|at| told["whole"]["usage"][at].as_u64().unwrap());
        assert_eq!((output, total), (24, input + 24), "{name}");
        let called = &told["called"];
        let city = &called["calls"][0][1]["city"];
        assert_eq!(called["calls"], json!([["get_weather", {"city": city}, false]]), "{name}");
        assert_eq!(called["finish"], "tool-calls", "{name}");
        assert_eq!(told["refused"], json!(["APICallError", true, 400, false]), "{name}");
        assert_eq!(told["aborted"], "aborted", "{name}");
        assert_eq!(told["cancelled"], "content-filter", "{name}");
    }
    assert_eq!(told["chat"]["whole"], told["responses"]["whole"], "one prompt, one answer");
}
