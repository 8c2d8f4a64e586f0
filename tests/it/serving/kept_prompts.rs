//! Prompts that are kept between requests, as clients see them.

use serde_json::{Value, json};
use slipstream_tests::server::Server;

const CHAT: &str = "/v1/chat/completions";

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
    assert_eq!(miss["token_index"], cached);
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
