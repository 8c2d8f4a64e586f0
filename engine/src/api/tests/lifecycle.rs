//! Clients that leave, and a server that ends.

use std::time::Duration;

use serde_json::json;

use super::client::read_until;
use super::*;
use crate::error::Code;
use crate::gateway::script::{Step, says};

fn gated() -> Arc<ScriptedRows> {
    ScriptedRows::new(|_| [says("begin"), vec![Step::Gate], says("end")].concat())
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_its_row_and_no_other() {
    let server = Server::start(gated()).await;
    let body = chat("hi", json!({"stream": true})).to_string();
    let mut leaves = server.client.open("POST", CHAT, "", &body).await;
    read_until(&mut leaves, "\"n\"").await;
    let client = server.client;
    let stays = tokio::spawn(async move { client.ask("POST", CHAT, "", &body).await });
    drop(leaves);
    let first = server.rows.specs()[0].id.clone();
    assert_eq!(server.rows.cancelled(1).await, std::slice::from_ref(&first));
    server.rows.open_gate();
    assert_eq!(stays.await.unwrap().frames().last().map(String::as_str), Some("[DONE]"));
    assert_eq!(server.rows.cancelled(1).await, [first]);
}

#[tokio::test]
async fn a_client_that_leaves_before_a_whole_answer_cancels_its_row() {
    let server = Server::start(gated()).await;
    let body = chat("hi", json!({})).to_string();
    let leaves = server.client.open("POST", CHAT, "", &body).await;
    while server.rows.specs().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(leaves);
    assert_eq!(server.rows.cancelled(1).await, [server.rows.specs()[0].id.clone()]);
}

#[tokio::test]
async fn a_shutdown_lets_live_requests_finish_and_then_returns() {
    let mut server = Server::start(gated()).await;
    let body = chat("hi", json!({"stream": true})).to_string();
    let mut stream = server.client.open("POST", CHAT, "", &body).await;
    read_until(&mut stream, "\"n\"").await;
    server.shut_down();
    // The listener closes when the server has heard of it.
    while tokio::net::TcpStream::connect(server.client.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    server.rows.open_gate();
    read_until(&mut stream, "\"finish_reason\":\"stop\"").await;
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_shutdown_without_grace_ends_live_requests_with_an_error_and_returns() {
    let config = ServeConfig { shutdown_grace: Duration::ZERO, ..ServeConfig::default() };
    let mut server = Server::start_with(gated(), config).await;
    let client = server.client;
    let streamed =
        tokio::spawn(async move { client.post(CHAT, &chat("a", json!({"stream": true}))).await });
    let whole = tokio::spawn(async move { client.post(CHAT, &chat("b", json!({}))).await });
    while server.rows.specs().len() < 2 {
        tokio::task::yield_now().await;
    }
    server.shut_down();
    let frames = streamed.await.unwrap().frames();
    assert!(frames[frames.len() - 2].contains("shutting_down"), "{frames:?}");
    assert_eq!(frames.iter().filter(|frame| *frame == "[DONE]").count(), 1);
    let whole = whole.await.unwrap();
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (503, &json!("shutting_down")));
    server.task.await.unwrap().unwrap();
    assert_eq!(server.rows.cancelled(2).await.len(), 2);
}

#[tokio::test]
async fn a_port_in_use_and_a_bad_host_are_one_line_each() {
    let holder = bind("127.0.0.1", 0).await.unwrap();
    let port = holder.local_addr().unwrap().port();
    let error = bind("127.0.0.1", port).await.unwrap_err();
    assert_eq!(error.code(), Code::Io);
    let expected = format!("failed to listen on 127.0.0.1:{port}: the port is in use");
    assert_eq!(error.message(), expected);
    for host in ["no such host", "256.1.1.1", "203.0.113.7"] {
        let error = bind(host, 0).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(host) && text.contains("--host"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}
