//! The models on a machine from the command line: listed, reckoned, served and removed by their names.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use slipstream_tests::server::{self, Server};
use slipstream_tests::{demo, goldens};

/// A folder of models with a tiny checkpoint in it, and a copy whose weights are cut.
fn models() -> tempfile::TempDir {
    let models = tempfile::tempdir().unwrap();
    for name in ["owner/tiny", "owner/half"] {
        let target = models.path().join(name);
        fs::create_dir_all(&target).unwrap();
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
        {
            fs::copy(goldens::checkpoint("llama-tiny").join(file), target.join(file)).unwrap();
        }
    }
    let weights = models.path().join("owner/half/model.safetensors");
    let content = fs::read(&weights).unwrap();
    fs::write(weights, &content[..content.len() / 2]).unwrap();
    models
}

fn run(models: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(demo::binary());
    // No cache of the machine that runs the test.
    command.args(arguments).arg("--models").arg(models).env("HF_HUB_CACHE", models.join("none"));
    server::run(&mut command)
}

fn json(models: &Path, arguments: &[&str]) -> Value {
    let output = run(models, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn states(models: &Path, arguments: &[&str]) -> Vec<(String, String)> {
    let listed = json(models, &[&["ls", "--json"], arguments].concat());
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
    let entries = listed.as_array().unwrap().iter();
    entries.map(|entry| (text(entry, "id"), text(entry, "state"))).collect()
}

#[test]
fn models_are_listed_with_their_states_and_removed_by_their_names() {
    let models = models();
    let pair = |id: &str, state: &str| (id.to_owned(), state.to_owned());
    let both = [pair("owner/half", "incomplete"), pair("owner/tiny", "ready")];
    assert_eq!(states(models.path(), &[]), both);
    assert_eq!(states(models.path(), &["TINY"]), both[1..]);
    let asked = run(models.path(), &["rm", "tiny"]);
    assert_eq!(asked.status.code(), Some(2), "nobody is there to answer");
    assert_eq!(states(models.path(), &[]), both);
    assert!(run(models.path(), &["rm", "tiny", "--yes"]).status.success());
    assert_eq!(states(models.path(), &[]), both[..1]);
    let gone = run(models.path(), &["rm", "tiny", "--yes"]);
    let told = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(gone.status.code() == Some(2) && told.contains("`tiny`"), "{told}");
}

#[test]
fn a_fit_is_told_by_name_and_by_directory() {
    let models = models();
    let by_name = json(models.path(), &["fit", "tiny", "--json", "--memory", "8G"]);
    let directory = models.path().join("owner/tiny");
    let directory = directory.to_str().unwrap();
    let by_directory = json(models.path(), &["fit", directory, "--json", "--memory", "8G"]);
    for name in ["verdict", "weights_bytes", "token_bytes", "kv_budget_bytes"] {
        assert_eq!(by_name[name], by_directory[name], "{name}");
    }
    assert_eq!(by_name["verdict"], "fits");
    let small = json(models.path(), &["fit", "tiny", "--json", "--memory", "1G"]);
    assert_eq!(small["verdict"], "no");
    let refused = run(models.path(), &["fit", "half"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("cut short"), "{told}");
}

#[test]
fn a_model_is_served_by_its_name_in_the_library() {
    let models = models();
    let flags = ["--models", models.path().to_str().unwrap()];
    let server = Server::of(Path::new("owner/tiny"), &flags);
    let (_, listed) = server.ask("GET", "/v1/models", "");
    assert_eq!(listed["data"][0]["id"], "owner/tiny");
}
