//! Priorities, the KV budget and full queues, as clients meet them.

use serde_json::json;

use super::*;
use crate::api::tests::client::{Answer, read_until};
use crate::gateway::script::{Step, TOKEN_KV_BYTES, says};
use crate::scheduler::Priority;

async fn ask_with_priority(server: &Server, path: &str, headers: &str) -> Answer {
    let body = merged(chat("hi", json!({"prompt": "hi"})), json!({"stream": true}));
    server.client.ask("POST", path, headers, &body.to_string()).await
}

fn scheduling(change: impl FnOnce(&mut SchedulerConfig)) -> SchedulerConfig {
    let mut config = SchedulerConfig::default();
    change(&mut config);
    config
}

async fn start(rows: Arc<ScriptedRows>, scheduler: SchedulerConfig) -> Server {
    Server::start_scheduling(rows, ServeConfig::default(), scheduler).await
}

#[tokio::test]
async fn the_priority_header_reaches_the_row_and_none_is_interactive() {
    let server = Server::start(ScriptedRows::new(|_| says("ok"))).await;
    for path in [CHAT, COMPLETIONS] {
        for (headers, priority) in [
            ("", Priority::Interactive),
            ("x-slipstream-priority: interactive\r\n", Priority::Interactive),
            ("X-Slipstream-Priority: background\r\n", Priority::Background),
        ] {
            let answer = ask_with_priority(&server, path, headers).await;
            assert_eq!(answer.status, 200, "{headers}");
            assert_eq!(server.rows.specs().pop().unwrap().priority, priority, "{headers}");
        }
    }
}

#[tokio::test]
async fn another_word_in_the_priority_header_is_refused_with_the_two_that_are_known() {
    let server = Server::start(ScriptedRows::new(|_| says("ok"))).await;
    let header = "x-slipstream-priority";
    for word in ["urgent", "Background", "", "interactive, background", "\u{e9}"] {
        for path in [CHAT, COMPLETIONS] {
            let answer = ask_with_priority(&server, path, &format!("{header}: {word}\r\n")).await;
            let error = &answer.json()["error"];
            assert_eq!((answer.status, &error["param"]), (400, &json!(header)), "{word}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("`interactive` or `background`"), "{message}");
            assert!(message.contains(&format!("`{word}`")), "{message}");
        }
    }
    let twice = format!("{header}: interactive\r\n{header}: background\r\n");
    assert_eq!(ask_with_priority(&server, CHAT, &twice).await.status, 400);
    assert!(server.rows.specs().is_empty());
}

#[tokio::test]
async fn a_request_over_the_budget_is_400_with_both_numbers_even_as_a_stream_beside_others() {
    let budget = 512 * TOKEN_KV_BYTES;
    let rows = ScriptedRows::new(|_| [says("begin"), vec![Step::Gate]].concat());
    let server = start(rows, scheduling(|config| config.kv_budget_bytes = Some(budget))).await;
    let small = completion("hi", json!({"max_tokens": 400, "stream": true})).to_string();
    let mut live = server.client.open("POST", COMPLETIONS, "", &small).await;
    read_until(&mut live, "\"n\"").await;
    for stream in [true, false] {
        let large = completion("hi", json!({"max_tokens": 511, "stream": stream}));
        let answer = server.client.post(COMPLETIONS, &large).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("over_budget")), "{stream}");
        let message = error["message"].as_str().unwrap();
        for number in [768 * TOKEN_KV_BYTES, budget] {
            assert!(message.contains(&number.to_string()), "{message}");
        }
    }
    assert_eq!(server.rows.specs().len(), 1);
}

#[tokio::test]
async fn a_full_queue_is_429_for_streams_too() {
    let rows = ScriptedRows::new(|_| [says("begin"), vec![Step::Gate]].concat());
    let full = scheduling(|config| (config.batch_rows_max, config.waiting_rows_max) = (1, 0));
    let server = start(rows, full).await;
    let body = |stream: bool| completion("hi", json!({"stream": stream}));
    let mut live = server.client.open("POST", COMPLETIONS, "", &body(true).to_string()).await;
    read_until(&mut live, "\"n\"").await;
    for stream in [true, false] {
        let answer = server.client.post(COMPLETIONS, &body(stream)).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (429, &json!("queue_full")));
        assert!(answer.header("retry-after").is_some(), "{stream}");
    }
}
