//! Answers that must have a form.

use serde_json::{Value, json};

use super::*;
use crate::gateway::script::says;

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
