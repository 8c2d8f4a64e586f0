//! Several models in one server: which one a request means, and how they come and go.

use std::fs;
use std::io::BufRead;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipstream_tests::goldens;
use slipstream_tests::random::Random;
use slipstream_tests::server::{Server, run, serve_model};
use tempfile::TempDir;

const COMPLETIONS: &str = "/v1/completions";
const LLAMA: &str = "llama-tiny";
const QWEN: &str = "qwen3-tiny";
const GEMMA: &str = "gemma3-tiny";

fn directory(name: &str) -> PathBuf {
    goldens::checkpoint(name)
}

/// A server of `llama-tiny` that can load the other two.
fn server(flags: &[&str]) -> Server {
    let others = [QWEN, GEMMA].map(|name| directory(name).to_string_lossy().into_owned());
    let mut all = vec!["--model", &others[0], "--model", &others[1]];
    all.extend(flags);
    Server::of(&directory(LLAMA), &all)
}

fn settings(text: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("models.toml");
    fs::write(&path, format!("version = 1\n{text}")).unwrap();
    let path = path.to_string_lossy().into_owned();
    (folder, path)
}

/// A completion of 8 tokens, with `fields` on top.
fn body(fields: &Value) -> String {
    let mut body = json!({"prompt": "The tide", "max_tokens": 8});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

/// What the model of that name says.
fn said(server: &Server, model: &str) -> String {
    let (status, answer) = server.ask("POST", COMPLETIONS, &body(&json!({"model": model})));
    assert_eq!(status, 200, "{model}: {answer}");
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// What each model says on a server of its own.
fn alone(name: &str) -> String {
    said(&Server::of(&directory(name), &[]), name)
}

fn status(server: &Server, id: &str) -> Value {
    let (_, list) = server.ask("GET", "/api/models", "");
    let models = list["data"].as_array().unwrap();
    models.iter().find(|model| model["id"] == id).unwrap_or(&Value::Null).clone()
}

/// Asks until the model stands like that.
fn stands(server: &Server, id: &str, state: &str) {
    while status(server, id)["state"] != state {
        // Leaves the processor to the server; nothing depends on the length.
        thread::sleep(Duration::from_millis(5));
    }
}

fn unload_all(server: &Server) -> u64 {
    for id in [LLAMA, QWEN, GEMMA] {
        let (code, answer) = server.ask("POST", &format!("/api/models/{id}/unload"), "");
        assert!([200, 202].contains(&code), "{answer}");
        stands(server, id, "absent");
    }
    server.stats()["memory"]["active_bytes"].as_u64().unwrap()
}

#[test]
fn each_model_says_under_its_names_what_it_says_alone() {
    let (_folder, path) = settings(
        "[models.qwen3-tiny]\naliases = ['q', 'claude-q']\n[models.qwen3-tiny.profiles.p]",
    );
    let server = server(&["--models-config", &path]);
    let [llama, qwen, gemma] = [LLAMA, QWEN, GEMMA].map(alone);
    assert!(llama != qwen && qwen != gemma, "they cannot be told apart");
    assert_eq!(status(&server, QWEN)["state"], "absent");
    for (name, expected) in [
        (QWEN, &qwen),
        ("", &llama),
        ("default", &llama),
        (LLAMA, &llama),
        ("q", &qwen),
        ("q:p", &qwen),
        (GEMMA, &gemma),
    ] {
        assert_eq!(said(&server, name), *expected, "{name}");
    }
    let (code, answer) = server.ask("POST", COMPLETIONS, &body(&json!({"model": "gpt"})));
    let names = "`llama-tiny`, `qwen3-tiny`, `q`, `claude-q`, `qwen3-tiny:p`, `gemma3-tiny`";
    let error = &answer["error"];
    assert_eq!((code, &error["code"]), (404, &json!("model_not_found")));
    let words = format!("no model `gpt` is served; this server serves {names}");
    assert_eq!(error["message"], json!(words));
    let (_, list) = server.ask("GET", "/v1/models", "");
    let listed: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["state"].as_str().unwrap()))
        .collect();
    assert_eq!(listed, [(LLAMA, "ready"), (QWEN, "ready"), (GEMMA, "ready")]);
    let finished = |stats: &Value| stats["totals"]["finished_rows"].as_u64().unwrap();
    // An answer may be heard before the snapshot that counts its row.
    let stats = server.stats_when(|stats| finished(stats) >= 7);
    let shares = stats["models"].as_array().unwrap();
    assert_eq!(finished(&stats), shares.iter().map(finished).sum::<u64>());
    assert_eq!((finished(&stats), &stats["model"]["id"]), (7, &json!(LLAMA)));
    for (model, asked) in [("claude-q", QWEN), ("claude-sonnet-4-5", LLAMA)] {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body = json!({"model": model, "max_tokens": 1, "messages": messages});
        let (code, answer) = server.ask("POST", "/v1/messages", &body.to_string());
        // A model without a chat template refuses a chat by itself, and says so.
        let told = answer.to_string();
        assert!(code == 200 && answer["model"] == asked || told.contains("template"), "{told}");
    }
}

