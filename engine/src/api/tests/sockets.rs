//! Clients that misbehave below HTTP: slow, silent, half gone, or speaking something else.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::api::tests::client::read_until;
use crate::gateway::script::{Step, says};
use crate::limits;

async fn server(clock: &Clock) -> Server {
    let rows = ScriptedRows::new(|_| [says("begin"), vec![Step::Gate], says("end")].concat());
    let (config, scheduler) = (ServeConfig::default(), SchedulerConfig::default());
    Server::start_at(rows, config, scheduler, clock.clone()).await
}

/// A connection on which `text` was sent.
async fn sent(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.client.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// What comes until the server hangs up, while time passes in steps of `step`.
async fn hung_up(mut stream: TcpStream, clock: &Clock, step: u64) -> String {
    let heard = tokio::spawn(async move {
        let mut heard = Vec::new();
        // A reset is a way to hang up too.
        let _ = stream.read_to_end(&mut heard).await;
        String::from_utf8_lossy(&heard).into_owned()
    });
    while !heard.is_finished() {
        clock.advance(Duration::from_millis(step));
        tokio::task::yield_now().await;
    }
    heard.await.unwrap()
}

#[tokio::test]
async fn heads_that_never_end_are_hung_up_on_and_keep_nobody_from_the_server() {
    let clock = Clock::manual();
    let server = server(&clock).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    let mut slow = Vec::new();
    for _ in 0..50 {
        slow.push(sent(&server, &head).await);
    }
    assert_eq!(server.client.get("/health").await.status, 200);
    for stream in slow {
        assert_eq!(hung_up(stream, &clock, limits::HEAD_MS_MAX).await, "");
    }
    assert!(server.rows.specs().is_empty());
}

#[tokio::test]
async fn a_body_that_never_ends_is_refused_in_the_dialects_shape() {
    let clock = Clock::manual();
    let server = server(&clock).await;
    for path in [CHAT, MESSAGES] {
        let text =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{{");
        let answer = hung_up(sent(&server, &text).await, &clock, limits::BODY_MS_MAX / 4).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let body: Value = serde_json::from_str(body).unwrap();
        let message = &body["error"]["message"];
        assert_eq!(message, "the request body did not come in time");
        assert_eq!(body["type"] == "error", path == MESSAGES);
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_that_asks_again_is_not() {
    let clock = Clock::manual();
    let server = server(&clock).await;
    let request = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut stream = sent(&server, request).await;
    for _ in 0..3 {
        read_until(&mut stream, "\"ok\"").await;
        clock.advance(Duration::from_millis(limits::HEAD_MS_MAX - 1));
        stream.write_all(request.as_bytes()).await.unwrap();
    }
    read_until(&mut stream, "\"ok\"").await;
    assert_eq!(hung_up(stream, &clock, limits::HEAD_MS_MAX).await, "");
}

#[tokio::test]
async fn a_client_that_closes_its_half_has_left_and_its_sibling_stays() {
    let clock = Clock::manual();
    let server = server(&clock).await;
    let body = chat("hi", json!({"stream": true})).to_string();
    let mut leaves = server.client.open("POST", CHAT, "", &body).await;
    read_until(&mut leaves, "\"n\"").await;
    let client = server.client;
    let stays = tokio::spawn(async move { client.ask("POST", CHAT, "", &body).await });
    leaves.shutdown().await.unwrap();
    let first = server.rows.specs()[0].id.clone();
    assert_eq!(server.rows.cancelled(1).await, [first]);
    server.rows.open_gate();
    assert_eq!(stays.await.unwrap().frames().last().map(String::as_str), Some("[DONE]"));
}

#[tokio::test]
async fn what_is_not_http_is_answered_with_400_or_nothing_and_the_server_lives() {
    let clock = Clock::manual();
    let server = server(&clock).await;
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(1 << 20));
    let wide = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many: String = (0..5000).map(|index| format!("X-{index}: y\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    for text in [
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET\r\n\r\n",
        "\r\n\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        &long,
        &wide,
        &many,
    ] {
        let mut stream = TcpStream::connect(server.client.address).await.unwrap();
        // The server may hang up before it has read all.
        let _ = stream.write_all(text.as_bytes()).await;
        let answer = hung_up(stream, &clock, limits::HEAD_MS_MAX).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        let shown: String = text.chars().take(60).collect();
        assert!(["", "400", "403", "404", "414", "431"].contains(&status), "{shown}: {answer}");
        assert_eq!(server.client.get("/health").await.status, 200, "{shown}");
    }
}
