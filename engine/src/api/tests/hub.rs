//! The hub over HTTP, of a server that is told to stay offline.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use super::*;
use crate::api::openapi::DOCUMENT;
use crate::api::tests::client::Answer;
use crate::hub::gguf::testing::tiny_llama;
use crate::hub::script::ScriptedHub;
use crate::limits;

const LIBRARY: &str = "/api/hub/library";
const SEARCH: &str = "/api/hub/search";
const DOWNLOADS: &str = "/api/hub/downloads";
const TOKEN: &str = "/api/hub/token";
const IMPORT: &str = "/api/hub/import";

/// A folder with one model.
pub(super) fn scene() -> ScriptedHub {
    let scene = ScriptedHub::new();
    scene.add("owner/tiny");
    scene
}

/// The path of a file that is called like a GGUF file, and is none.
pub(super) fn gguf_file() -> PathBuf {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.gguf"), "no such thing").unwrap();
        folder
    });
    FOLDER.path().join("model.gguf")
}

async fn server(scene: &ScriptedHub) -> Server {
    let rows = ScriptedRows::new(|_| script::says("ok"));
    let engine =
        script::engine_at(Arc::clone(&rows), SchedulerConfig::default(), scene.clock.clone());
    Server::start_hub(rows, engine, scene.open().await).await
}

/// An answer has the fields of a schema of the document: all that it requires, and no others.
#[track_caller]
fn check_schema(value: &Value, name: &str) {
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    let schema = &document["components"]["schemas"][name];
    let told: Vec<&String> = value.as_object().unwrap().keys().collect();
    for field in &told {
        assert!(schema["properties"].get(field.as_str()).is_some(), "{name} tells no `{field}`");
    }
    for field in schema["required"].as_array().unwrap() {
        assert!(told.iter().any(|told| *told == field), "{name} lacks {field}: {value}");
    }
}

