//! How requests and the server end before their time.

use std::io::{BufRead, Read};

use serde_json::Value;
use slipstream_tests::server::Server;

const LONG: &str = r#"{"prompt": "Once upon a time", "max_tokens": 4000, "stream": true}"#;
const LONG_WHOLE: &str = r#"{"prompt": "Once upon a time", "max_tokens": 4000}"#;

fn active_rows(stats: &Value) -> u64 {
    stats["batch"]["active_rows"].as_u64().unwrap()
}

#[test]
fn a_client_that_leaves_frees_its_row_and_its_sibling_goes_on() {
    let server = Server::start(&[]);
    for leaver_request in [LONG, LONG_WHOLE] {
        let mut sibling = server.send("POST", "/v1/completions", LONG);
        let leaver = server.send("POST", "/v1/completions", leaver_request);
        server.stats_when(|stats| active_rows(stats) == 2);
        drop(leaver);
        let stats = server.stats_when(|stats| active_rows(stats) == 1);
        assert_eq!(stats["rows"].as_array().unwrap().len(), 1);
        let before = stats["rows"][0]["generated_tokens"].as_u64().unwrap();
        server.stats_when(|stats| {
            stats["rows"][0]["generated_tokens"].as_u64().unwrap() > before + 2
        });
        let mut head = String::new();
        sibling.read_line(&mut head).unwrap();
        assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{head}");
        drop(sibling);
        server.stats_when(|stats| active_rows(stats) == 0);
    }
    assert_eq!(server.stats()["totals"]["cancelled_rows"], 4);
}

#[test]
fn a_terminated_server_ends_its_streams_in_order_and_exits_with_0() {
    let server = Server::start(&[]);
    let mut stream = server.send("POST", "/v1/completions", LONG);
    server.stats_when(|stats| active_rows(stats) == 1);
    assert_eq!(server.terminate(), Some(0));
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    assert_eq!(heard.matches("data: [DONE]").count(), 1, "{heard}");
    assert!(heard.contains("shutting down"), "{heard}");
}
