//! The prompts that are kept, over HTTP.

use serde_json::{Value, json};

use super::*;
use crate::api::tests::client::Answer;
use crate::gateway::script::{kept_prompt, says};
use crate::limits::LISTED_TOKENS_MAX;
use crate::prompt_cache::{Origin, PromptId};
use crate::scheduler::KeptPrompts;
use crate::telemetry::{DiskCacheSnapshot, PromptCacheSnapshot};

const CACHE: &str = "/v1/cache";
const FLUSH: &str = "/v1/cache/flush";
const SYSTEM: &str =
    "You are one of many agents that were all told this long and very dull story. ";

/// A server that keeps `kept`.
async fn server(kept: KeptPrompts) -> Server {
    let scheduler = SchedulerConfig { prompt_cache_bytes: 1 << 20, ..SchedulerConfig::default() };
    let rows = ScriptedRows::new(|_| says("ok"));
    *rows.kept.lock() = kept;
    Server::start_scheduling(rows, ServeConfig::default(), scheduler).await
}

fn two_conversations() -> KeptPrompts {
    let bees = kept_prompt(&format!("{SYSTEM}Tell me of bees."), Some(70), Some(90));
    let mut ants = kept_prompt(&format!("{SYSTEM}Tell me of ants."), None, Some(80));
    (ants.pinned, ants.origin) = (true, Origin::Boundary);
    let memory =
        PromptCacheSnapshot { entries: 1, bytes: 70, cap_bytes: 100, ..Default::default() };
    let disk = DiskCacheSnapshot { entries: 2, bytes: 170, max_bytes: 999, ..Default::default() };
    KeptPrompts { prompts: vec![bees, ants], memory, disk: Some(disk) }
}

fn path_of(id: &Value) -> String {
    format!("{CACHE}/{}", id.as_str().unwrap())
}

