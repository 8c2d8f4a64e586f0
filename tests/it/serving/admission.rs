//! The KV budget of a real model, priorities, and what is told of a request's time.

use std::io::BufRead;

use serde_json::{Value, json};
use slipstream_tests::server::Server;

/// Keys and values of 30 layers, 3 heads of 64 numbers, in f32.
const TOKEN_KV_BYTES: u64 = 2 * 30 * 3 * 64 * 4;
/// A row of up to 256 tokens.
const ROW_KV_BYTES: u64 = 256 * TOKEN_KV_BYTES;

fn story(max_tokens: u64) -> String {
    json!({"prompt": "Once upon a time", "max_tokens": max_tokens, "stream": true}).to_string()
}

#[test]
fn a_row_waits_for_bytes_beside_two_that_hold_them_and_one_too_large_is_refused() {
    let budget = 2 * ROW_KV_BYTES + 1;
    let server = Server::start(&["--kv-budget", &budget.to_string()]);
    let streams: Vec<_> =
        (0..3).map(|_| server.send("POST", "/v1/completions", &story(60))).collect();
    let stats = server.stats_when(|stats| {
        let running = stats["batch"]["active_rows"] == 2;
        running && stats["rows"].as_array().is_some_and(|rows| rows.len() == 3)
    });
    assert_eq!(stats["batch"]["kv_budget_bytes"], budget);
    assert_eq!(stats["batch"]["kv_projected_bytes"], 2 * ROW_KV_BYTES);
    let held = stats["batch"]["kv_bytes"].as_u64().unwrap();
    assert!((1..=2 * ROW_KV_BYTES).contains(&held), "{held}");
    let waiting = &stats["rows"][2];
    let reason = "KV budget: needs 11.8 MB, 1 B of 23.6 MB free";
    assert_eq!((&waiting["waiting_reason"], &waiting["queue_place"]), (&json!(reason), &json!(1)));
    let (status, refused) = server.ask("POST", "/v1/completions", &story(600));
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("over_budget")));
    for stream in streams {
        let lines: Vec<String> = stream.lines().map_while(Result::ok).collect();
        assert!(lines.iter().any(|line| line == "data: [DONE]"), "{lines:?}");
    }
    // A client hears the end before the next snapshot says so.
    let idle = server.stats_when(|stats| stats["batch"]["active_rows"] == 0);
    assert_eq!(idle["batch"]["kv_projected_bytes"], 0);
}

#[test]
fn an_answer_tells_where_its_time_went_and_stats_what_steps_cost() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 12, "stop": ["zzzz"]});
    let (status, answer) = server.ask("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let timings = &answer["timings"];
    let known = |name: &str| timings[name].as_f64().unwrap();
    assert_eq!((&timings["lane"], &timings["lane_reasons"]), (&json!("continuous"), &json!([])));
    assert!(known("prefill_ms") > 0.0 && known("decode_ms") > 0.0 && known("queue_ms") >= 0.0);
    let step: &Value = &server.stats_when(|stats| stats["step"]["steps"] == 11)["step"];
    assert!(step["host_ms_p50"].as_f64() <= step["host_ms_p99"].as_f64(), "{step}");
    assert!(step["gap_ms_p50"].as_f64() > Some(0.0), "{step}");
}
