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

/// Tools and a choice in the words of each dialect.
fn forced(path: &str, choice: &str) -> Value {
    let schema = json!({"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    }, "required": ["city", "days"], "additionalProperties": false});
    let tool = |name: &str| match path {
        CHAT => json!({"type": "function", "function": {"name": name, "parameters": schema}}),
        "/v1/responses" => json!({"type": "function", "name": name, "parameters": schema}),
        _ => json!({"name": name, "input_schema": schema}),
    };
    let choice = match (path, choice) {
        ("/v1/messages", "required") => json!({"type": "any"}),
        ("/v1/messages", name) => json!({"type": "tool", "name": name}),
        (_, "required") => json!("required"),
        (CHAT, name) => json!({"type": "function", "function": {"name": name}}),
        (_, name) => json!({"type": "function", "name": name}),
    };
    let content = "What is the weather in Paris for the next two days?";
    let mut body = json!({"tools": [tool("weather"), tool("clock")], "tool_choice": choice});
    let message = json!([{"role": "user", "content": content}]);
    match path {
        "/v1/responses" => body["input"] = json!(content),
        _ => body["messages"] = message,
    }
    match path {
        "/v1/messages" => {
            body["model"] = json!("default");
            body["tool_choice"]["disable_parallel_tool_use"] = json!(true);
        }
        _ => body["parallel_tool_calls"] = json!(false),
    }
    body[if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" }] = json!(120);
    body
}

/// The name and the arguments of the one call of an answer.
#[track_caller]
fn only_call(path: &str, answer: &Value) -> (String, Value) {
    let text = |value: &Value| serde_json::from_str(value.as_str().unwrap()).unwrap();
    let calls: Vec<(&Value, Value)> = match path {
        CHAT => {
            let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
            let calls = calls.into_iter().flatten().map(|call| &call["function"]);
            calls.map(|call| (&call["name"], text(&call["arguments"]))).collect()
        }
        "/v1/responses" => {
            let items = answer["output"].as_array().unwrap().iter();
            let calls = items.filter(|item| item["type"] == "function_call");
            calls.map(|call| (&call["name"], text(&call["arguments"]))).collect()
        }
        _ => {
            let blocks = answer["content"].as_array().unwrap().iter();
            let calls = blocks.filter(|block| block["type"] == "tool_use");
            calls.map(|call| (&call["name"], call["input"].clone())).collect()
        }
    };
    let [(name, arguments)] = calls.as_slice() else { panic!("{answer}") };
    (name.as_str().unwrap().to_owned(), arguments.clone())
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn calls_that_must_be_made_are_made_in_every_dialect() {
    let server = Server::start(&[]);
    let paths = [CHAT, "/v1/responses", "/v1/messages"];
    let asks: Vec<(&str, &str)> = paths
        .into_iter()
        .flat_map(|path| ["required", "clock"].map(|choice| (path, choice)))
        .collect();
    let answers: Vec<(u16, Value)> = std::thread::scope(|scope| {
        let asked: Vec<_> = asks
            .iter()
            .map(|(path, choice)| {
                let body = forced(path, choice).to_string();
                let server = &server;
                scope.spawn(move || server.ask("POST", path, &body))
            })
            .collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    for ((path, choice), (status, answer)) in asks.iter().zip(&answers) {
        assert_eq!(*status, 200, "{path} {choice}: {answer}");
        let (name, arguments) = only_call(path, answer);
        assert!(["weather", "clock"].contains(&name.as_str()), "{answer}");
        assert!(*choice == "required" || name == "clock", "{path}: {answer}");
        assert!(arguments["city"].as_str().unwrap().chars().count() <= 12, "{answer}");
        assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{answer}");
        assert_eq!(arguments.as_object().unwrap().len(), 2, "{answer}");
    }
}

#[test]
fn plain_rows_beside_constrained_ones_keep_their_tokens_and_every_bit_of_their_log_probabilities() {
    // In half types a row's bits depend on no batch's width, so what differs would be the grammars' doing.
    let server = Server::start(&["--dtype", "bf16", "--prefill-chunk", "64"]);
    let plain = |content: &str| {
        let more = json!({"temperature": 0, "logprobs": true, "top_logprobs": 3, "max_tokens": 16});
        chat(content, &more)
    };
    let stories = ["Tell me a story.", "Name three colours."].map(plain);
    let told = |answer: &(u16, Value)| {
        assert_eq!(answer.0, 200, "{answer:?}");
        let choice = &answer.1["choices"][0];
        (choice["message"]["content"].clone(), choice["logprobs"].clone())
    };
    let alone = stories.each_ref().map(|body| told(&server.ask("POST", CHAT, body)));
    let constrained = [
        json!({"response_format": {"type": "json_object"}, "max_tokens": 16}),
        json!({"guided_regex": "(red|blue)( [a-z]{2,8}){3}"}),
        json!({"guided_grammar": "start: \"<\" WORD (\",\" WORD)* \">\"\nWORD: /[a-z]{1,6}/\n"}),
        json!({"guided_grammar": "root ::= [0-9] (\", \" [0-9]){2,4}"}),
        json!({"guided_choice": ["yes", "no", "it depends"]}),
    ];
    let constrained = constrained.map(|more| chat("Go on.", &more));
    let together: Vec<(u16, Value)> = std::thread::scope(|scope| {
        let bodies = stories.iter().chain(&constrained);
        let server = &server;
        let asked: Vec<_> =
            bodies.map(|body| scope.spawn(move || server.ask("POST", CHAT, body))).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    assert_eq!(together[..2].iter().map(told).collect::<Vec<_>>(), alone);
    for answer in &together[2..] {
        assert_eq!(answer.0, 200, "{answer:?}");
        let lanes = &answer.1["timings"]["lane"];
        assert_eq!(*lanes, json!("continuous"), "{answer:?}");
    }
    let said = |index: usize| told(&together[index]).0.as_str().unwrap().to_owned();
    assert!(said(2).starts_with('{'));
    assert_eq!(said(3).split(' ').count(), 4);
    assert!(said(4).starts_with('<') && ["yes", "no", "it depends"].contains(&said(6).as_str()));
    assert!((3..=5).contains(&said(5).split(", ").count()));
}
