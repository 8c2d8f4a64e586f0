//! Where prompts end alike: boundaries of rows, and what answers say of kept prompts.

use serde_json::{Value, json};

use super::*;
use crate::gateway::ModelCard;
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
    let scheduler = SchedulerConfig { prompt_cache_bytes: 1 << 20, ..SchedulerConfig::default() };
    let rows = ScriptedRows::new(|_| says("hello"));
    let server = Server::start_scheduling(rows, ServeConfig::default(), scheduler).await;
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

/// The prompts of what Claude Code sends in each dialect, which differ in their first line alone.
async fn prompts_of_two_lines(keeps_billing_line: bool) -> Vec<String> {
    let tokenizer = script::tokenizer();
    let card = ModelCard { keeps_billing_line, ..script::card() };
    let rows = ScriptedRows::new(|_| says("hello"));
    let (scheduler, clock) = (SchedulerConfig::default(), Clock::monotonic());
    let engine = Engine::new(card, tokenizer.clone(), rows.clone(), scheduler, clock);
    let server = Server::start_engine(rows, engine, ServeConfig::default()).await;
    let user = json!({"role": "user", "content": "about bees"});
    for cch in ["0aa41", "f31bc"] {
        let line = format!("x-anthropic-billing-header: cc_version=2.1.37.{cch}; cch={cch};");
        let texts = [line.as_str(), "Be brief."].map(|text| json!({"type": "text", "text": text}));
        let whole = format!("{line}\n\nBe brief.");
        for (path, body) in [
            (
                MESSAGES,
                json!({"model": "claude", "max_tokens": 5, "system": texts, "messages": [user]}),
            ),
            (
                MESSAGES,
                json!({"model": "claude", "max_tokens": 5, "system": whole, "messages": [user]}),
            ),
            (CHAT, json!({"messages": [{"role": "system", "content": whole}, user]})),
            (CHAT, json!({"messages": [{"role": "system", "content": texts}, user]})),
            (RESPONSES, json!({"instructions": whole, "input": [user]})),
        ] {
            let answer = server.client.post(path, &body).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    server.rows.specs().iter().map(|spec| text(&tokenizer, &spec.prompt)).collect()
}

#[tokio::test]
async fn a_line_about_accounting_is_no_part_of_a_prompt_unless_it_is_to_be_kept() {
    let clean = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nabout bees<|im_end|>\n\
                 <|im_start|>assistant\n";
    assert_eq!(prompts_of_two_lines(false).await, [clean; 10]);
    let kept = prompts_of_two_lines(true).await;
    assert!(kept[..5].iter().all(|prompt| prompt.contains("cch=0aa41")), "{kept:?}");
}
