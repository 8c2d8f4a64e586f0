//! Responses that build on each other.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::gateway::script::says;
use crate::limits;

async fn ask(server: &Server, body: Value) -> Value {
    let answer = server.client.post(RESPONSES, &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    if body["stream"] != true {
        return answer.json();
    }
    let events = answer.events();
    for event in &events {
        assert!(event.data.contains(&format!("\"type\":\"{}\"", event.name.as_ref().unwrap())));
    }
    let last: Value = serde_json::from_str(&events.last().unwrap().data).unwrap();
    last["response"].clone()
}

fn prompt(server: &Server) -> String {
    let tokens = server.rows.specs().pop().unwrap().prompt;
    script::tokenizer().decode_spelled(&tokens).unwrap()
}

#[tokio::test]
async fn a_conversation_goes_on_from_the_response_before_and_branches_there() {
    let server = Server::start(ScriptedRows::new(|_| says("yes"))).await;
    for stream in [false, true] {
        let first = ask(&server, json!({"input": "a", "stream": stream})).await;
        let second = ask(
            &server,
            json!({
                "input": [{"role": "user", "content": "b"}], "stream": stream,
                "previous_response_id": first["id"], "instructions": "Be brief.",
            }),
        )
        .await;
        let turn =
            |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        let (past, brief) =
            (turn("a") + "yes<|im_end|>\n", "<|im_start|>system\nBe brief.<|im_end|>\n");
        assert_eq!(prompt(&server), format!("{brief}{past}{}", turn("b")));
        assert_eq!(second["previous_response_id"], first["id"]);
        ask(&server, json!({"input": "c", "previous_response_id": second["id"]})).await;
        assert_eq!(prompt(&server), format!("{past}{}yes<|im_end|>\n{}", turn("b"), turn("c")));
        ask(&server, json!({"input": "d", "previous_response_id": first["id"]})).await;
        assert_eq!(prompt(&server), format!("{past}{}", turn("d")));
        let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
        let input =
            json!([{"role": "user", "content": "a"}, reference, {"role": "user", "content": "e"}]);
        ask(&server, json!({"input": input})).await;
        assert_eq!(prompt(&server), format!("{past}{}", turn("e")));
    }
}

#[tokio::test]
async fn a_stored_response_can_be_read_and_deleted_once() {
    let server = Server::start(ScriptedRows::new(|_| says("yes"))).await;
    let made =
        ask(&server, json!({"input": "a", "metadata": {"k": "v"}, "temperature": 0.7})).await;
    let path = format!("{RESPONSES}/{}", made["id"].as_str().unwrap());
    assert_eq!(server.client.get(&format!("{path}?include=x&stream=false")).await.json(), made);
    for query in ["stream=true", "include=x&stream=null&stream=false"] {
        let played = server.client.get(&format!("{path}?{query}")).await;
        assert_eq!((played.status, &played.json()["error"]["param"]), (400, &json!("stream")));
    }
    let deleted = server.client.ask("DELETE", &path, "", "").await;
    let body = json!({"id": made["id"], "object": "response", "deleted": true});
    assert_eq!((deleted.status, deleted.json()), (200, body));
    for method in ["GET", "DELETE"] {
        let gone = server.client.ask(method, &path, "", "").await;
        assert_eq!(
            (gone.status, &gone.json()["error"]["code"]),
            (404, &json!("response_not_found"))
        );
    }
    let next = json!({"input": "b", "previous_response_id": made["id"]});
    let refused = server.client.post(RESPONSES, &next).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("previous_response_id"))
    );
}

#[tokio::test]
async fn a_response_is_forgotten_after_an_hour_and_one_that_is_not_stored_at_once() {
    let clock = Clock::manual();
    let (config, scheduler) = (ServeConfig::default(), SchedulerConfig::default());
    let rows = ScriptedRows::new(|_| says("yes"));
    let server = Server::start_at(rows, config, scheduler, clock.clone()).await;
    let unstored = ask(&server, json!({"input": "a", "store": false})).await;
    let stored = ask(&server, json!({"input": "a"})).await;
    let status = async |response: &Value| {
        let path = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
        server.client.get(&path).await.status
    };
    assert_eq!((status(&unstored).await, status(&stored).await), (404, 200));
    clock.advance(Duration::from_millis(limits::RESPONSES_TTL_MS - 1));
    assert_eq!(status(&stored).await, 200);
    clock.advance(Duration::from_millis(1));
    assert_eq!(status(&stored).await, 404);
}

#[tokio::test]
async fn a_response_is_found_with_its_own_key_alone() {
    let api_keys = ["laptop=sk-laptop-1", "studio=sk-studio-2"].map(|key| key.parse().unwrap());
    let config = ServeConfig { api_keys: api_keys.into(), ..ServeConfig::default() };
    let server = Server::start_with(ScriptedRows::new(|_| says("yes")), config).await;
    let body = json!({"input": "a"}).to_string();
    let made =
        server.client.ask("POST", RESPONSES, "x-api-key: sk-laptop-1\r\n", &body).await.json();
    let path = format!("{RESPONSES}/{}", made["id"].as_str().unwrap());
    for (key, status) in [("sk-studio-2", 404), ("sk-laptop-1", 200)] {
        let headers = format!("x-api-key: {key}\r\n");
        assert_eq!(server.client.ask("GET", &path, &headers, "").await.status, status, "{key}");
    }
}

#[tokio::test]
async fn what_was_left_out_of_a_request_is_told_in_a_header() {
    let server = Server::start(ScriptedRows::new(|_| says("yes"))).await;
    let body = json!({"input": "a", "tools": [{"type": "web_search_preview"}]});
    let answer = server.client.post(RESPONSES, &body).await;
    let warning = "tools[0].type: web_search_preview is left out, nothing here runs it";
    assert_eq!((answer.status, answer.header("x-slipstream-warning")), (200, Some(warning)));
    // As many as clients read, and no more.
    let body = json!({"input": "a", "tools": vec![json!({"type": "web_search"}); 200]});
    let answer = server.client.post(RESPONSES, &body).await;
    assert_eq!(answer.headers("x-slipstream-warning").count(), 16);
}
