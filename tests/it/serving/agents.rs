//! Several agents at once, through the `openai` SDK.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use slipstream_tests::demo;
use slipstream_tests::server::Server;

fn client(script: &str, server: &Server) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let mut command = Command::new(demo::client_python());
    command.arg(script).arg(server.url());
    command
}

#[test]
fn eight_sdk_clients_stream_in_one_batch_what_each_would_hear_alone() {
    let server = Server::start(&[]);
    let mut clients = client("eight_streams.py", &server)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stats = server.stats_when(|stats| stats["batch"]["active_rows"] == 8);
    check_eight_live_rows(&stats);
    let answers = answers_of(&mut clients);
    assert!(clients.wait().unwrap().success());
    assert_eq!(answers["together"], answers["alone"]);
    let texts: Vec<_> = answers["together"].as_array().unwrap().iter().collect();
    assert_eq!(texts.len(), 8);
    assert!((1..8).all(|index| !texts[..index].contains(&texts[index])), "{texts:?}");
    let france = answers["together"][5]["text"].as_str().unwrap();
    assert!(france.contains("Paris"), "{france}");
}

fn check_eight_live_rows(stats: &Value) {
    assert_eq!(stats["batch"]["batched"], true);
    let rows = stats["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!(row["state"], "decoding", "{row}");
        assert_eq!(row["lane"], "continuous", "{row}");
        assert!(row["kv_bytes"].as_u64().unwrap() > 0, "{row}");
        assert!(row["generated_tokens"].as_u64().unwrap() > 0, "{row}");
    }
}

/// Lets the clients go on to their second round and takes their last word.
fn answers_of(clients: &mut Child) -> Value {
    clients.stdin.take().unwrap().write_all(b"\n").unwrap();
    let lines = BufReader::new(clients.stdout.take().unwrap()).lines().map_while(Result::ok);
    serde_json::from_str(&lines.last().unwrap()).unwrap()
}

#[test]
fn the_sdk_raises_our_refusals_with_their_field_and_a_live_stream_does_not_notice() {
    let server = Server::start(&[]);
    let request = r#"{"prompt": "Once upon a time", "max_tokens": 200, "stream": true}"#;
    let stream = server.send("POST", "/v1/completions", request);
    server.stats_when(|stats| stats["batch"]["active_rows"] == 1);
    let output = client("errors.py", &server).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let outcomes: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bad = "BadRequestError";
    assert_eq!(outcomes["no messages"], json!([bad, 400, "messages", "invalid_request"]));
    assert_eq!(outcomes["two answers"], json!([bad, 400, "n", "unsupported"]));
    assert_eq!(
        outcomes["negative temperature"],
        json!([bad, 400, "temperature", "invalid_request"])
    );
    assert_eq!(outcomes["no tokens"], json!([bad, 400, "max_tokens", "invalid_request"]));
    assert_eq!(
        outcomes["unknown model"],
        json!(["NotFoundError", 404, "model", "model_not_found"])
    );
    let too_long = json!([bad, 400, "messages", "context_length_exceeded"]);
    assert_eq!(outcomes["too long"], too_long);
    let lines: Vec<String> = stream.lines().map_while(Result::ok).collect();
    assert_eq!(lines.iter().filter(|line| line.as_str() == "data: [DONE]").count(), 1);
    assert!(lines.iter().any(|line| line.contains(r#""finish_reason":"length""#)), "{lines:?}");
}

#[test]
fn the_sdk_reads_answers_to_tools_in_chunks_as_it_reads_them_whole() {
    let server = Server::start(&[]);
    let output = client("tools.py", &server).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["asked", "called"] {
        let [whole, streamed] = [&told[name][0], &told[name][1]];
        assert_eq!(whole, streamed, "{name}");
        let called = whole[1].as_array().is_some_and(|calls| !calls.is_empty());
        assert!(called || whole[0].as_str().is_some_and(|text| !text.is_empty()), "{whole}");
        assert!(!whole[0].as_str().unwrap().contains("<|im_"), "{whole}");
    }
    // As a control token it would be one token.
    let tokens = |name: &str| told[name].as_u64().unwrap();
    assert!(tokens("twice") - tokens("spelt") > 3, "{told}");
}
