//! The real server without a model, beside a hub: what it fetches it serves.

use std::fs;
use std::io::BufRead;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use slipstream_tests::hub::{Fault, HubFile};
use slipstream_tests::server::Server;
use slipstream_tests::{demo, goldens};

use super::{Scene, model};

const ID: &str = "owner%2Fname";
const DOWNLOADS: &str = "/api/hub/downloads";
const LIBRARY: &str = "/api/hub/library";

/// The files of a tiny model that can be served.
fn tiny() -> Vec<HubFile> {
    let folder = goldens::checkpoint("qwen3-tiny");
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    vec![
        HubFile::small("config.json", read("config.json")),
        HubFile::small("tokenizer_config.json", read("tokenizer_config.json")),
        HubFile::large("tokenizer.json", read("tokenizer.json")),
        HubFile::large("model.safetensors", read("model.safetensors")),
    ]
}

/// `slipstream serve` of the scene's folder, with nothing of whoever runs the tests.
fn serve(scene: &Scene) -> Command {
    let mut command = Command::new(demo::binary());
    command.arg("serve").arg("--models").arg(scene.folder.path());
    let home = scene.folder.path().join(".home");
    fs::create_dir_all(&home).unwrap();
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME"] {
        command.env(name, &home);
    }
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "SLIPSTREAM_MODELS"]
    {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", scene.hub.endpoint());
    command
}

#[track_caller]
fn asked(server: &Server, status: u16, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (told, answer) = server.ask(method, path, &body);
    assert_eq!(told, status, "{method} {path}: {answer}");
    answer
}

#[track_caller]
fn got(server: &Server, path: &str) -> Value {
    asked(server, 200, "GET", path, &Value::Null)
}

#[track_caller]
fn refused(server: &Server, status: u16, method: &str, path: &str, body: &Value, words: &str) {
    let answer = asked(server, status, method, path, body);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains(words), "{message}");
}

