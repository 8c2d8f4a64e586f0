//! Prompts that are kept between requests and between servers, as clients see them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slipstream_tests::server::{Server, run, serve};

use super::embeddings;

const CHAT: &str = "/v1/chat/completions";
const CACHE: &str = "/v1/cache";

fn system() -> String {
    "You are one of many agents that were all told the same long story. ".repeat(30)
}

fn body(turns: &[(&str, &str)]) -> Value {
    let turns = turns.iter().map(|(role, content)| json!({"role": role, "content": content}));
    let system = std::iter::once(json!({"role": "system", "content": system()}));
    json!({"messages": system.chain(turns).collect::<Vec<_>>(), "max_tokens": 8})
}

fn ask(server: &Server, body: &Value) -> Value {
    let (status, answer) = server.ask("POST", CHAT, &body.to_string());
    assert_eq!(status, 200, "{answer}");
    answer
}

fn said(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// Tokens of the prompt, and how many of them a cache had.
fn counts(answer: &Value) -> (u64, u64) {
    let usage = &answer["usage"];
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    (usage["prompt_tokens"].as_u64().unwrap(), cached.as_u64().unwrap())
}

#[test]
fn agents_with_one_system_prompt_and_later_turns_read_only_what_is_new() {
    let server = Server::start(&[]);
    let first = ask(&server, &body(&[("user", "Who are you?")]));
    let (first_tokens, cached) = counts(&first);
    assert_eq!(cached, 0, "{first}");
    let again = ask(&server, &body(&[("user", "Who are you?")]));
    assert_eq!(counts(&again), (first_tokens, first_tokens - 1), "{again}");
    assert_eq!(said(&again), said(&first));
    let other = ask(&server, &body(&[("user", "What is the sky?")]));
    let (other_tokens, cached) = counts(&other);
    assert!(other_tokens - cached < 30, "{cached} of {other_tokens}");
    let miss = &other["timings"]["cache_miss"];
    assert!(miss["prompt"].as_str().unwrap().starts_with("What"), "{miss}");
    assert!(miss["kept"].as_str().unwrap().starts_with("Who"), "{miss}");
    assert!(miss["before"].as_str().unwrap().ends_with("user\n"), "{miss}");
    assert_eq!((&miss["token_index"], &miss["reason"]), (&json!(cached), &json!("differs")));
    let turns = [("user", "Who are you?"), ("assistant", said(&first)), ("user", "Go on.")];
    let (next_tokens, cached) = counts(&ask(&server, &body(&turns)));
    assert!(cached >= first_tokens - 1, "{cached} of {next_tokens}");
    let stats = server.stats_when(|stats| stats["prompt_cache"]["hits"] == 3);
    assert_eq!(stats["prompt_cache"]["misses"], 1);
    assert!(stats["prompt_cache"]["bytes"].as_u64() <= stats["prompt_cache"]["cap_bytes"].as_u64());
}

#[test]
fn a_server_that_keeps_no_prompts_reads_each_one() {
    let server = Server::start(&["--prompt-cache", "off"]);
    let [first, again] = [(); 2].map(|()| ask(&server, &body(&[("user", "Who are you?")])));
    assert_eq!((counts(&first).1, counts(&again).1), (0, 0));
    assert_eq!(said(&again), said(&first));
    let stats = server.stats_when(|stats| stats["batch"]["active_rows"] == 0);
    assert_eq!(stats["prompt_cache"]["entries"], 0);
}

/// The listed prompt whose last words end so.
fn listed(server: &Server, last_words: &str) -> Option<Value> {
    let (status, body) = server.ask("GET", CACHE, "");
    assert_eq!((status, &body["object"]), (200, &json!("list")), "{body}");
    let ends_so = |prompt: &&Value| prompt["last_words"].as_str().unwrap().ends_with(last_words);
    body["data"].as_array().unwrap().iter().find(ends_so).cloned()
}

fn path_of(prompt: &Value) -> String {
    format!("{CACHE}/{}", prompt["id"].as_str().unwrap())
}

#[test]
fn conversations_are_listed_pinned_deleted_flushed_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--ssd-cache", folder.path().to_str().unwrap()];
    let server = Server::start(&flags);
    let conversations =
        ["Tell me of bees.", "Tell me of ants."].map(|text| body(&[("user", text)]));
    let answers = conversations.each_ref().map(|body| ask(&server, body));
    let [bees, ants] = answers.each_ref().map(|answer| {
        // The last token that was said was never fed.
        let words: Vec<&str> = said(answer).split_whitespace().collect();
        let words = words[..words.len() - 1].join(" ");
        listed(&server, &words)
            .unwrap_or_else(|| panic!("{words}: {}", server.ask("GET", CACHE, "").1))
    });
    assert_ne!(bees["id"], ants["id"]);
    assert_eq!(bees["first_words"], ants["first_words"]);
    assert!(bees["first_words"].as_str().unwrap().contains("You are one of many agents"), "{bees}");
    assert_eq!((&bees["tiers"], &bees["pinned"]), (&json!(["memory"]), &json!(false)));
    let pinned = server.ask("POST", &path_of(&bees), &json!({"pinned": true}).to_string());
    assert_eq!((pinned.0, &pinned.1["pinned"]), (200, &json!(true)), "{pinned:?}");
    let flushed = server.ask("POST", "/v1/cache/flush", "");
    assert_eq!((flushed.0, &flushed.1["complete"]), (200, &json!(true)), "{flushed:?}");
    assert_eq!(flushed.1["unsaved"], 0);
    assert!(flushed.1["saved"].as_u64() >= Some(2), "{flushed:?}");
    drop(server);

    let server = Server::start(&flags);
    let find = |prompt: &Value| {
        let (_, body) = server.ask("GET", CACHE, "");
        let found =
            body["data"].as_array().unwrap().iter().find(|other| other["id"] == prompt["id"]);
        found.cloned()
    };
    let stored = find(&bees).expect("a process that was killed has lost nothing");
    for name in ["tokens", "origin", "first_words", "last_words"] {
        assert_eq!(stored[name], bees[name], "{stored}");
    }
    assert_eq!((&stored["tiers"], &stored["pinned"]), (&json!(["disk"]), &json!(true)));
    assert_eq!(find(&ants).map(|ants| ants["pinned"].clone()), Some(json!(false)));
    let cleared = server.ask("DELETE", CACHE, "").1;
    assert_eq!((&cleared["kept_pinned"], &cleared["deleted_pinned"]), (&json!(1), &json!(0)));
    assert!(find(&ants).is_none() && find(&bees).is_some());
    let (prompt_tokens, cached) = counts(&ask(&server, &conversations[0]));
    assert_eq!(cached, prompt_tokens - 1);
    assert_eq!(find(&bees).unwrap()["tiers"], json!(["memory", "disk"]));
    let deleted = server.ask("DELETE", &path_of(&bees), "");
    assert_eq!((deleted.0, &deleted.1["deleted"]), (200, &json!(true)));
    assert_eq!(server.ask("DELETE", &path_of(&bees), "").0, 404);
    assert_eq!(server.ask("DELETE", "/v1/cache?pinned=true", "").0, 200);
    let again = ask(&server, &conversations[0]);
    assert_eq!(counts(&again).1, 0, "it is read anew");
    assert_eq!(said(&again), said(&answers[0]));
}

