//! What the command line refuses: one line that says why, and exit code 2.

use std::fs;
use std::path::Path;
use std::process::Command;

use slipstream_tests::demo;
use slipstream_tests::server::{self, Server};

#[track_caller]
fn check(command: &mut Command, words: &[&str]) {
    let output = server::run(command);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    for word in words {
        assert!(told.contains(word), "`{word}` is not in `{told}`");
    }
}

#[track_caller]
fn check_one_line(command: &mut Command, words: &[&str]) {
    check(command, words);
    let told = server::run(command).stderr;
    assert_eq!(told.iter().filter(|byte| **byte == b'\n').count(), 1);
}

fn serve(model: &Path) -> Command {
    let mut command = Command::new(demo::binary());
    command.args(["serve", "--port", "0", "--model"]).arg(model);
    command
}

#[test]
fn an_unknown_model_path_is_named() {
    check_one_line(&mut serve(Path::new("/no/such/model")), &["/no/such/model"]);
}

#[test]
fn a_port_in_use_is_named_before_the_model_loads() {
    let server = Server::start(&[]);
    let port = server.url().rsplit(':').next().unwrap().trim_end_matches("/v1").to_owned();
    check_one_line(server::serve().args(["--port", &port]), &[&port, "in use", "--port"]);
}

#[test]
fn a_missing_and_a_truncated_shard_are_named() {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(demo::model_directory()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "model.safetensors" {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    check_one_line(&mut serve(copy.path()), &["no weights", "model.safetensors"]);
    let weights = fs::read(demo::model_directory().join("model.safetensors")).unwrap();
    fs::write(copy.path().join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    check_one_line(&mut serve(copy.path()), &["model.safetensors", "bytes long", "fetch it again"]);
}

#[test]
fn unknown_flags_and_bad_values_are_refused() {
    check(server::serve().arg("--no-such-flag"), &["--no-such-flag"]);
    check(server::serve().args(["--batch", "0"]), &["--batch", "between 1 and"]);
    check(server::serve().args(["--port", "high"]), &["--port", "high"]);
    check(server::serve().args(["--kv-budget", "lots"]), &["--kv-budget", "`auto`, `off`"]);
    check(server::serve().args(["--max-gap", "0"]), &["--max-gap", "1..="]);
    check(server::serve().args(["--max-tokens", "0"]), &["--max-tokens", "0"]);
    let pinned_and_paced = ["--prefill-chunk", "64", "--max-gap", "250"];
    check(server::serve().args(pinned_and_paced), &["--prefill-chunk", "--max-gap"]);
}

#[test]
fn a_budget_below_one_row_and_a_misspelt_switch_are_named() {
    let budget = ["--kv-budget", "1M"];
    check_one_line(server::serve().args(budget), &["1.0 MB", "11.8 MB", "--kv-budget"]);
    let mut misspelt = server::serve();
    misspelt.env("SLIPSTREAM_NO_PIPELINE", "yes");
    check_one_line(&mut misspelt, &["SLIPSTREAM_NO_PIPELINE", "`yes`", "only 1 and 0"]);
}

#[test]
fn a_foreign_file_is_not_imported_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (file, out) = (scratch.path().join("notes.gguf"), scratch.path().join("model"));
    fs::write(&file, "These are notes, not weights.").unwrap();
    let mut import = Command::new(demo::binary());
    check_one_line(import.arg("import").arg(&file).arg("--out").arg(&out), &["notes.gguf"]);
    let names: Vec<_> =
        fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["notes.gguf"]);
}