#[track_caller]
fn check_refused(answer: &Answer, status: u16, code: &str, words: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let error = &answer.json()["error"];
    assert_eq!(error["code"], code, "{answer:?}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(words) && message.len() < 600, "{message}");
}

async fn delete(server: &Server, path: &str) -> Answer {
    server.client.ask("DELETE", path, "", "").await
}

#[tokio::test]
async fn the_library_tells_what_models_are_and_how_they_fit() {
    let scene = scene();
    let server = server(&scene).await;
    let answer = server.client.get(LIBRARY).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    check_schema(&body, "Library");
    let [model] = &body["data"].as_array().unwrap()[..] else { panic!("{body}") };
    check_schema(model, "LibraryModel");
    check_schema(&model["fit"], "Fit");
    let told = (&model["id"], &model["short_name"], &model["state"], &model["family"]);
    assert_eq!(told, (&json!("owner/tiny"), &json!("tiny"), &json!("ready"), &json!("llama")));
    assert_eq!((&model["fit"]["verdict"], &model["context_tokens"]), (&json!("fits"), &json!(64)));
    let rows: Vec<&Value> = model["fit"]["rows"].as_array().unwrap().iter().collect();
    let contexts: Vec<&Value> = rows.iter().map(|rows| &rows["context_tokens"]).collect();
    assert_eq!(contexts, [&json!(64); 4]);
    assert!(body["free_bytes"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn a_rescan_tells_what_is_new_changed_and_gone() {
    let scene = scene();
    let server = server(&scene).await;
    let empty = json!({});
    let rescan = || server.client.post("/api/hub/library/rescan", &empty);
    let body = rescan().await.json();
    check_schema(&body, "LibraryChanges");
    let changes = |body: &Value| (body["added"].clone(), body["removed"].clone());
    assert_eq!((changes(&body), &body["version"]), ((json!([]), json!([])), &json!(1)));
    scene.add("new");
    std::fs::remove_dir_all(scene.models().join("owner")).unwrap();
    let body = rescan().await.json();
    assert_eq!(changes(&body), (json!(["new"]), json!(["owner/tiny"])));
    assert_eq!(body["version"], 2);
}

#[tokio::test]
async fn a_model_is_removed_by_its_whole_id_and_nothing_else_is() {
    let scene = scene();
    let server = server(&scene).await;
    for id in
        ["tiny", "..%2Fmodels", "owner%2F..%2Fowner%2Ftiny", "%2Fetc%2Fpasswd", "owner", "%2E%2E"]
    {
        let answer = delete(&server, &format!("{LIBRARY}/{id}")).await;
        assert_eq!(answer.status, 404, "{id}: {answer:?}");
    }
    assert!(scene.models().join("owner/tiny/config.json").exists());
    let answer = delete(&server, &format!("{LIBRARY}/owner%2Ftiny")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    check_schema(&answer.json(), "RemovedModel");
    assert!(!scene.models().join("owner").exists());
    let body = server.client.get(LIBRARY).await.json();
    assert_eq!(body["data"], json!([]));
}

#[tokio::test]
async fn offline_a_search_finds_what_is_here_and_says_so() {
    let scene = scene();
    scene.add("owner/huge");
    let server = server(&scene).await;
    let found = |body: &Value| {
        let library = body["library"].as_array().unwrap().iter();
        library.map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (query, expected) in [
        ("?q=TINY", &["owner/tiny"][..]),
        ("?q=owner+ti", &["owner/tiny"]),
        ("", &["owner/huge", "owner/tiny"]),
        ("?q=%3Cscript%3E", &[]),
    ] {
        let answer = server.client.get(&format!("{SEARCH}{query}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        check_schema(&body, "HubSearch");
        assert_eq!(found(&body), expected, "{query}");
        assert_eq!((&body["offline"], &body["data"]), (&json!(true), &json!([])));
        assert!(body["reason"].as_str().unwrap().contains("offline"), "{body}");
    }
    let answer = server.client.get("/api/hub/repos/owner%2Fname").await;
    check_refused(&answer, 502, "hub_unreachable", "offline");
}

#[tokio::test]
async fn hostile_words_of_a_query_are_refused_by_name() {
    let scene = scene();
    let server = server(&scene).await;
    let long = "x".repeat(5000);
    for (query, name) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=1e9", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("all=yes", "all"),
        ("sort=size", "sort"),
        ("q=a%00b", "q"),
        ("q=a%0d%0aHost:+x", "q"),
        (&format!("q={long}"), "q"),
        (&format!("sort={long}"), "sort"),
        (&format!("limit={long}"), "limit"),
    ] {
        let answer = server.client.get(&format!("{SEARCH}?{query}")).await;
        check_refused(&answer, 400, "invalid_request", "");
        assert_eq!(answer.json()["error"]["param"], name, "{query}");
    }
    let answer = server.client.get("/api/hub/repos/owner%2Fname?revision=..%2F..").await;
    check_refused(&answer, 400, "invalid_request", "no revision");
}

#[tokio::test]
async fn names_that_could_lead_elsewhere_start_no_download() {
    let scene = scene();
    let server = server(&scene).await;
    for repo in
        ["../x", "a/../b", "/etc/passwd", "a/b/c", "", "a\\b", ".hidden/x", "a/b?x", "a--b/c"]
    {
        let answer = server.client.post(DOWNLOADS, &json!({"repo": repo})).await;
        check_refused(&answer, 400, "invalid_request", "no repository");
    }
    let body = json!({"repo": "a/b", "revision": "../main"});
    check_refused(
        &server.client.post(DOWNLOADS, &body).await,
        400,
        "invalid_request",
        "no revision",
    );
    for path in ["..%2Fx", "a%2F..%2Fb", "%2Fetc%2Fpasswd", "a%2Fb%2Fc"] {
        for action in ["pause", "resume"] {
            let answer =
                server.client.post(&format!("{DOWNLOADS}/{path}/{action}"), &json!({})).await;
            check_refused(&answer, 400, "invalid_request", "no repository");
        }
        let answer = delete(&server, &format!("{DOWNLOADS}/{path}")).await;
        check_refused(&answer, 400, "invalid_request", "no repository");
        let answer = server.client.get(&format!("/api/hub/repos/{path}")).await;
        check_refused(&answer, 400, "invalid_request", "no repository");
    }
    let answer = delete(&server, &format!("{DOWNLOADS}/owner%2Fname")).await;
    check_refused(&answer, 404, "model_not_found", "no download");
    assert_eq!(server.client.get(DOWNLOADS).await.json()["data"], json!([]));
}

#[tokio::test]
async fn a_download_that_fails_says_why_and_is_forgotten_when_it_is_cancelled() {
    let scene = scene();
    let server = server(&scene).await;
    let answer =
        server.client.post(DOWNLOADS, &json!({"repo": "owner/name", "bytes_per_second": 9})).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    check_schema(&answer.json(), "Download");
    let body = loop {
        let body = server.client.get(DOWNLOADS).await.json();
        if body["data"][0]["state"] == "failed" {
            break body;
        }
    };
    check_schema(&body, "Downloads");
    assert_eq!(body["bytes_per_second_max"], 9);
    assert_eq!(body["data"][0]["error"]["code"], "hub_unreachable");
    let answer = delete(&server, &format!("{DOWNLOADS}/owner%2Fname")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    check_schema(&answer.json(), "DeletedDownload");
    assert_eq!(server.client.get(DOWNLOADS).await.json()["data"], json!([]));
}

#[tokio::test]
async fn a_token_is_kept_told_of_and_forgotten_and_never_shown() {
    let scene = scene();
    let server = server(&scene).await;
    let none = json!({"object": "hub.token", "present": false, "source": null});
    assert_eq!(server.client.get(TOKEN).await.json(), none);
    let body = json!({"token": "hf_secret"}).to_string();
    let kept = server.client.ask("PUT", TOKEN, "", &body).await;
    assert_eq!((kept.status, &kept.json()["present"]), (200, &json!(true)));
    let told = server.client.get(TOKEN).await;
    check_schema(&told.json(), "HubToken");
    assert!(!kept.body.contains("hf_secret") && !told.body.contains("hf_secret"), "{told:?}");
    for (body, field) in [
        (json!({"token": "two hf_words"}), "token"),
        (json!({"token": 7}), "token"),
        (json!({}), "token"),
    ] {
        let answer = server.client.ask("PUT", TOKEN, "", &body.to_string()).await;
        check_refused(&answer, 400, "invalid_request", field);
        assert!(!answer.body.contains("hf_words"), "{answer:?}");
    }
    assert_eq!(delete(&server, TOKEN).await.json(), none);
    assert_eq!(server.client.get(TOKEN).await.json(), none);
}

#[tokio::test]
async fn only_files_of_this_machine_that_are_called_so_are_imported() {
    let scene = scene();
    let server = server(&scene).await;
    let file = gguf_file();
    let folder = file.parent().unwrap().join("folder.gguf");
    let _ = std::fs::create_dir(&folder);
    for path in [
        json!("model.gguf"),
        json!("../model.gguf"),
        json!("/etc/passwd"),
        json!("/no/such.gguf"),
        json!(folder),
    ] {
        let answer = server.client.post(IMPORT, &json!({"path": path})).await;
        check_refused(&answer, 400, "invalid_request", "is ");
        assert_eq!(answer.json()["error"]["param"], "path");
    }
    for out in ["../x", "/tmp/x", "a/b/c", ".x", "owner/tiny"] {
        let answer = server.client.post(IMPORT, &json!({"path": file, "out": out})).await;
        check_refused(&answer, 400, "invalid_request", "");
        assert_eq!(answer.json()["error"]["param"], "out", "{out}");
    }
    let begun = server.client.post(IMPORT, &json!({"path": file})).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    check_schema(&begun.json(), "HubJob");
    let job = loop {
        let body = server.client.get("/api/hub/jobs").await.json();
        if body["data"][0]["state"] != "running" {
            break body["data"][0].clone();
        }
    };
    assert_eq!((&job["state"], &job["error"]["code"]), (&json!("failed"), &json!("bad_import")));
    assert_eq!(server.client.get(LIBRARY).await.json()["data"].as_array().unwrap().len(), 1);
    let ended = delete(&server, &format!("/api/hub/jobs/{}", job["id"].as_str().unwrap())).await;
    assert_eq!(ended.json(), job);
    let answer = delete(&server, "/api/hub/jobs/..%2F1").await;
    check_refused(&answer, 400, "invalid_request", "no job");
}

#[tokio::test]
async fn an_imported_file_is_a_model_of_the_library() {
    let scene = ScriptedHub::new();
    let server = server(&scene).await;
    let file = scene.folder.path().join("small.gguf");
    std::fs::write(&file, tiny_llama().build()).unwrap();
    let body = json!({"path": file, "out": "made/here", "dtype": "bf16"});
    let begun = server.client.post(IMPORT, &body).await;
    assert_eq!((begun.status, &begun.json()["model"]), (202, &json!("made/here")));
    let listed = loop {
        let body = server.client.get(LIBRARY).await.json();
        if body["data"] != json!([]) {
            break body;
        }
        let jobs = server.client.get("/api/hub/jobs").await.json();
        assert!(
            ["running", "done"].contains(&jobs["data"][0]["state"].as_str().unwrap()),
            "{jobs}"
        );
    };
    let model = &listed["data"][0];
    let told = (&model["id"], &model["family"], &model["dtype"]);
    assert_eq!(told, (&json!("made/here"), &json!("llama"), &json!("bf16")), "{model}");
    assert!(scene.models().join("made/here/config.json").exists());
}

#[tokio::test]
async fn events_come_at_once_and_when_something_changes_until_the_server_drains() {
    let scene = scene();
    let mut server = server(&scene).await;
    let mut stream = BufReader::new(server.client.open("GET", "/api/hub/events", "", "").await);
    let first = next_event(&mut stream).await.unwrap();
    check_schema(&first, "HubEvent");
    check_schema(&first["library"], "LibraryChanges");
    assert_eq!(first["library"]["added"], json!(["owner/tiny"]));
    scene.add("new");
    server.client.post("/api/hub/library/rescan", &json!({})).await;
    // The next one is due a quarter of a second after the first.
    scene.clock.advance(Duration::from_millis(limits::STATS_PERIOD_MS));
    let second = next_event(&mut stream).await.unwrap();
    assert_eq!(
        (&second["library"]["added"], &second["library"]["version"]),
        (&json!(["new"]), &json!(2))
    );
    server.shut_down();
    assert_eq!(next_event(&mut stream).await, None);
}

/// The next event's data; `None` at the stream's end.
async fn next_event(stream: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut line = String::new();
    while stream.read_line(&mut line).await.unwrap() > 0 {
        if let Some(data) = line.strip_prefix("data: ") {
            return Some(serde_json::from_str(data).unwrap());
        }
        line.clear();
    }
    None
}

#[tokio::test]
async fn a_server_without_a_hub_has_nothing_there_and_other_origins_change_nothing() {
    let server = Server::start(ScriptedRows::new(|_| Vec::new())).await;
    check_refused(&server.client.get(LIBRARY).await, 404, "not_found", "");
    let scene = scene();
    let server = super::hub::server(&scene).await;
    let origin = "Origin: http://evil.example\r\n";
    for (method, path) in
        [("POST", DOWNLOADS), ("PUT", TOKEN), ("DELETE", "/api/hub/library/owner%2Ftiny")]
    {
        let answer = server.client.ask(method, path, origin, "{}").await;
        check_refused(&answer, 403, "origin_not_allowed", "evil");
    }
    assert!(scene.models().join("owner/tiny").exists());
}
