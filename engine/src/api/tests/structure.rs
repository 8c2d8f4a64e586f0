//! Answers that must have a form.

use serde_json::{Value, json};

use super::tools::server_saying;
use super::*;
use crate::gateway::script::says;
use crate::grammar::Grammar;
use crate::tokenizer::Tokenizer;

fn chat(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn schema(schema: &Value) -> Value {
    let named = json!({"name": "x", "schema": schema, "strict": true});
    json!({"response_format": {"type": "json_schema", "json_schema": named}})
}

async fn server() -> Server {
    Server::start(ScriptedRows::new(|_| says("{\"a\": 1}"))).await
}

#[tokio::test]
async fn a_row_gets_the_grammar_of_its_request_whichever_field_asks_for_it() {
    let server = server().await;
    let object = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]});
    for (asked, says) in [
        (schema(&object), "{"),
        (json!({"response_format": {"type": "json_object"}}), "{"),
        (json!({"structured_outputs": {"json": object}}), "{"),
        (json!({"guided_regex": "[{]x?"}), "{"),
        (json!({"guided_choice": ["{}", "{ }"]}), "{"),
        (json!({"guided_grammar": "root ::= \"{\" [0-9]+"}), "{"),
        (json!({"guided_grammar": "start: \"{\" /[0-9]+/"}), "{"),
    ] {
        let answer = server.client.post(CHAT, &chat(&asked)).await;
        assert_eq!(answer.status, 200, "{asked}: {answer:?}");
        let spec = server.rows.specs().pop().unwrap();
        let mut matcher = spec.grammar.unwrap_or_else(|| panic!("{asked}")).matcher();
        let allowed: Vec<u32> = matcher.mask().unwrap().unwrap().allowed().collect();
        assert_eq!(script::tokenizer().decode(&allowed).unwrap(), says, "{asked}");
    }
    for free in [json!({}), json!({"response_format": {"type": "text"}})] {
        server.client.post(CHAT, &chat(&free)).await;
        assert!(server.rows.specs().pop().unwrap().grammar.is_none());
    }
    let answer =
        server.client.post(COMPLETIONS, &json!({"prompt": "x", "guided_regex": "a"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(server.rows.specs().pop().unwrap().grammar.is_some());
}

#[tokio::test]
async fn what_cannot_be_held_is_refused_by_field_and_name_and_its_siblings_are_unharmed() {
    let server = server().await;
    let path = "response_format.json_schema.schema";
    for (asked, param, code, words) in [
        (schema(&json!({"not": {}})), path, "unsupported", "`not`"),
        (
            schema(&json!({"type": "array", "uniqueItems": true})),
            path,
            "unsupported",
            "#/uniqueItems",
        ),
        (schema(&json!({"type": "strange"})), path, "invalid_request", "strange"),
        (schema(&json!({"$ref": "#/nowhere"})), path, "invalid_request", "nowhere"),
        (json!({"guided_json": "{"}), "guided_json", "invalid_request", "not JSON"),
        (json!({"guided_regex": "(a"}), "guided_regex", "invalid_request", "regular expression"),
        (json!({"guided_choice": []}), "guided_choice", "invalid_request", "empty"),
        (json!({"guided_grammar": "x"}), "guided_grammar", "invalid_request", "grammar"),
        (json!({"guided_grammar": "root ::= x"}), "guided_grammar", "invalid_request", "`x`"),
        (
            json!({"structured_outputs": {"regex": "["}}),
            "structured_outputs.regex",
            "invalid_request",
            "[",
        ),
    ] {
        let answer = server.client.post(CHAT, &chat(&asked)).await;
        assert_eq!(answer.status, 400, "{asked}: {answer:?}");
        let error = &answer.json()["error"];
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(param), &json!(code)),
            "{asked}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(words), "{asked}: {error}");
    }
    assert!(server.rows.specs().is_empty(), "a refused request has no row");
    assert_eq!(server.client.post(CHAT, &chat(&json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_schema_that_is_not_strict_holds_as_far_as_it_can_and_a_strict_one_is_refused() {
    let server = server().await;
    let (a, b) = (json!({"const": 1, "not": {"type": "null"}}), json!({"$ref": "http://x.y/z"}));
    let schema = json!({
        "type": "object", "properties": {"a": a, "b": b}, "required": ["a"],
        "if": {"required": ["b"]}, "dependentRequired": {"a": ["b"]},
    });
    let chats = |strict: Value| {
        let named = json!({"name": "x", "schema": schema, "strict": strict});
        chat(&json!({"response_format": {"type": "json_schema", "json_schema": named}}))
    };
    let responses = |strict: Value| {
        let format =
            json!({"type": "json_schema", "name": "x", "schema": schema, "strict": strict});
        json!({"input": "hi", "text": {"format": format}})
    };
    for strict in [Value::Null, json!(false)] {
        for (path, body) in [(CHAT, chats(strict.clone())), (RESPONSES, responses(strict.clone()))]
        {
            let answer = server.client.post(path, &body).await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            let mut matcher = server.rows.specs().pop().unwrap().grammar.unwrap().matcher();
            for token in script::tokenizer().encode("{\"a\": ", false).unwrap() {
                matcher.accept(token).unwrap();
            }
            let allowed: Vec<u32> = matcher.mask().unwrap().unwrap().allowed().collect();
            assert_eq!(script::tokenizer().decode(&allowed).unwrap(), "1", "the rest still holds");
        }
    }
    for (path, body) in [(CHAT, chats(json!(true))), (RESPONSES, responses(json!(true)))] {
        let answer = server.client.post(path, &body).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["code"]),
            (400, &json!("unsupported")),
            "{path}: {error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("#/properties/a/not"), "{path}: {message}");
    }
}

/// A call in the form of the scripted model.
fn call(name: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call>")
}

/// How far `grammar` lets a model say `text`: no further than some token, to its end, or to the end of all
/// that may be said.
#[derive(Debug, PartialEq, Eq)]
enum Let {
    Forbidden,
    Open,
    Whole,
}

fn lets(grammar: &Grammar, tokenizer: &Tokenizer, text: &str) -> Let {
    let mut matcher = grammar.matcher();
    for token in tokenizer.encode(text, false).unwrap() {
        match matcher.mask().unwrap() {
            Some(mask) if mask.allows(token) => matcher.accept(token).unwrap(),
            Some(_) | None => return Let::Forbidden,
        }
    }
    if matcher.is_satisfied() { Let::Whole } else { Let::Open }
}

/// Tools and a choice in the words of each dialect.
fn asks(path: &str, choice: &str, parallel: bool) -> Value {
    let empty = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let tool = |name: &str| match path {
        CHAT => json!({"type": "function", "function": {"name": name, "parameters": empty}}),
        RESPONSES => json!({"type": "function", "name": name, "parameters": empty}),
        _ => json!({"name": name, "input_schema": empty}),
    };
    let tools = json!([tool("look"), tool("stop")]);
    let named = !["none", "auto", "required"].contains(&choice);
    let (choice, parallel) = match path {
        MESSAGES => {
            let kind = if named { "tool" } else { choice };
            let mut choice = json!({"type": kind.replace("required", "any")});
            if named {
                choice["name"] = json!("stop");
            }
            if kind != "none" {
                choice["disable_parallel_tool_use"] = json!(!parallel);
            }
            (choice, json!({"max_tokens": 400}))
        }
        CHAT if named => {
            let choice = json!({"type": "function", "function": {"name": choice}});
            (choice, json!({"parallel_tool_calls": parallel}))
        }
        RESPONSES if named => {
            let choice = json!({"type": "function", "name": choice});
            (choice, json!({"parallel_tool_calls": parallel}))
        }
        _ => (json!(choice), json!({"parallel_tool_calls": parallel})),
    };
    merged(merged(whole_body(path), json!({"tools": tools, "tool_choice": choice})), parallel)
}

#[tokio::test]
async fn each_tool_choice_is_enforced_in_each_dialect() {
    let (server, tokenizer) = server_saying("<tool_call>", &[], &call("stop")).await;
    let (look, stop) = (call("look"), call("stop"));
    let both = format!("{look}\n{stop}");
    for path in [CHAT, RESPONSES, MESSAGES] {
        let mut specs = Vec::new();
        for (choice, parallel) in [
            ("none", true),
            ("auto", true),
            ("required", true),
            ("required", false),
            ("stop", true),
        ] {
            let answer = server.client.post(path, &asks(path, choice, parallel)).await;
            assert_eq!(answer.status, 200, "{path} {choice}: {answer:?}");
            let said = answer.json().to_string();
            let called = said.contains("\"tool_calls\":[")
                || said.contains("\"function_call\"")
                || said.contains("\"tool_use\"");
            assert_eq!(called, choice != "none", "{path} {choice}: {said}");
            specs.push(server.rows.specs().pop().unwrap());
        }
        let [none, auto, any, one, named] = <[_; 5]>::try_from(specs).unwrap();
        assert!(none.grammar.is_none() && auto.grammar.is_none(), "{path}");
        let told = |tokens: &[u32]| tokenizer.decode(tokens).unwrap().contains("\"look\"");
        assert!(!told(&none.prompt) && told(&auto.prompt), "{path}");
        let check = |grammar: &Option<Grammar>, expected: [Let; 4]| {
            let grammar = grammar.as_ref().unwrap();
            let seen = [&look, &stop, &both, "I look."].map(|text| lets(grammar, &tokenizer, text));
            assert_eq!(seen, expected, "{path}");
        };
        check(&any.grammar, [Let::Open, Let::Open, Let::Open, Let::Forbidden]);
        check(&one.grammar, [Let::Whole, Let::Whole, Let::Forbidden, Let::Forbidden]);
        check(&named.grammar, [Let::Forbidden, Let::Whole, Let::Forbidden, Let::Forbidden]);
    }
}

#[tokio::test]
async fn reasoning_that_the_template_opened_comes_before_the_constrained_answer() {
    let said = "So {\"b\"} it is.</think>{\"a\": 1}";
    let (server, tokenizer) = server_saying("<think>", &["<think>", "</think>"], said).await;
    let opened = json!({
        "chat_template_kwargs": {"ending": "<think>\n"},
        "response_format": {"type": "json_object"},
    });
    let answer = server.client.post(CHAT, &chat(&opened)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let message = &answer.json()["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], json!("So {\"b\"} it is."));
    assert_eq!(message["content"], json!("{\"a\": 1}"));
    let grammar = server.rows.specs().pop().unwrap().grammar.unwrap();
    assert_eq!(lets(&grammar, &tokenizer, said), Let::Whole);
    assert_eq!(lets(&grammar, &tokenizer, "So {\"b\"} it is."), Let::Open);
    assert_eq!(lets(&grammar, &tokenizer, "So.</think>Well"), Let::Forbidden);
    // Without the template's marker the answer begins at once, or with thoughts that the model opens.
    let plain = json!({"response_format": {"type": "json_object"}});
    server.client.post(CHAT, &chat(&plain)).await;
    let grammar = server.rows.specs().pop().unwrap().grammar.unwrap();
    assert_eq!(lets(&grammar, &tokenizer, "So."), Let::Forbidden);
    assert_eq!(lets(&grammar, &tokenizer, "{\"a\": 1}"), Let::Whole);
    assert_eq!(lets(&grammar, &tokenizer, "<think>So.</think>{}"), Let::Whole);
}
