//! The real binary, killed and started again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slipstream_tests::demo;
use slipstream_tests::hub::Fault;
use slipstream_tests::random::Random;
use slipstream_tests::server;

use super::{Scene, model, repo};

/// Points at which it is killed.
const KILLS: usize = 10;

fn get(scene: &Scene) -> Command {
    let mut command = Command::new(demo::binary());
    command.args(["get", "owner/name", "--jobs", "2", "--models"]).arg(scene.folder.path());
    command
        .env("HF_ENDPOINT", scene.hub.endpoint())
        .env_remove("HF_HUB_OFFLINE")
        .env("HF_TOKEN", "hf_none");
    command
}

fn start(scene: &Scene) -> Child {
    let child =
        get(scene).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.unwrap()
}

/// Bytes that lie in partial files below `folder`.
fn partial_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |path: PathBuf| match path.extension() {
        Some(extension) if extension == "partial" => {
            fs::metadata(path).map_or(0, |metadata| metadata.len())
        }
        _ => 0,
    };
    entries.map(|entry| bytes(entry.path())).sum()
}

/// Waits until the partial files have so many bytes, or the child has ended.
fn wait_for(scene: &Scene, child: &mut Child, bytes: u64) {
    let staging = scene.places().staging(&repo());
    while partial_bytes(&staging) < bytes && child.try_wait().unwrap().is_none() {
        // Leaves the processor to the child; nothing depends on the length.
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn whenever_it_is_killed_it_goes_on_and_is_never_ready_before_it_is_whole() {
    let files = model(17, 3_000_000);
    let scene = Scene::new(files.clone());
    let mut random = Random::new(17);
    let mut fetched_bytes = 0;
    for kill in 0..KILLS {
        // Two files are fetched at once, and the hub stops in the middle of both.
        let mut hold = || Fault::Hold { after_bytes: random.size(50_000, 250_000) };
        scene.hub.script().faults = vec![hold(), hold()];
        let mut child = start(&scene);
        let more_bytes = random.between(1, 100_000);
        wait_for(&scene, &mut child, fetched_bytes + more_bytes);
        child.kill().unwrap();
        child.wait().unwrap();
        scene.check_absent();
        let there_bytes = partial_bytes(&scene.places().staging(&repo()));
        assert!(
            there_bytes >= fetched_bytes + more_bytes,
            "kill {kill}: {there_bytes} after {fetched_bytes}"
        );
        fetched_bytes = there_bytes;
    }
    scene.hub.script().faults.clear();
    let before_bytes = scene.hub.file_bytes();
    let output = server::run(&mut get(&scene));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.starts_with("fetched owner/name at 0123456, "), "{told}");
    scene.check_in_place(&files);
    let all_bytes: usize = super::expected(&files).values().map(Vec::len).sum();
    assert_eq!(scene.hub.file_bytes() - before_bytes, all_bytes as u64 - fetched_bytes);
}

#[test]
fn an_interrupt_says_what_is_kept_and_a_second_process_who_fetches() {
    let files = model(17, 200_000);
    let scene = Scene::new(files.clone());
    scene.hub.script().faults =
        vec![Fault::Hold { after_bytes: 9_000 }, Fault::Hold { after_bytes: 9_000 }];
    let mut child = start(&scene);
    wait_for(&scene, &mut child, 18_000);
    let second = server::run(&mut get(&scene));
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(2), "{told}");
    assert!(told.contains(&format!("is being fetched by process {}", child.id())), "{told}");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("interrupted: 18.0 kB of 325.0 kB of `owner/name` are kept"), "{told}");
    assert!(!told.contains("hf_none"), "{told}");
    scene.check_absent();
    assert_eq!(server::run(&mut get(&scene)).status.code(), Some(0));
    scene.check_in_place(&files);
}

#[test]
fn flags_that_mean_nothing_are_refused_before_anything_is_asked() {
    for (flags, words) in [
        (&["get", "../x"][..], "is no repository"),
        (&["get", "a/b", "--revision", "../x"], "is no revision"),
        (&["get", "a/b", "--limit", "fast"], "bytes per second"),
        (&["get", "a/b", "--limit", "0"], "bytes per second"),
        (&["get", "a/b", "--jobs", "0"], "a number from 1 to"),
        (&["search", "--sort", "size"], "are not sorted by"),
        (&["search", "--limit", "0"], "a number from 1 to"),
    ] {
        let output = server::run(Command::new(demo::binary()).args(flags));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(words), "{flags:?}: {told}");
    }
}

#[test]
fn a_token_is_kept_for_its_user_alone_and_forgotten() {
    if cfg!(target_os = "macos") {
        // The keychain of whoever runs the tests is left alone.
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let token = |verb: &str, input: &str| {
        let mut command = Command::new(demo::binary());
        command
            .args(["token", verb])
            .env_clear()
            .env("HOME", home.path())
            .env("XDG_CONFIG_HOME", home.path());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(told).unwrap())
    };
    assert_eq!(token("status", ""), (Some(0), "there is no token\n".to_owned()));
    assert_eq!(token("set", "two words\n").0, Some(2));
    assert_eq!(
        token("set", "hf_secret\n"),
        (Some(0), "the token is kept in Slipstream's own file\n".to_owned())
    );
    assert_eq!(fs::read_to_string(home.path().join("slipstream/hub-token")).unwrap(), "hf_secret");
    assert_eq!(
        token("status", ""),
        (Some(0), "the token comes from Slipstream's own file\n".to_owned())
    );
    assert_eq!(token("rm", ""), (Some(0), "the token is forgotten\n".to_owned()));
    assert_eq!(token("rm", ""), (Some(0), "no token was kept\n".to_owned()));
}
