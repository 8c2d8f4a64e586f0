//! Keys, client names and the ids of requests.

use serde_json::json;

use super::*;
use crate::api::check_exposure;
use crate::error::Code;
use crate::gateway::script::says;

const KEYS: [&str; 2] = ["laptop=sk-laptop-1", "studio=sk-studio-22"];

async fn server() -> Server {
    let api_keys = KEYS.iter().map(|key| key.parse().unwrap()).collect();
    let config = ServeConfig { api_keys, ..ServeConfig::default() };
    Server::start_with(ScriptedRows::new(|_| says("ok")), config).await
}

#[tokio::test]
async fn a_server_with_keys_answers_to_each_of_them_by_both_headers_and_to_nothing_else() {
    let server = server().await;
    let body = chat("hi", json!({})).to_string();
    let ask = async |headers: &str| server.client.ask("POST", CHAT, headers, &body).await;
    for (headers, name) in [
        ("Authorization: Bearer sk-laptop-1\r\n", "laptop"),
        ("authorization: bearer  sk-studio-22\r\n", "studio"),
        ("x-api-key: sk-studio-22\r\n", "studio"),
        ("x-api-key: wrong\r\nAuthorization: Bearer sk-laptop-1\r\n", "laptop"),
        ("x-slipstream-client: impostor\r\nx-api-key: sk-laptop-1\r\n", "laptop"),
    ] {
        assert_eq!(ask(headers).await.status, 200, "{headers}");
        assert_eq!(&*server.rows.specs().pop().unwrap().client, name, "{headers}");
    }
    let asked = server.rows.specs().len();
    for (headers, code) in [
        ("", "missing_api_key"),
        ("Authorization: Basic sk-laptop-1\r\n", "missing_api_key"),
        ("Authorization: Bearer\r\n", "missing_api_key"),
        ("Authorization: Bearer \r\n", "missing_api_key"),
        ("Authorization: Bearer sk-laptop-\r\n", "invalid_api_key"),
        ("Authorization: Bearer sk-laptop-11\r\n", "invalid_api_key"),
        ("Authorization: Bearer laptop=sk-laptop-1\r\n", "invalid_api_key"),
        ("x-api-key: \r\n", "invalid_api_key"),
        ("x-api-key: SK-LAPTOP-1\r\n", "invalid_api_key"),
    ] {
        let answer = ask(headers).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (401, &json!(code)), "{headers}");
        assert_eq!(error["type"], "authentication_error");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(server.rows.specs().len(), asked);
}

#[tokio::test]
async fn without_a_key_only_health_is_told_and_not_even_which_paths_there_are() {
    let server = server().await;
    assert_eq!(server.client.get("/health").await.status, 200);
    for path in ["/stats", "/stats/stream", "/metrics", "/v1/models", "/nothing", "/health/x"] {
        assert_eq!(server.client.get(path).await.status, 401, "{path}");
    }
    let anthropic = server.client.get("/v1/messages").await;
    let body = anthropic.json();
    let shape = (&body["type"], &body["error"]["type"]);
    assert_eq!((anthropic.status, shape), (401, (&json!("error"), &json!("authentication_error"))));
}

#[test]
fn a_server_beyond_loopback_needs_a_key() {
    let open = ServeConfig::default();
    let keyed = ServeConfig { api_keys: vec![KEYS[0].parse().unwrap()], ..ServeConfig::default() };
    for address in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80"] {
        assert!(check_exposure(address.parse().unwrap(), &open).is_ok(), "{address}");
    }
    for address in ["0.0.0.0:80", "[::]:80", "192.168.1.5:80", "[fd00::1]:80"] {
        let address = address.parse().unwrap();
        let error = check_exposure(address, &open).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.to_string().contains("--api-key"), "{error}");
        assert!(check_exposure(address, &keyed).is_ok());
    }
}

#[tokio::test]
async fn a_server_beyond_loopback_without_a_key_does_not_start() {
    let listener = bind("0.0.0.0", 0).await.unwrap();
    let engine = script::engine(ScriptedRows::new(|_| Vec::new()));
    let forever = std::future::pending();
    let error = serve(listener, engine, &ServeConfig::default(), forever).await.unwrap_err();
    assert!(error.message().contains("no API key"), "{error}");
}

#[tokio::test]
async fn a_row_bears_the_name_of_its_client() {
    let server = Server::start(ScriptedRows::new(|_| says("ok"))).await;
    let body = completion("hi", json!({})).to_string();
    for (headers, name) in [
        ("", "unknown"),
        ("User-Agent: opencode/1.0.3 linux\r\n", "opencode"),
        ("User-Agent: opencode/1.0.3\r\nX-Slipstream-Client: worker-7\r\n", "worker-7"),
    ] {
        server.client.ask("POST", COMPLETIONS, headers, &body).await;
        assert_eq!(&*server.rows.specs().pop().unwrap().client, name, "{headers}");
    }
}

#[tokio::test]
async fn every_answer_has_the_id_of_its_request() {
    let server = Server::start(ScriptedRows::new(|_| says("ok"))).await;
    let body = chat("hi", json!({"stream": true})).to_string();
    for (method, path, body) in [
        ("POST", CHAT, &*body),
        ("POST", CHAT, "{"),
        ("GET", "/nothing", ""),
        ("GET", "/health", ""),
    ] {
        let answer = server.client.ask(method, path, "X-Request-Id: abc-1\r\n", body).await;
        assert_eq!(answer.header("x-request-id"), Some("abc-1"), "{path}");
        let [one, two] = [(); 2].map(|()| server.client.ask(method, path, "", body));
        let (one, two) = futures_util::join!(one, two);
        let id = one.header("x-request-id").unwrap();
        assert!(id.starts_with("req_") && Some(id) != two.header("x-request-id"), "{id}");
    }
    let answer = server.client.ask("POST", "/v1/messages", "X-Request-Id: abc-2\r\n", "{").await;
    assert_eq!(answer.header("request-id"), Some("abc-2"));
    assert_eq!(answer.json()["request_id"], "abc-2");
}
