//! The other dialects on a real model, through their SDKs, and what the server tells of it all.

use std::io::{BufRead, Read};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use slipstream_tests::demo;
use slipstream_tests::server::Server;

/// What `script` makes of the server.
pub(super) fn told_by(script: &str, server: &Server) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let output =
        Command::new(demo::client_python()).arg(script).arg(server.url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `told` without the names of its events.
fn without_events(told: &Value) -> Value {
    let mut told = told.clone();
    told.as_object_mut().unwrap().remove("events");
    told
}

fn events(told: &Value) -> Vec<&str> {
    told["events"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

#[test]
fn the_anthropic_sdk_hears_the_same_streamed_and_whole_and_raises_our_refusals() {
    let server = Server::start(&[]);
    let told = told_by("anthropic_messages.py", &server);
    for (whole, streamed) in [("whole", "streamed"), ("stopped", "stopped streamed")] {
        assert_eq!(without_events(&told[streamed]), told[whole], "{streamed}");
        let events = events(&told[streamed]);
        assert_eq!(events[..2], ["message_start", "content_block_start"]);
        assert_eq!(
            events[events.len() - 3..],
            ["content_block_stop", "message_delta", "message_stop"]
        );
    }
    let whole = &told["whole"];
    assert!(whole["text"].as_str().unwrap().contains("blue"), "{whole}");
    assert_eq!(whole["input"], told["counted"], "a count is what a message is billed");
    let stopped = &told["stopped"];
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &told["word"])
    );
    let (text, word) = (stopped["text"].as_str().unwrap(), told["word"].as_str().unwrap());
    assert!(whole["text"].as_str().unwrap().starts_with(&format!("{text}{word}")), "{told}");
    let bad = json!(["BadRequestError", 400, "invalid_request_error", true]);
    assert_eq!((&told["image"], &told["too long"]), (&bad, &bad));
    assert_eq!(told["unknown model"], json!(["NotFoundError", 404, "not_found_error", true]));
}

#[test]
fn the_openai_sdk_hears_responses_streamed_whole_later_and_continued() {
    let server = Server::start(&[]);
    let told = told_by("openai_responses.py", &server);
    let whole = &told["whole"];
    assert_eq!(without_events(&told["streamed"]), *whole);
    assert_eq!(told["found"], *whole);
    assert_eq!(told["second"], told["by hand"], "a past is what its items are");
    assert!(told["second"]["input"].as_u64() > whole["input"].as_u64());
    let events = events(&told["streamed"]);
    let status = whole["status"].as_str().unwrap();
    assert_eq!(
        events[..3],
        ["response.created", "response.in_progress", "response.output_item.added"]
    );
    assert_eq!(events.last(), Some(&&*format!("response.{status}")));
    assert_eq!(told["deleted"], json!(["NotFoundError", 404, null, "response_not_found"]));
    let gone = json!(["BadRequestError", 400, "previous_response_id", "invalid_request"]);
    assert_eq!(told["past is gone"], gone);
    assert_eq!(told["embeddings"], json!(["BadRequestError", 400, "model", "unsupported"]));
    assert_eq!(told["models"], json!([told["model"]]));
}

#[test]
fn a_stream_that_is_cancelled_ends_in_a_word_that_each_sdks_own_types_know() {
    let told = told_by("cancelled.py", &Server::start(&[]));
    assert_eq!(told["chat"], json!(["content_filter", true, true]));
    assert_eq!(told["completion"], json!(["content_filter", true]));
    assert_eq!(told["message"], json!(["refusal", true, "the request was cancelled"]));
    let response = json!(["response.incomplete", "incomplete", "content_filter", true]);
    assert_eq!(told["response"], response);
}

#[test]
fn schemathesis_finds_no_answer_that_the_document_does_not_tell() {
    // The budget holds 512 tokens: a request for thousands is refused and not waited for.
    let server = Server::start(&["--max-tokens", "4", "--kv-budget", "24M"]);
    let document = server.url().replace("/v1", "/openapi.json");
    let output = Command::new(demo::client_python().with_file_name("st"))
        .args(["run", &document, "--phases", "coverage,fuzzing", "--max-examples", "10"])
        .args(["--generation-deterministic", "--request-timeout", "300"])
        // Streams of events never end, and what asks the hub waits for it: `api/tests/hub.rs` holds those.
        .args(["--exclude-path-regex", "^/api/hub/|/events$|/stream$"])
        // A schema cannot say which fields go together.
        .args(["--exclude-checks", "positive_data_acceptance"])
        .current_dir(tempfile::tempdir().unwrap().path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(server.ask("GET", "/health", "").0, 200);
}

#[test]
fn a_request_is_ended_by_its_id_and_counted_under_its_client() {
    let server = Server::start(&[]);
    let story = r#"{"prompt": "Once upon a time", "max_tokens": 4000, "stream": true}"#;
    let mut stream = server.send("POST", "/v1/completions", story);
    let stats = server.stats_when(|stats| stats["batch"]["active_rows"] == 1);
    let row = &stats["rows"][0];
    assert_eq!(row["client"], "unknown", "{row}");
    let path = format!("/v1/requests/{}", row["id"].as_str().unwrap());
    assert_eq!(server.ask("DELETE", &path, "").0, 200);
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    let end = r#""finish_reason":"content_filter","stop_reason":"cancelled""#;
    assert_eq!(heard.matches(end).count(), 1, "{heard}");
    assert!(heard.ends_with("data: [DONE]\n\n"), "{heard}");
    server.stats_when(|stats| stats["batch"]["active_rows"] == 0);
    assert_eq!(server.ask("DELETE", &path, "").0, 404);
    let metrics = server.send("GET", "/metrics", "");
    let cancelled = r#"client="unknown",end="cancelled"} 1"#;
    assert!(metrics.lines().map_while(Result::ok).any(|line| line.ends_with(cancelled)));
}

#[test]
fn a_server_with_a_key_answers_to_it_alone_and_one_beyond_loopback_needs_one() {
    let server = Server::start(&["--api-key", "laptop=sk-0123456789"]);
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    let (status, body) = server.ask("GET", "/v1/models", "");
    assert_eq!((status, &body["error"]["code"]), (401, &json!("missing_api_key")));
    let mut open = slipstream_tests::server::serve();
    let output = slipstream_tests::server::run(open.args(["--host", "0.0.0.0", "--port", "0"]));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("no API key is set") && error.contains("--api-key"), "{error}");
}
