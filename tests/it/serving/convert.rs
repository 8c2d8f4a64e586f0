//! `slipstream convert` as a process: what it makes is served, and what becomes of it when it ends too early.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use slipstream_tests::demo;
use slipstream_tests::server::{self, Server};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("model")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(demo::binary());
        command.arg("convert").arg(demo::model_directory()).arg("--out").arg(self.out());
        command.args(["--bits", "8"]);
        command
    }

    /// A conversion that has begun to write.
    fn begun(&self) -> Child {
        let mut child =
            self.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while !self.partial().join("model.safetensors").exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
            // Leaves the processor to it; nothing depends on the length.
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    fn partial(&self) -> PathBuf {
        self.0.path().join("model.partial")
    }

    fn left(&self) -> usize {
        fs::read_dir(self.0.path()).unwrap().count()
    }
}

#[test]
fn a_converted_model_is_served() {
    let place = Place::new();
    let output = server::run(&mut place.command());
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(told.contains("llama, 211 matrices in 8 bits"), "{told}");
    let server = Server::of(&place.out(), &[]);
    let question = json!({
        "messages": [{ "role": "user", "content": "What is the capital of France?" }],
        "max_tokens": 12, "temperature": 0,
    });
    let (status, answer) = server.ask("POST", "/v1/chat/completions", &question.to_string());
    assert_eq!(status, 200, "{answer}");
    let said = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(said.contains("Paris"), "{said}");
}

#[test]
fn a_conversion_that_is_interrupted_leaves_nothing() {
    for name in ["-INT", "-TERM"] {
        let place = Place::new();
        let child = place.begun();
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("was stopped"), "{told}");
        assert_eq!(place.left(), 0);
    }
}

#[test]
fn what_a_killed_conversion_leaves_is_cleared_by_the_next_one() {
    let place = Place::new();
    let mut child = place.begun();
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(place.partial().is_dir() && !place.out().exists());
    let output = server::run(&mut place.command());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(place.out().join("config.json").is_file());
    assert_eq!(place.left(), 1);
}

#[test]
fn what_cannot_be_converted_is_refused_in_one_line() {
    let place = Place::new();
    let check = |source: &Path, flags: &[&str], word: &str| {
        let mut command = Command::new(demo::binary());
        command.arg("convert").arg(source).arg("--out").arg(place.out()).args(flags);
        let output = server::run(&mut command);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.contains(word), "{told}");
    };
    let model = demo::model_directory();
    check(Path::new("/no/such/model"), &["--bits", "4"], "/no/such/model");
    check(&model, &["--bits", "3"], "3 bits");
    check(&model, &["--bits", "4", "--group-size", "48"], "groups of 48");
    fs::create_dir(place.out()).unwrap();
    check(&model, &["--bits", "4"], "exists");
}
