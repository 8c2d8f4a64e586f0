//! Answers of the demo model that must have a form, side by side with one that need not.

use std::io::Read;

use serde_json::{Value, json};
use slipstream_tests::server::Server;

fn chat(content: &str, more: &Value) -> String {
    let mut body = json!({
        "messages": [{"role": "user", "content": content}], "max_tokens": 120, "temperature": 0.8, "seed": 7,
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string()
}

fn person() -> Value {
    json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["old", "new", "red"]}, "maxItems": 3},
    }, "required": ["name", "age", "tags"], "additionalProperties": false})
}

/// The visible text of a stream.
fn told(stream: &str) -> (String, String) {
    let (mut text, mut reason) = (String::new(), String::new());
    for frame in stream.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{frame}")).unwrap();
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    (text, reason)
}

#[test]
fn structured_answers_share_a_batch_and_each_has_its_form_streamed_or_whole() {
    let server = Server::start(&[]);
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person()}});
    let asks = [
        ("Describe Ada as JSON.", json!({"response_format": format})),
        ("Is the sky blue?", json!({"guided_choice": ["yes", "no", "it depends"]})),
        (
            "Give me a date.",
            json!({"structured_outputs": {"regex": "[0-9]{4}-[01][0-9]-[0-3][0-9]"}}),
        ),
        ("Count.", json!({"guided_grammar": "root ::= [0-9] (\", \" [0-9]){2,4}"})),
        ("Tell me a story.", json!({})),
    ];
    let bodies = |stream: bool| {
        asks.each_ref().map(|(content, more)| {
            let mut more = more.clone();
            more["stream"] = json!(stream);
            chat(content, &more)
        })
    };
    let streams = bodies(true).map(|body| server.send("POST", "/v1/chat/completions", &body));
    let streamed = streams.map(|mut stream| {
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        told(&heard)
    });
    let [schema, choice, date, count, story] = &streamed;
    assert_eq!(
        [schema, choice, date, count].map(|(_, reason)| reason.as_str()),
        ["stop"; 4],
        "{streamed:?}"
    );
    let value: Value = serde_json::from_str(&schema.0).unwrap();
    assert!(jsonschema::is_valid(&person(), &value), "{value}");
    assert!(["yes", "no", "it depends"].contains(&choice.0.as_str()), "{choice:?}");
    assert!(date.0.len() == 10 && date.0.matches('-').count() == 2, "{date:?}");
    assert!((3..=5).contains(&count.0.split(", ").count()), "{count:?}");
    assert!(!story.0.is_empty());
    for (body, (text, reason)) in bodies(false).iter().zip(&streamed) {
        let (status, answer) = server.ask("POST", "/v1/chat/completions", body);
        let choice = &answer["choices"][0];
        assert_eq!((status, &choice["message"]["content"]), (200, &json!(text)), "{answer}");
        assert_eq!(choice["finish_reason"], json!(reason));
    }
}