#[test]
fn servers_that_keep_no_prompts_list_none_and_say_so() {
    let vectors = embeddings::model(&json!({}));
    let off = Server::start(&["--prompt-cache", "off"]);
    for server in [off, Server::of(vectors.path(), &[])] {
        let (status, body) = server.ask("GET", CACHE, "");
        let told = (&body["data"], &body["prompt_cache"]["cap_bytes"], &body["disk_cache"]);
        assert_eq!((status, told), (200, (&json!([]), &json!(0), &Value::Null)));
        let (status, body) = server.ask("POST", "/v1/cache/flush", "");
        assert_eq!((status, &body["error"]["code"]), (400, &json!("unsupported")), "{body}");
        let one = format!("{CACHE}/0123456789abcdef");
        for (method, body) in
            [("POST", json!({"pinned": true}).to_string()), ("DELETE", String::new())]
        {
            let (status, body) = server.ask(method, &one, &body);
            let message = body["error"]["message"].as_str().unwrap();
            assert!(status == 404 && message.ends_with("keeps none"), "{body}");
        }
        assert_eq!(server.ask("DELETE", CACHE, "").1["deleted"], 0);
    }
}

/// What an agent's tools answer it in turn `number`.
fn result(number: usize) -> String {
    let lines = (1..6).map(|line| format!("src/part_{number}.rs:{line}: found {}", number * line));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_of_an_agents_thirty_turns_reads_only_what_is_new_however_soon_it_comes() {
    let server = Server::start(&[]);
    let mut turns = vec![("user".to_owned(), "Find what is broken.".to_owned())];
    let mut before = 0;
    for number in 0..30 {
        let shown: Vec<(&str, &str)> =
            turns.iter().map(|(role, content)| (role.as_str(), content.as_str())).collect();
        let answer = ask(&server, &body(&shown));
        let (tokens, cached) = counts(&answer);
        assert!(tokens > before, "turn {number}");
        assert!(cached + 1 >= before, "turn {number}: {cached} of {before} that were read");
        before = tokens;
        turns.push(("assistant".to_owned(), said(&answer).to_owned()));
        turns.push(("user".to_owned(), result(number)));
    }
    assert!(before > 1_500, "{before}");
}

/// A server that keeps its prompts in `folder` too.
fn on_disk(folder: &Path) -> Server {
    Server::start(&["--ssd-cache", folder.to_str().unwrap()])
}

fn entry_files(folder: &Path) -> Vec<PathBuf> {
    let inside = |folder: &Path| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let identities = inside(folder).filter(|path| path.is_dir());
    identities.flat_map(|identity| inside(&identity).collect::<Vec<_>>()).collect()
}

#[test]
fn a_conversation_goes_on_where_its_server_was_stopped_or_killed() {
    let folder = tempfile::tempdir().unwrap();
    let server = on_disk(folder.path());
    let first = ask(&server, &body(&[("user", "Who are you?")]));
    let (first_tokens, _) = counts(&first);
    assert_eq!(server.terminate(), Some(0));

    let server = on_disk(folder.path());
    let mut turns = vec![("user", "Who are you?"), ("assistant", said(&first)), ("user", "Go on.")];
    let second = ask(&server, &body(&turns));
    let (second_tokens, cached) = counts(&second);
    assert!(cached + 1 >= first_tokens, "{cached} of {first_tokens}");
    assert_eq!(
        server.stats_when(|stats| stats["batch"]["active_rows"] == 0)["disk_cache"]["restored"],
        1
    );
    // It writes by itself once nobody has asked for a while.
    server.stats_when(|stats| {
        stats["disk_cache"]["saved"] == 1 && stats["disk_cache"]["queued_bytes"] == 0
    });
    drop(server);

    let server = on_disk(folder.path());
    turns.extend([("assistant", said(&second)), ("user", "And then?")]);
    let (_, cached) = counts(&ask(&server, &body(&turns)));
    assert!(cached + 1 >= second_tokens, "{cached} of {second_tokens}");
}

#[test]
fn a_file_that_is_not_what_was_written_is_dropped_and_the_prompt_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let server = on_disk(folder.path());
    let first = ask(&server, &body(&[("user", "Who are you?")]));
    assert_eq!(server.terminate(), Some(0));
    let files = entry_files(folder.path());
    assert!(!files.is_empty());
    for file in files {
        let mut bytes = fs::read(&file).unwrap();
        let place = bytes.len() / 2;
        bytes[place] ^= 1;
        fs::write(&file, bytes).unwrap();
    }
    let server = on_disk(folder.path());
    let again = ask(&server, &body(&[("user", "Who are you?")]));
    assert_eq!((said(&again), counts(&again).1), (said(&first), 0));
    let stats = server.stats_when(|stats| stats["batch"]["active_rows"] == 0);
    assert_eq!(
        (&stats["disk_cache"]["dropped"], &stats["disk_cache"]["restored"]),
        (&json!(1), &json!(0))
    );
}

#[test]
fn a_folder_for_prompts_is_refused_where_none_are_kept_or_it_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for (flags, named) in [
        (&["--ssd-cache", "x", "--prompt-cache", "off"][..], "`--ssd-cache`"),
        (&["--ssd-cache-max", "5G"], "--ssd-cache"),
        (&["--ssd-cache", "x", "--ssd-cache-max", "much"], "--ssd-cache-max"),
        (&["--ssd-cache", file.to_str().unwrap()], file.to_str().unwrap()),
    ] {
        let ended = run(serve().args(flags).args(["--port", "0"]));
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{flags:?}: {told}");
        assert!(told.contains(named), "{flags:?}: {told}");
    }
}
