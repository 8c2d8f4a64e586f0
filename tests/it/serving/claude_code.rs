//! What Claude Code sends, turn by turn: the prompt that its requests share is read once.

use serde_json::{Value, json};
use slipstream_tests::server::Server;

use super::dialects::told_by;

fn number(told: &Value, name: &str) -> u64 {
    told[name].as_u64().unwrap_or_else(|| panic!("{name} of {told}"))
}

#[test]
fn requests_that_differ_in_the_line_about_accounting_share_all_of_their_prompt() {
    let told = told_by("claude_code.py", &Server::start(&[]));
    for (name, told) in ["first", "again", "later", "other"].map(|name| (name, &told[name])) {
        let counts = ["input", "cached", "created"].map(|name| number(told, name));
        assert_eq!(counts.iter().sum::<u64>(), number(told, "counted"), "{name}: {told}");
    }
    let whole = number(&told["first"], "counted");
    assert!(whole > 1000 && number(&told["first"], "cached") < 30, "{told}");
    assert_eq!(number(&told["again"], "cached"), whole - 1, "{told}");
    // What the answer is to be begun with is no part of the next turn's prompt.
    assert!(number(&told["later"], "cached") + 8 > whole, "{told}");
    assert!(number(&told["other"], "input") < 30, "{told}");
    let [first, again] = [&told["translated"][0], &told["translated"][1]];
    assert_eq!(number(again, "cached"), number(first, "input") - 1, "{told}");
}

#[test]
fn a_line_that_is_to_be_kept_makes_every_prompt_new() {
    let server = Server::start(&["--keep-billing-line"]);
    let usage = |cch: &str| {
        let line = format!("x-anthropic-billing-header: cc_version=2.1.37; cch={cch};\n");
        let system = line + &"Answer at once, and in one word. ".repeat(40);
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body =
            json!({"model": "claude", "max_tokens": 2, "system": system, "messages": messages});
        server.ask("POST", "/v1/messages", &body.to_string()).1["usage"].clone()
    };
    let [first, again] = ["0aa41", "f31bc"].map(usage);
    assert!(number(&first, "input_tokens") > 300, "{first}");
    assert!(number(&again, "cache_read_input_tokens") < 60, "{again}");
}
