//! What a stream says before its answer does.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::api::tests::client::read_until;
use crate::gateway::script::{Step, says};
use crate::limits;
use crate::telemetry::Snapshot;

fn waiting_first() -> Arc<ScriptedRows> {
    ScriptedRows::new(|_| [vec![Step::Gate], says("ab")].concat())
}

/// Starts a server on a manual clock, sends `body` and returns the live stream once its row waits.
async fn open(
    rows: Arc<ScriptedRows>,
    path: &str,
    headers: &str,
    body: Value,
) -> (Server, Clock, tokio::net::TcpStream) {
    let clock = Clock::manual();
    let (config, scheduler) = (ServeConfig::default(), SchedulerConfig::default());
    let server = Server::start_at(rows, config, scheduler, clock.clone()).await;
    let body = merged(body, json!({"stream": true})).to_string();
    let stream = server.client.open("POST", path, headers, &body).await;
    server.rows.waits_at_gate(1).await;
    (server, clock, stream)
}

fn bodies() -> [(&'static str, Value); 4] {
    let messages = [json!({"role": "user", "content": "hi"})];
    [
        (CHAT, chat("hi", json!({}))),
        (COMPLETIONS, completion("hi", json!({}))),
        (RESPONSES, json!({"input": "hi"})),
        (MESSAGES, json!({"model": "default", "max_tokens": 9, "messages": messages})),
    ]
}

#[tokio::test]
async fn a_silent_stream_shows_life_as_its_clients_understand_it() {
    let signs = [
        [": slipstream\n\n", ": slipstream\n\n", "event: response.in_progress\n", "event: ping\n"],
        [
            "\"delta\":{\"content\":\"\"}",
            "\"text\":\"\"",
            "event: response.in_progress\n",
            "event: ping\n",
        ],
        [": slipstream\n\n"; 4],
    ];
    for (kind, signs) in
        ["", "x-slipstream-keep-alive: delta\r\n", "x-slipstream-keep-alive: comment\r\n"]
            .into_iter()
            .zip(signs)
    {
        for ((path, body), sign) in bodies().into_iter().zip(signs) {
            let (server, clock, mut stream) = open(waiting_first(), path, kind, body).await;
            // What the opening holds is not the sign: it is read away first.
            let opening = match path {
                CHAT => "\"role\"",
                RESPONSES => "event: response.in_progress\n",
                MESSAGES => "event: ping\n",
                _ => "\r\n\r\n",
            };
            read_until(&mut stream, opening).await;
            for _ in 0..2 {
                clock.advance(Duration::from_millis(limits::SILENCE_MS_MAX));
                read_until(&mut stream, sign).await;
            }
            server.rows.open_gate();
            read_until(&mut stream, "\r\n0\r\n").await;
        }
    }
}

#[tokio::test]
async fn progress_is_told_in_comments_in_every_dialect() {
    for (path, body) in bodies() {
        let (server, clock, mut stream) = open(waiting_first(), path, "", body).await;
        let row = |state, place: Option<usize>, done| {
            let mut snapshot = super::status::snapshot();
            let row = &mut snapshot.rows[0];
            row.id = server.rows.specs()[0].id.clone();
            (row.state, row.queue_place, row.prefilled_tokens) = (state, place, done);
            row.waiting_reason = place.map(|_| "the batch is full".to_owned());
            Arc::new(snapshot)
        };
        let look = async |snapshot: Arc<Snapshot>, comment: &str, stream: &mut _| {
            *server.rows.snapshot.lock() = snapshot;
            clock.advance(Duration::from_millis(limits::PROGRESS_PERIOD_MS));
            read_until(stream, &format!(": slipstream {comment}\n\n")).await;
        };
        let queued = r#"{"state":"queued","place":2,"reason":"the batch is full"}"#;
        look(row("waiting", Some(2), 0), queued, &mut stream).await;
        let read = r#"{"state":"prefilling","done":3,"total":5,"cached":4}"#;
        look(row("prefilling", None, 3), read, &mut stream).await;
        server.rows.open_gate();
        read_until(&mut stream, "\r\n0\r\n").await;
    }
}

#[tokio::test]
async fn a_kind_of_keep_alive_that_is_none_is_refused_with_those_that_are() {
    let server = Server::start(ScriptedRows::new(|_| says("ok"))).await;
    let body = chat("hi", json!({})).to_string();
    let headers = "x-slipstream-keep-alive: often\r\n";
    let answer = server.client.ask("POST", CHAT, headers, &body).await;
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["param"]), (400, &json!("x-slipstream-keep-alive")));
    let message =
        "`x-slipstream-keep-alive` must be one of `auto`, `comment`, `delta`, `off`, got `often`";
    assert_eq!(error["message"], message);
}