#[track_caller]
fn check_refused(answer: &Answer, status: u16, code: &str, words: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let error = &answer.json()["error"];
    assert_eq!(error["code"], code, "{answer:?}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(words) && message.len() < 1000, "{message}");
}

#[tokio::test]
async fn kept_prompts_are_listed_with_words_that_tell_them_apart() {
    let server = server(two_conversations()).await;
    let answer = server.client.get(CACHE).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    let [bees, ants] = body["data"].as_array().unwrap().as_slice() else { panic!("{body}") };
    assert_eq!(bees["first_words"], ants["first_words"], "they begin alike");
    assert_eq!(bees["first_words"], SYSTEM[..LISTED_TOKENS_MAX].trim_end());
    assert!(bees["last_words"].as_str().unwrap().ends_with("story. Tell me of bees."), "{bees}");
    assert!(ants["last_words"].as_str().unwrap().ends_with("story. Tell me of ants."), "{ants}");
    let mut told = bees.clone();
    for words in ["id", "first_words", "last_words"] {
        told.as_object_mut().unwrap().shift_remove(words);
    }
    let expected = json!({
        "object": "cache.prompt", "model": "lab/bytes", "tokens": 93, "bytes": 70, "tiers": ["memory", "disk"],
        "age_seconds": 2.5, "idle_seconds": 1.25, "hits": 3, "pinned": false,
        "origin": "finished",
    });
    assert_eq!(told, expected);
    let told = (&ants["tiers"], &ants["bytes"], &ants["pinned"], &ants["origin"]);
    assert_eq!(told, (&json!(["disk"]), &json!(80), &json!(true), &json!("boundary")));
    let totals = (&body["prompt_cache"]["cap_bytes"], &body["disk_cache"]["max_bytes"]);
    assert_eq!((&body["object"], totals), (&json!("list"), (&json!(100), &json!(999))));
}

#[tokio::test]
async fn a_prompt_is_pinned_unpinned_and_deleted_by_its_id() {
    let server = server(two_conversations()).await;
    let bees = &server.client.get(CACHE).await.json()["data"][0]["id"];
    for pinned in [true, true, false] {
        let answer = server.client.post(&path_of(bees), &json!({"pinned": pinned})).await;
        let expected = json!({"id": bees, "object": "cache.prompt", "pinned": pinned});
        assert_eq!((answer.status, answer.json()), (200, expected));
        let listed = server.client.get(CACHE).await.json();
        assert_eq!(listed["data"][0]["pinned"], pinned);
    }
    let answer = server.client.ask("DELETE", &path_of(bees), "", "").await;
    let expected = json!({"id": bees, "object": "cache.prompt", "deleted": true});
    assert_eq!((answer.status, answer.json()), (200, expected));
    let listed = server.client.get(CACHE).await.json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    let answer = server.client.ask("DELETE", &path_of(bees), "", "").await;
    check_refused(&answer, 404, "prompt_not_found", bees.as_str().unwrap());
    let answer = server.client.post(&path_of(bees), &json!({"pinned": true})).await;
    check_refused(&answer, 404, "prompt_not_found", bees.as_str().unwrap());
}

#[tokio::test]
async fn emptying_the_cache_spares_what_is_pinned_unless_that_is_meant_too() {
    let server = server(two_conversations()).await;
    for (query, deleted, deleted_pinned, kept_pinned) in
        [("", 1, 0, 1), ("?pinned=false", 0, 0, 1), ("?pinned=true", 1, 1, 0), ("", 0, 0, 0)]
    {
        let answer = server.client.ask("DELETE", &format!("{CACHE}{query}"), "", "").await;
        let expected = json!({
            "object": "cache.cleared", "deleted": deleted, "deleted_pinned": deleted_pinned,
            "kept_pinned": kept_pinned,
        });
        assert_eq!((answer.status, answer.json()), (200, expected), "{query}");
    }
}

#[tokio::test]
async fn a_flush_says_what_it_came_to_and_that_there_is_no_disk_where_there_is_none() {
    let server = server(two_conversations()).await;
    let answer = server.client.ask("POST", FLUSH, "", "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    assert_eq!((&body["object"], &body["complete"]), (&json!("cache.flush"), &json!(true)));
    assert_eq!((&body["saved"], &body["unsaved"]), (&json!(2), &json!(0)));
    assert_eq!(body["disk_cache"]["max_bytes"], 999);
    server.rows.kept.lock().disk = None;
    let answer = server.client.ask("POST", FLUSH, "", "").await;
    check_refused(&answer, 400, "unsupported", "--ssd-cache");
}

#[tokio::test]
async fn a_server_that_keeps_nothing_says_so() {
    let server = Server::start(ScriptedRows::new(|_| says("ok"))).await;
    let body = server.client.get(CACHE).await.json();
    let told = (&body["data"], &body["prompt_cache"]["cap_bytes"], &body["disk_cache"]);
    assert_eq!(told, (&json!([]), &json!(0), &Value::Null));
    let answer = server.client.ask("DELETE", CACHE, "", "").await;
    assert_eq!((answer.status, &answer.json()["deleted"]), (200, &json!(0)));
    let id = format!("{CACHE}/{}", PromptId::of(&[1]));
    let answer = server.client.post(&id, &json!({"pinned": true})).await;
    check_refused(&answer, 404, "prompt_not_found", "this server keeps none");
    let answer = server.client.ask("DELETE", &id, "", "").await;
    check_refused(&answer, 404, "prompt_not_found", "this server keeps none");
}

#[tokio::test]
async fn what_is_no_id_names_nothing() {
    let server = server(two_conversations()).await;
    let id = server.client.get(CACHE).await.json()["data"][0]["id"].as_str().unwrap().to_owned();
    let long = "a".repeat(5000);
    let odd = ["x", "0", "..%2f..%2fetc", "%00", "+1", &id[1..], &id.to_uppercase(), &long];
    // An id may be all digits, whose upper case it is itself.
    for odd in odd.into_iter().filter(|odd| *odd != id) {
        let path = format!("{CACHE}/{odd}");
        let answer = server.client.ask("DELETE", &path, "", "").await;
        check_refused(&answer, 404, "prompt_not_found", "no kept prompt is called");
        let answer = server.client.post(&path, &json!({"pinned": true})).await;
        check_refused(&answer, 404, "prompt_not_found", "no kept prompt is called");
    }
    assert_eq!(server.rows.kept.lock().prompts.len(), 2);
}

#[tokio::test]
async fn a_bad_body_pins_nothing_and_names_what_is_wrong() {
    let server = server(two_conversations()).await;
    let path = path_of(&server.client.get(CACHE).await.json()["data"][0]["id"]);
    let deep = "{\"a\":".repeat(1000);
    for (body, words) in [
        ("", "body is empty"),
        ("{", "not valid JSON"),
        (deep.as_str(), "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("true", "must be a JSON object"),
        ("{}", "`pinned` is required"),
        ("{\"pinned\": null}", "`pinned` is required"),
        ("{\"pinned\": 1}", "`pinned` must be a boolean"),
        ("{\"pinned\": \"true\"}", "`pinned` must be a boolean"),
    ] {
        let answer = server.client.ask("POST", &path, "", body).await;
        check_refused(&answer, 400, "invalid_request", words);
    }
    assert!(!server.rows.kept.lock().prompts[0].pinned);
}

#[tokio::test]
async fn kept_prompts_need_a_key_and_a_known_page_as_everything_else() {
    let config = ServeConfig {
        api_keys: vec!["laptop=0123456789abcdef".parse().unwrap()],
        ..ServeConfig::default()
    };
    let rows = ScriptedRows::new(|_| says("ok"));
    *rows.kept.lock() = two_conversations();
    let id = rows.kept.lock().prompts[0].id;
    let server = Server::start_with(rows, config).await;
    let one = format!("{CACHE}/{id}");
    let body = json!({"pinned": true}).to_string();
    let asks = [
        ("GET", CACHE, ""),
        ("DELETE", CACHE, ""),
        ("POST", FLUSH, ""),
        ("POST", one.as_str(), body.as_str()),
        ("DELETE", one.as_str(), ""),
    ];
    for (method, path, body) in asks {
        let answer = server.client.ask(method, path, "", body).await;
        check_refused(&answer, 401, "missing_api_key", "API key");
        let foreign = "Origin: https://evil.example\r\nx-api-key: 0123456789abcdef\r\n";
        let answer = server.client.ask(method, path, foreign, body).await;
        check_refused(&answer, 403, "origin_not_allowed", "evil.example");
    }
    let kept = server.rows.kept.lock().prompts.clone();
    assert_eq!((kept.len(), kept[0].pinned), (2, false));
    let answer = server.client.ask("GET", CACHE, "x-api-key: 0123456789abcdef\r\n", "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
}
