//! Counters, snapshots in time, and requests that are ended from outside.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::api::tests::client::{Answer, read_until};
use crate::error::{Code, Error};
use crate::gateway::script::{Step, says};
use crate::limits;

fn gated() -> Arc<ScriptedRows> {
    ScriptedRows::new(|_| [says("begin"), vec![Step::Gate], says("end")].concat())
}

/// The value of a sample, by its name and labels.
fn sample(metrics: &Answer, sample: &str) -> Option<f64> {
    let mut lines = metrics.body.lines().filter_map(|line| line.rsplit_once(' '));
    lines.find(|(name, _)| *name == sample).map(|(_, value)| value.parse().unwrap())
}

#[tokio::test]
async fn metrics_tell_what_requests_of_a_client_came_to_and_how_they_ended() {
    let failure = Error::new(Code::EngineFailed, "gone");
    let rows = ScriptedRows::new(move |spec| match spec.max_tokens {
        7 => vec![Step::Fail(failure.clone())],
        _ => says("abc"),
    });
    let server = Server::start(rows).await;
    let client = "x-slipstream-client: cline\r\n";
    for max_tokens in [2, 100, 100, 7] {
        let body = completion("hi", json!({"max_tokens": max_tokens})).to_string();
        server.client.ask("POST", COMPLETIONS, client, &body).await;
    }
    let too_long = completion(&"x".repeat(5000), json!({})).to_string();
    server.client.ask("POST", COMPLETIONS, client, &too_long).await;
    let metrics = server.client.get("/metrics").await;
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let labels = r#"model="lab/bytes",lane="continuous",client="cline""#;
    for (name, value) in [
        (format!(r#"requests_total{{{labels},end="length"}}"#), 1.0),
        (format!(r#"requests_total{{{labels},end="stop"}}"#), 2.0),
        (format!(r#"requests_total{{{labels},end="failed"}}"#), 1.0),
        (format!("prompt_tokens_total{{{labels}}}"), 6.0),
        (format!("cached_prompt_tokens_total{{{labels}}}"), 3.0),
        (format!("generated_tokens_total{{{labels}}}"), 2.0 + 4.0 + 4.0),
        (format!("first_token_seconds_count{{{labels}}}"), 3.0),
        (format!("token_gap_seconds_count{{{labels}}}"), 1.0 + 2.0 + 2.0),
        (format!("queue_seconds_sum{{{labels}}}"), 3.0 * script::QUEUE_MS / 1e3),
        (
            r#"refused_requests_total{model="lab/bytes",client="cline",code="context_length_exceeded"}"#
                .to_owned(),
            1.0,
        ),
        (r#"healthy{model="lab/bytes"}"#.to_owned(), 1.0),
    ] {
        assert_eq!(sample(&metrics, &format!("slipstream_{name}")), Some(value), "{name}\n{metrics:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_counted_as_such() {
    let server = Server::start(gated()).await;
    let body = completion("hi", json!({"stream": true})).to_string();
    let mut leaves = server.client.open("POST", COMPLETIONS, "", &body).await;
    read_until(&mut leaves, "\"n\"").await;
    drop(leaves);
    server.rows.cancelled(1).await;
    let left = r#"slipstream_requests_total{model="lab/bytes",lane="continuous",client="unknown",end="left"}"#;
    let metrics = server.client.get("/metrics").await;
    assert_eq!(sample(&metrics, left), Some(1.0), "{metrics:?}");
}

#[tokio::test]
async fn statistics_stream_four_times_a_second_of_the_engines_clock() {
    let clock = Clock::manual();
    let (config, scheduler) = (ServeConfig::default(), SchedulerConfig::default());
    let server = Server::start_at(gated(), config, scheduler, clock.clone()).await;
    let mut stream = server.client.open("GET", "/stats/stream", "", "").await;
    for tick in 0..8 {
        let uptime = tick as f64 * 0.25;
        read_until(&mut stream, &format!("data: {{\"uptime_seconds\":{uptime:?},")).await;
        clock.advance(Duration::from_millis(limits::STATS_PERIOD_MS - 1));
        clock.advance(Duration::from_millis(1));
    }
}

#[tokio::test]
async fn a_shutdown_ends_streams_of_statistics_at_once() {
    let mut server = Server::start(gated()).await;
    let client = server.client;
    let mut stream = client.open("GET", "/stats/stream", "", "").await;
    read_until(&mut stream, "\"rows\"").await;
    server.shut_down();
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_stream_ends_properly_and_its_sibling_goes_on() {
    let server = Server::start(gated()).await;
    let client = server.client;
    let body = chat("a", json!({"stream": true, "stream_options": {"include_usage": true}}));
    let ended = tokio::spawn(async move { client.post(CHAT, &body).await });
    while server.rows.specs().is_empty() {
        tokio::task::yield_now().await;
    }
    let stays = tokio::spawn(async move { client.post(CHAT, &chat("b", json!({}))).await });
    let id = server.rows.specs()[0].id.clone();
    let path = format!("/v1/requests/{id}");
    let answer = client.ask("DELETE", &path, "", "").await;
    let body = json!({"id": id, "object": "request", "cancelled": true});
    assert_eq!((answer.status, answer.json()), (200, body));
    let frames = ended.await.unwrap().frames();
    let parsed: Vec<Value> = frames[..frames.len() - 1]
        .iter()
        .map(|frame| serde_json::from_str(frame).unwrap())
        .collect();
    let reasons: Vec<&Value> = parsed
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"])
        .filter(|r| !r.is_null())
        .collect();
    assert_eq!(reasons, ["content_filter"]);
    assert!(parsed.last().unwrap()["usage"]["prompt_tokens"].as_u64().unwrap() > 0);
    assert_eq!(frames.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(server.rows.cancelled(1).await, std::slice::from_ref(&id));
    let again = client.ask("DELETE", &path, "", "").await;
    assert_eq!((again.status, &again.json()["error"]["code"]), (404, &json!("request_not_found")));
    server.rows.open_gate();
    assert_eq!(stays.await.unwrap().json()["choices"][0]["message"]["content"], "beginend");
}

#[tokio::test]
async fn a_cancelled_whole_answer_is_what_was_said_so_far() {
    let server = Server::start(gated()).await;
    let client = server.client;
    let body = completion("a", json!({"stop": "nd"}));
    let ended = tokio::spawn(async move { client.post(COMPLETIONS, &body).await });
    let id = loop {
        if let Some(spec) = server.rows.specs().pop() {
            break spec.id;
        }
        tokio::task::yield_now().await;
    };
    let cancelled = client.ask("DELETE", &format!("/v1/requests/{id}"), "", "").await;
    assert_eq!(cancelled.status, 200);
    let answer = ended.await.unwrap();
    let choice = answer.json()["choices"][0].clone();
    assert_eq!((answer.status, &choice["finish_reason"]), (200, &json!("content_filter")));
    assert_eq!(choice["stop_reason"], "cancelled");
    let text = choice["text"].as_str().unwrap();
    assert!("begin".starts_with(text), "{text}");
}
