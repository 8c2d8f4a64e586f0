//! Whose word counts when tokens are picked, and what the SDK hears of log-probabilities.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use slipstream_tests::server::{self, Server};
use slipstream_tests::{demo, goldens};
use tempfile::TempDir;

/// A copy of the tiny checkpoint that wants to be sampled as `config` says, if it says.
fn model(config: Option<&Value>) -> TempDir {
    let tiny = goldens::checkpoint("llama-tiny");
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(tiny.join(name), copy.path().join(name)).unwrap();
    }
    if let Some(config) = config {
        fs::write(copy.path().join("generation_config.json"), config.to_string()).unwrap();
    }
    copy
}

/// The text of an answer to a request with these further fields, which must run in the shared batch.
fn said(server: &Server, fields: &Value) -> String {
    let mut body = json!({"prompt": [5, 60, 7, 60, 9], "max_tokens": 40, "seed": 3});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (status, answer) = server.ask("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["timings"]["lane"], "continuous", "{answer}");
    assert_eq!(answer["timings"]["lane_reasons"], json!([]), "{answer}");
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_request_wins_over_flags_flags_over_the_model_and_the_model_over_what_is_built_in() {
    let plain = model(None);
    let plain = Server::of(plain.path(), &[]);
    let wanted = json!({"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.3});
    let sampled = model(Some(&wanted));
    let by_model = Server::of(sampled.path(), &[]);
    let drawn = said(&plain, &wanted);
    assert_ne!(drawn, said(&plain, &json!({})));
    assert_eq!(said(&by_model, &json!({})), drawn);
    // The penalty stays the model's.
    let cold = said(&plain, &json!({"repetition_penalty": 1.3}));
    assert_eq!(said(&by_model, &json!({"temperature": 0})), cold);
    let by_flag = Server::of(sampled.path(), &["--temp", "0", "--presence-penalty", "-0.5"]);
    let eager = json!({"repetition_penalty": 1.3, "presence_penalty": -0.5});
    assert_eq!(said(&by_flag, &json!({})), said(&plain, &eager));
    let all = json!({"temperature": 0.9, "presence_penalty": 0});
    assert_eq!(said(&by_flag, &all), drawn);
}

#[test]
fn a_model_that_does_not_sample_is_greedy_until_it_is_asked_to() {
    let (plain, quiet) =
        (model(None), model(Some(&json!({"do_sample": false, "temperature": 0.7}))));
    let (plain, quiet) = (Server::of(plain.path(), &[]), Server::of(quiet.path(), &[]));
    assert_eq!(said(&quiet, &json!({})), said(&plain, &json!({})));
    let warm = json!({"temperature": 0.7});
    assert_eq!(said(&quiet, &warm), said(&plain, &warm));
}

#[test]
fn numbers_that_cannot_be_meant_are_refused_in_flags_and_in_the_models_file() {
    for (flag, value, words) in [
        ("--temperature", "2.5", "between 0 and 2"),
        ("--top-p", "-0.1", "between 0 and 1"),
        ("--min-p", "much", "not a number"),
        ("--top-k", "-1", "-1"),
        ("--repetition-penalty", "nan", "at least 0"),
        ("--frequency-penalty", "3", "between -2 and 2"),
    ] {
        let output = server::run(server::serve().arg(format!("{flag}={value}")));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(flag) && told.contains(words), "{told}");
    }
    let wrong = model(Some(&json!({"top_p": 7})));
    let output = server::run(server::serve_model(wrong.path()).args(["--port", "0"]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("generation_config.json") && told.contains("`top_p` is 7"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn the_sdk_hears_the_same_log_probabilities_streamed_and_whole() {
    let server = Server::start(&[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/logprobs.py");
    let mut client = Command::new(demo::client_python());
    let output = client.arg(script).arg(server.url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let heard: Value = serde_json::from_slice(&output.stdout).unwrap();
    for api in ["chat", "completion"] {
        let (whole, streamed) = (&heard[api]["whole"], &heard[api]["streamed"]);
        assert_eq!(whole, streamed, "{api}");
        assert!(whole["tokens"].as_array().unwrap().len() > 3, "{whole}");
        // A greedy choice is the first of the most likely ones, and the tokens make up the text.
        assert_eq!(whole["tokens"], whole["likeliest"], "{api}");
        assert_eq!(whole["joined"], whole["text"], "{api}");
    }
}
