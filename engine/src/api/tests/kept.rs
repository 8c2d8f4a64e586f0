//! Where prompts end alike: boundaries of rows, and what answers say of kept prompts.

use serde_json::{Value, json};

use super::*;
use crate::gateway::script::says;
use crate::tokenizer::Tokenizer;

/// A system part, said so often that it is worth keeping.
fn system() -> String {
    "You are one of many agents, and all of you were told this. ".repeat(6)
}

fn text(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    tokenizer.decode_spelled(tokens).unwrap()
}

/// The prompt's texts up to each boundary.
async fn parts(path: &str, body: &Value) -> Vec<String> {
    let server = Server::start(ScriptedRows::new(|_| says("hello"))).await;
    let answer = server.client.post(path, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let spec = server.rows.specs().remove(0);
    let tokenizer = script::tokenizer();
    spec.boundaries.iter().map(|end| text(&tokenizer, &spec.prompt[..*end])).collect()
}

#[tokio::test]
async fn a_prompt_is_cut_where_its_system_part_and_its_last_turn_end() {
    let system = system();
    let part = format!("<|im_start|>system\n{system}<|im_end|>\n");
    let turns = format!("{part}<|im_start|>user\nabout bees<|im_end|>\n");
    let body = json!({"messages": [
        {"role": "system", "content": system}, {"role": "user", "content": "about bees"},
    ], "max_tokens": 5});
    let cut = parts(CHAT, &body).await;
    // What every first turn begins with is the system part's too.
    assert_eq!(cut, [format!("{part}<|im_start|>user\n"), turns]);
    let body = json!({
        "model": "claude", "max_tokens": 5, "system": system,
        "messages": [{"role": "user", "content": "about bees"}],
    });
    assert_eq!(parts(MESSAGES, &body).await, cut);
}

#[tokio::test]
async fn later_turns_have_the_same_system_part_and_begin_with_all_of_the_earlier_prompt() {
    let system = system();
    let body = |turns: &[(&str, &str)]| {
        let system = std::iter::once(json!({"role": "system", "content": system}));
        let turns = turns.iter().map(|(role, content)| json!({"role": role, "content": content}));
        json!({"messages": system.chain(turns).collect::<Vec<Value>>(), "max_tokens": 5})
    };
    let first = parts(CHAT, &body(&[("user", "a")])).await;
    let later = [("user", "a"), ("assistant", "hello"), ("user", "b")];
    let later = parts(CHAT, &body(&later)).await;
    assert_eq!(first[0], later[0]);
    assert!(later[1].starts_with(&first[1]), "{later:?}");
}

#[tokio::test]
async fn a_prompt_without_a_system_part_or_too_short_to_be_kept_is_not_cut_for_it() {
    let long = json!({"messages": [{"role": "user", "content": system()}], "max_tokens": 5});
    assert_eq!(parts(CHAT, &long).await.len(), 1, "its last turn ends");
    let short = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5});
    assert!(parts(CHAT, &short).await.is_empty());
}