#[test]
fn a_profile_is_what_a_request_means_that_does_not_say() {
    let (_folder, path) =
        settings("[models.qwen3-tiny.profiles]\nshort = { max_tokens = 3, temperature = 0.0 }");
    let server = server(&["--models-config", &path, "--temperature", "1.5"]);
    let used = |fields: Value| {
        let mut body = json!({"prompt": "The tide", "model": "qwen3-tiny:short"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (code, answer) = server.ask("POST", COMPLETIONS, &body.to_string());
        assert_eq!((code, &answer["model"]), (200, &json!(QWEN)), "{answer}");
        let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
        (answer["usage"]["completion_tokens"].as_u64().unwrap(), text)
    };
    let (tokens, text) = used(json!({}));
    assert_eq!((tokens, used(json!({"seed": 7}))), (3, (3, text.clone())), "it is greedy");
    assert!(alone(QWEN).starts_with(&text));
    assert_eq!(used(json!({"max_tokens": 5})).0, 5);
}

#[test]
fn requests_that_come_while_their_model_loads_are_all_answered() {
    let server = server(&[]);
    let expected = alone(GEMMA);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(said(&server, GEMMA), expected));
        }
    });
    let gemma = status(&server, GEMMA);
    assert_eq!((&gemma["state"], &gemma["waiting"]), (&json!("ready"), &json!(0)));
    assert!(gemma["weights_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn models_are_loaded_pinned_and_unloaded_by_route_and_their_memory_comes_back() {
    let server = server(&[]);
    let first = unload_all(&server);
    let (code, loaded) = server.ask("POST", "/api/models/qwen3-tiny/load?wait=true", "");
    assert_eq!((code, &loaded["state"]), (200, &json!("ready")));
    let stats = server.stats();
    assert!(stats["memory"]["active_bytes"].as_u64().unwrap() > first);
    assert_eq!(stats["memory"]["weights_bytes"], loaded["weights_bytes"]);
    let (_, pinned) = server.ask("POST", "/api/models/qwen3-tiny/pin", r#"{"pinned": true}"#);
    assert_eq!((&pinned["pinned"], &pinned["ttl_seconds"]), (&json!(true), &Value::Null));
    said(&server, LLAMA);
    assert_eq!(unload_all(&server), first, "nothing of two models is left");
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    let (code, answer) = server.ask("POST", "/api/models/none/load", "");
    assert_eq!((code, &answer["error"]["code"]), (404, &json!("model_not_found")));
    let foreign = "http://evil.example";
    let mut stream = server.send("POST", "/api/models/qwen3-tiny/load", "");
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.contains("202"), "{line}");
    assert_eq!(server.ask_from(foreign, "POST", "/api/models/qwen3-tiny/unload").0, 403);
}

#[test]
fn an_idle_model_goes_after_its_time_and_the_first_one_stays() {
    let server = server(&["--model-ttl", "1"]);
    said(&server, QWEN);
    let (_, qwen) = (said(&server, GEMMA), status(&server, QWEN));
    assert_eq!(qwen["ttl_seconds"], json!(1.0));
    stands(&server, QWEN, "absent");
    stands(&server, GEMMA, "absent");
    assert_eq!(status(&server, LLAMA)["state"], "ready");
    assert_eq!(said(&server, QWEN), alone(QWEN), "it comes back when it is asked for");
}

#[test]
fn changes_are_told_as_events() {
    let server = server(&[]);
    let mut events = server.send("GET", "/api/models/events", "");
    let mut next = || loop {
        let mut line = String::new();
        assert!(events.read_line(&mut line).unwrap() > 0, "the stream ended");
        if let Some(data) = line.strip_prefix("data: ") {
            let list: Value = serde_json::from_str(data).unwrap();
            return list["data"][1]["state"].as_str().unwrap().to_owned();
        }
    };
    assert_eq!(next(), "absent");
    server.ask("POST", "/api/models/qwen3-tiny/load", "");
    while next() != "ready" {}
}

#[test]
fn settings_that_cannot_be_meant_end_the_start_with_their_names() {
    for (text, words) in [
        ("[models.nobody]", vec!["`nobody`", "`llama-tiny`"]),
        ("[models.llama-tiny]\npined = true", vec!["pined", "models.toml"]),
        ("[models.llama-tiny.profiles.p]\ntop_p = 2.0", vec!["profiles.p.top_p", "2"]),
    ] {
        let (_folder, path) = settings(text);
        let mut command = serve_model(&directory(LLAMA));
        let output = run(command.args(["--port", "0", "--only", "--models-config", &path]));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
    let twice = directory(LLAMA).to_string_lossy().into_owned();
    let output = run(serve_model(&directory(LLAMA)).args(["--port", "0", "--model", &twice]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("both called `llama-tiny`"));
}

/// What a thread of the crowd does next.
fn act(server: &Server, random: &mut Random, expected: &[(&str, String)]) {
    let (id, text) = random.pick(expected);
    match random.between(0, 9) {
        0 => drop(server.ask("POST", &format!("/api/models/{id}/load"), "")),
        1 | 2 => drop(server.ask("POST", &format!("/api/models/{id}/unload"), "")),
        3 => {
            let (_, list) = server.ask("GET", "/api/models", "");
            assert_eq!(list["data"].as_array().unwrap().len(), 3);
        }
        4 => {
            // A client that leaves, be it while its model loads.
            drop(server.send("POST", COMPLETIONS, &body(&json!({"model": id, "stream": true}))));
        }
        _ => assert_eq!(said(server, id), *text, "{id}"),
    }
}

#[test]
fn eight_threads_that_load_unload_and_ask_lose_no_request_and_leave_no_memory() {
    let server = server(&["--model-ttl", "1"]);
    let expected = [LLAMA, QWEN, GEMMA].map(|name| (name, alone(name)));
    let before = unload_all(&server);
    thread::scope(|scope| {
        for seed in 0..8 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                (0..40).for_each(|_| act(server, &mut random, expected));
            });
        }
    });
    let idle = |stats: &Value| stats["rows"] == json!([]);
    server.stats_when(idle);
    assert_eq!(unload_all(&server), before);
    let leases: u64 =
        [LLAMA, QWEN, GEMMA].iter().map(|id| status(&server, id)["leases"].as_u64().unwrap()).sum();
    assert_eq!(leases, 0);
}
