//! Serving quantized KV caches, and what the command line refuses of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use slipstream_tests::server::{self, Server};
use slipstream_tests::{demo, goldens};

const SHORT: &str = r#"{"prompt": "Once upon a time", "max_tokens": 24}"#;

fn active_rows(stats: &Value) -> u64 {
    stats["batch"]["active_rows"].as_u64().unwrap()
}

#[test]
fn rows_over_quantized_caches_share_a_batch_and_take_a_fraction_of_the_bytes() {
    let long = r#"{"prompt": "Once upon a time", "max_tokens": 250, "stream": true}"#;
    let row_bytes = |flags: &[&str], name: &str| {
        let server = Server::start(flags);
        let streams = [(); 2].map(|()| server.send("POST", "/v1/completions", long));
        let stats = server.stats_when(|stats| active_rows(stats) == 2);
        assert_eq!(stats["model"]["kv_scheme"], name);
        assert_eq!(stats["model"]["serial_because"], json!([]));
        assert_eq!(stats["batch"]["mode"], "batch");
        assert_eq!(stats["batch"]["batched"], true);
        drop(streams);
        stats["batch"]["kv_bytes"].as_u64().unwrap()
    };
    let plain = row_bytes(&["--dtype", "f32"], "off");
    let packed = row_bytes(&["--dtype", "f32", "--kv-quant", "4"], "4-bit-g64");
    // 4 bits a value and two f32 per 64 values, of 32 bits a value.
    assert_eq!(packed * 64, plain * 10);
}

#[test]
fn a_scheme_that_converts_late_serves_every_request_alone_and_says_why() {
    let server = Server::start(&["--kv-quant", "8", "--quantized-kv-start", "16"]);
    let stats = server.stats();
    assert_eq!(stats["model"]["kv_scheme"], "8-bit-g64-from-16");
    assert_eq!(stats["batch"]["mode"], "serial");
    let reasons = stats["model"]["serial_because"].as_array().unwrap();
    assert!(reasons.len() == 1 && reasons[0].as_str().unwrap().contains("16"), "{reasons:?}");
    let (status, answer) = server.ask("POST", "/v1/completions", SHORT);
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(24)), "{answer}");
    let told = answer.to_string();
    assert!(told.contains("serial") && told.contains("token 16"), "{told}");
}

fn serve(model: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(demo::binary());
    command.args(["serve", "--port", "0", "--model"]).arg(model).args(flags);
    command
}

#[track_caller]
fn check(model: &Path, flags: &[&str], words: &[&str]) -> usize {
    let output = server::run(&mut serve(model, flags));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    for word in words {
        assert!(told.contains(word), "`{word}` is not in `{told}`");
    }
    told.matches('\n').count()
}

#[track_caller]
fn check_one_line(model: &Path, flags: &[&str], words: &[&str]) {
    assert_eq!(check(model, flags, words), 1);
}

#[test]
fn kv_flags_that_cannot_be_served_end_the_start() {
    let wide = goldens::checkpoint("llama-tiny-wide");
    check(&wide, &["--kv-quant", "5"], &["--kv-quant", "`5`", "off, 4, 8 and config"]);
    check(&wide, &["--kv-quant", "4", "--quantized-kv-start", "-1"], &["-1"]);
    check(&wide, &["--kv-quant", "4", "--kv-group-size", "many"], &["--kv-group-size", "many"]);
    let sized = ["--kv-quant", "4", "--kv-group-size", "48"];
    check_one_line(&wide, &sized, &["--kv-group-size", "48", "32, 64, 128"]);
    let narrow = ["--kv-quant", "8"];
    check_one_line(
        &goldens::checkpoint("llama-tiny"),
        &narrow,
        &["layer 0", "16 values", "groups of 64"],
    );
    for flag in ["--kv-group-size", "--quantized-kv-start"] {
        check_one_line(&wide, &[flag, "64"], &[flag, "no effect", "--kv-quant"]);
        check_one_line(&wide, &["--kv-quant", "config", flag, "64"], &[flag, "no effect"]);
    }
}

#[test]
fn a_kv_config_that_does_not_fit_the_model_ends_the_start() {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(goldens::checkpoint("llama-tiny-wide")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let config = ["--kv-quant", "config"];
    check_one_line(copy.path(), &config, &["kv_config.json"]);
    let refused = |text: &str, words: &[&str]| {
        fs::write(copy.path().join("kv_config.json"), text).unwrap();
        let words: Vec<_> = words.iter().copied().chain(["kv_config.json"]).collect();
        check_one_line(copy.path(), &config, &words);
    };
    refused(r#"[{"layer_idx": 3, "bits": 4}]"#, &["no layer 3", "3 layers"]);
    refused(r#"[{"layer_idx": 1, "bits": 7}]"#, &["layer 1", "bits 7"]);
    refused(r#"[{"layer_idx": 1, "bits": 4, "group_size": 96}]"#, &["layer 1", "group_size 96"]);
    refused("{\n\"layers\": 3\n}", &["not a list"]);
    refused("[\n{", &["EOF"]);
}

#[test]
fn a_bench_of_several_rows_refuses_a_scheme_that_converts_late() {
    let mut bench = Command::new(demo::binary());
    bench.args(["bench", "--batch", "1,2", "--kv-quant", "4", "--quantized-kv-start", "9"]);
    let output = server::run(bench.arg("--model").arg(goldens::checkpoint("llama-tiny-wide")));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("2 rows") && told.contains("token 9"), "{told}");
}