/// Asks at `path` until it `holds` of the answer.
fn got_when(server: &Server, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    loop {
        let answer = got(server, path);
        if holds(&answer) {
            return answer;
        }
        // Leaves the processor to the server; nothing depends on the length.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn download_when(server: &Server, state: &str) -> Value {
    let body = got_when(server, DOWNLOADS, |body| body["data"][0]["state"] == state);
    body["data"][0].clone()
}

fn chat(model: &str) -> Value {
    json!({"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]})
}

fn state_in_memory(server: &Server) -> Value {
    got(server, LIBRARY)["data"][0]["residency"]["state"].clone()
}

#[test]
fn a_model_is_found_fetched_served_and_removed_over_http() {
    let scene = Scene::new(tiny());
    scene.hub.script().hits = json!([
        { "id": "owner/name", "downloads": 7, "tags": ["mlx"],
          "safetensors": { "parameters": { "BF16": 20_000 } } },
        { "id": "owner/vast", "safetensors": { "parameters": { "BF16": 900_000_000_000u64 } } },
    ]);
    let server = Server::spawn(&mut serve(&scene));
    refused(&server, 404, "POST", "/v1/chat/completions", &chat(""), "serves none");
    let found = got(&server, "/api/hub/search?q=name&limit=5");
    let badges: Vec<_> =
        found["data"].as_array().unwrap().iter().map(|hit| hit["fit"].as_str().unwrap()).collect();
    assert_eq!((badges, &found["offline"]), (vec!["fits", "no"], &json!(false)));
    let read = got(&server, &format!("/api/hub/repos/{ID}"));
    assert_eq!((&read["fit"]["verdict"], &read["family"]), (&json!("fits"), &json!("qwen3")));
    assert_eq!((&read["library"], &read["download"]), (&Value::Null, &Value::Null));

    let mut events = server.send("GET", "/api/hub/events", "");
    asked(&server, 202, "POST", DOWNLOADS, &json!({"repo": "owner/name"}));
    let done = event_when(&mut events, |event| event["library"]["added"] == json!(["owner/name"]));
    let download = &done["downloads"][0];
    assert_eq!(
        (&download["state"], &download["files"].as_array().unwrap().len()),
        (&json!("done"), &4)
    );
    assert_eq!(
        (&download["done_bytes"], &download["total_bytes"]),
        (&read["download_bytes"], &read["download_bytes"])
    );
    let listed = got(&server, LIBRARY);
    assert_eq!(listed["data"][0]["state"], "ready", "{listed}");
    assert_eq!(state_in_memory(&server), "absent");
    assert_eq!(got(&server, "/v1/models")["data"][0]["id"], "owner/name");

    // It is the only one, so it is meant where none is named, and goes by its short name too.
    for name in ["", "name", "owner/name"] {
        let answer = asked(&server, 200, "POST", "/v1/chat/completions", &chat(name));
        assert_eq!(answer["model"], "owner/name", "{answer}");
    }
    assert_eq!(state_in_memory(&server), "ready");
    let path = format!("{LIBRARY}/{ID}");
    refused(&server, 409, "DELETE", &path, &Value::Null, "unload it first");
    // It may be gone before the answer is written, which the answer then says by its state too.
    let (code, told) = server.ask("POST", &format!("/api/models/{ID}/unload"), "{}");
    assert_eq!(code, if told["state"] == "absent" { 200 } else { 202 }, "{told}");
    got_when(&server, LIBRARY, |body| body["data"][0]["residency"]["state"] == "absent");
    let removed = asked(&server, 200, "DELETE", &path, &Value::Null);
    assert!(
        removed["freed_bytes"].as_u64() > download["total_bytes"].as_u64().map(|bytes| bytes - 1)
    );
    assert_eq!(got(&server, LIBRARY)["data"], json!([]));
    refused(&server, 404, "POST", "/v1/chat/completions", &chat("name"), "no model `name`");
    scene.check_absent();
    assert_eq!(server.terminate(), Some(0));
}

/// The first event for which `holds`.
fn event_when(stream: &mut impl BufRead, holds: impl Fn(&Value) -> bool) -> Value {
    let lines = stream.lines().map_while(Result::ok);
    let mut events =
        lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
    events.find(holds).expect("the server tells of it before it ends")
}

#[test]
fn a_download_is_paused_goes_on_and_outlives_the_server() {
    let scene = Scene::new(tiny());
    let hold = || Fault::Hold { after_bytes: 2_000 };
    scene.hub.script().faults = vec![hold(), hold(), hold(), hold()];
    let server = Server::spawn(&mut serve(&scene));
    asked(&server, 202, "POST", DOWNLOADS, &json!({"repo": "owner/name"}));
    let some = |body: &Value| body["data"][0]["done_bytes"].as_u64().unwrap_or(0) >= 4_000;
    got_when(&server, DOWNLOADS, some);
    refused(
        &server,
        503,
        "POST",
        "/v1/chat/completions",
        &chat("owner/name"),
        "is being downloaded",
    );
    let shown = got(&server, "/api/models");
    assert_eq!(
        (&shown["data"][0]["id"], &shown["data"][0]["state"]),
        (&json!("owner/name"), &json!("downloading"))
    );
    asked(&server, 200, "POST", &format!("{DOWNLOADS}/{ID}/pause"), &json!({}));
    let paused = download_when(&server, "paused");
    assert!(paused["done_bytes"].as_u64().unwrap() >= 4_000, "{paused}");
    refused(&server, 404, "POST", "/v1/chat/completions", &chat("owner/name"), "is paused");
    scene.hub.script().faults = vec![hold(), hold(), hold(), hold()];
    asked(&server, 200, "POST", &format!("{DOWNLOADS}/{ID}/resume"), &json!({}));
    let more = paused["done_bytes"].as_u64().unwrap();
    got_when(&server, DOWNLOADS, |body| body["data"][0]["done_bytes"].as_u64() > Some(more));
    assert_eq!(server.terminate(), Some(0));
    scene.check_absent();

    scene.hub.script().faults.clear();
    let server = Server::spawn(&mut serve(&scene));
    let left = download_when(&server, "paused");
    assert!(left["done_bytes"].as_u64() >= Some(more), "{left}");
    asked(&server, 200, "POST", &format!("{DOWNLOADS}/{ID}/resume"), &json!({}));
    got_when(&server, LIBRARY, |body| body["data"][0]["state"] == "ready");
    asked(&server, 200, "POST", "/v1/chat/completions", &chat("name"));
}

#[test]
fn a_download_that_is_cancelled_leaves_nothing() {
    let scene = Scene::new(model(5, 100_000));
    scene.hub.script().faults = vec![Fault::Hold { after_bytes: 1_000 }; 4];
    let server = Server::spawn(&mut serve(&scene));
    asked(&server, 202, "POST", DOWNLOADS, &json!({"repo": "owner/name"}));
    got_when(&server, DOWNLOADS, |body| body["data"][0]["done_bytes"].as_u64() > Some(0));
    asked(&server, 200, "DELETE", &format!("{DOWNLOADS}/{ID}"), &Value::Null);
    got_when(&server, DOWNLOADS, |body| body["data"] == json!([]));
    let places = scene.places();
    assert!(!places.staging(&super::repo()).exists());
    scene.check_absent();
}

#[test]
fn a_gated_model_opens_with_a_token_that_is_kept_while_the_server_runs() {
    let scene = Scene::new(tiny());
    scene.hub.script().wanted_token = Some("hf_right".to_owned());
    scene.hub.script().error_code = "GatedRepo";
    let server = Server::spawn(&mut serve(&scene));
    refused(&server, 403, "GET", &format!("/api/hub/repos/{ID}"), &Value::Null, "token");
    asked(&server, 202, "POST", DOWNLOADS, &json!({"repo": "owner/name"}));
    let failed = download_when(&server, "failed");
    assert_eq!(failed["error"]["code"], "hub_denied", "{failed}");
    if cfg!(target_os = "macos") {
        // The keychain of whoever runs the tests is left alone.
        return;
    }
    let kept = asked(&server, 200, "PUT", "/api/hub/token", &json!({"token": "hf_right"}));
    assert_eq!(kept["present"], true);
    asked(&server, 200, "POST", &format!("{DOWNLOADS}/{ID}/resume"), &json!({}));
    download_when(&server, "done");
    asked(&server, 200, "DELETE", "/api/hub/token", &Value::Null);
    refused(&server, 403, "GET", &format!("/api/hub/repos/{ID}"), &Value::Null, "token");
}

#[test]
fn a_model_that_is_put_into_the_folder_is_served_when_it_is_asked_for_and_converted_aside() {
    let scene = Scene::new(Vec::new());
    let server = Server::spawn(&mut serve(&scene));
    let folder = scene.folder.path().join("late");
    fs::create_dir_all(&folder).unwrap();
    for file in tiny() {
        fs::write(folder.join(&file.path), &*file.content).unwrap();
    }
    // Names that nobody has are looked for once a second at most.
    let ask = || server.ask("POST", "/v1/chat/completions", &chat("late").to_string()).0;
    while ask() == 404 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask(), 200);
    let body = json!({"model": "late", "bits": 8, "group_size": 32});
    let begun = asked(&server, 202, "POST", "/api/hub/convert", &body);
    assert_eq!((&begun["model"], &begun["state"]), (&json!("late-8bit"), &json!("running")));
    let ended = |body: &Value| body["data"][0]["state"] != "running";
    let jobs = got_when(&server, "/api/hub/jobs", ended);
    assert_eq!(jobs["data"][0]["state"], "done", "{jobs}");
    let listed = got_when(&server, LIBRARY, |body| body["data"].as_array().unwrap().len() == 2);
    assert_eq!(
        (&listed["data"][1]["id"], &listed["data"][1]["state"]),
        (&json!("late-8bit"), &json!("ready"))
    );
    let answer = asked(&server, 200, "POST", "/v1/chat/completions", &chat("late-8bit"));
    assert_eq!(answer["model"], "late-8bit");
}

#[test]
fn a_server_of_named_models_offers_the_library_too_unless_it_is_told_not_to() {
    let scene = Scene::new(Vec::new());
    for name in ["one", "two"] {
        let folder = scene.folder.path().join("owner").join(name);
        fs::create_dir_all(&folder).unwrap();
        for file in tiny() {
            fs::write(folder.join(&file.path), &*file.content).unwrap();
        }
    }
    let ids = |server: &Server| {
        let body = got(server, "/v1/models");
        let data = body["data"].as_array().unwrap().iter();
        data.map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let server = Server::spawn(serve(&scene).args(["--model", "two"]));
    assert_eq!(ids(&server), ["owner/two", "owner/one"]);
    let answer = asked(&server, 200, "POST", "/v1/chat/completions", &chat(""));
    assert_eq!(answer["model"], "owner/two");
    refused(&server, 409, "DELETE", &format!("{LIBRARY}/owner%2Ftwo"), &Value::Null, "is loaded");
    drop(server);
    let server = Server::spawn(serve(&scene).args(["--model", "two", "--only"]));
    assert_eq!(ids(&server), ["owner/two"]);
    refused(&server, 404, "POST", "/v1/chat/completions", &chat("one"), "no model `one`");
}
