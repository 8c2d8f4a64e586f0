//! Who is answered.

use serde_json::json;

use super::*;
use crate::gateway::script::says;

const ORIGIN: &str = "https://chat.example";

async fn server() -> Server {
    let config = ServeConfig {
        allowed_hosts: vec!["studio.local".to_owned()],
        allowed_origins: vec![ORIGIN.to_owned()],
        ..ServeConfig::default()
    };
    Server::start_with(ScriptedRows::new(|_| says("ok")), config).await
}

#[tokio::test]
async fn a_rebound_name_gets_nothing_from_any_route() {
    let server = server().await;
    let body = chat("hi", json!({})).to_string();
    for (method, path, body) in
        [("GET", "/stats", ""), ("GET", "/nothing", ""), ("POST", CHAT, body.as_str())]
    {
        let answer = server.client.ask(method, path, "Host: evil.example\r\n", body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (403, &json!("host_not_allowed")), "{path}");
    }
    assert!(server.rows.specs().is_empty());
    for host in ["localhost:1234", "127.0.0.1", "[::1]:80", "studio.local:8080"] {
        let answer = server.client.ask("GET", "/health", &format!("Host: {host}\r\n"), "").await;
        assert_eq!(answer.status, 200, "{host}");
    }
}

#[tokio::test]
async fn a_foreign_page_cannot_make_the_engine_work_and_an_allowed_one_can() {
    let server = server().await;
    let body = chat("hi", json!({})).to_string();
    let headers = "Origin: https://evil.example\r\nContent-Type: text/plain\r\n";
    let answer = server.client.ask("POST", CHAT, headers, &body).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (403, &json!("origin_not_allowed"))
    );
    assert!(server.rows.specs().is_empty());

    let answer = server.client.ask("POST", CHAT, &format!("Origin: {ORIGIN}\r\n"), &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN));
    let stay_open = server.client.get("/health").await;
    assert_eq!(stay_open.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn a_preflight_is_granted_to_allowed_origins_only() {
    let server = server().await;
    let preflight = async |origin: &str| {
        let headers = format!(
            "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: content-type,x-stainless-os\r\n"
        );
        server.client.ask("OPTIONS", CHAT, &headers, "").await
    };
    let granted = preflight(ORIGIN).await;
    assert_eq!(granted.status, 200);
    assert_eq!(granted.header("access-control-allow-origin"), Some(ORIGIN));
    assert_eq!(granted.header("access-control-allow-headers"), Some("content-type,x-stainless-os"));
    let refused = preflight("https://evil.example").await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None));
}

#[tokio::test]
async fn errors_reach_the_pages_of_allowed_origins() {
    let server = server().await;
    let origin = format!("Origin: {ORIGIN}\r\n");
    for (method, path, status) in
        [("GET", "/nothing", 404), ("GET", CHAT, 405), ("POST", CHAT, 400)]
    {
        let answer = server.client.ask(method, path, &origin, "").await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN), "{path}");
    }
}

#[tokio::test]
async fn a_bad_allow_list_keeps_the_server_from_starting() {
    let config = ServeConfig { allowed_origins: vec!["*".to_owned()], ..ServeConfig::default() };
    let server = Server::start_with(ScriptedRows::new(|_| Vec::new()), config).await;
    let error = server.task.await.unwrap().unwrap_err();
    assert!(error.message().contains("`*` is not an origin to allow"), "{error}");
}
