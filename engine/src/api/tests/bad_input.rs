//! Requests that are refused, each with the status, the field and the words a person needs.

use serde_json::json;

use super::*;
use crate::api::tests::client::Answer;
use crate::gateway::script::{Step, says};
use crate::limits;

async fn server() -> Server {
    Server::start(ScriptedRows::new(|_| says("ok"))).await
}

fn check(answer: &Answer, status: u16, code: &str, param: Option<&str>, words: &str, sent: &str) {
    assert_eq!(answer.status, status, "{sent}: {answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{sent}");
    let body = answer.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("{sent}: {body}"));
    let fields: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(fields, ["message", "type", "param", "code"], "{sent}");
    assert_eq!(
        (error["code"].as_str(), error["param"].as_str()),
        (Some(code), param),
        "{sent}: {body}"
    );
    assert!(error["message"].as_str().unwrap().contains(words), "{sent}: {body}");
}

#[tokio::test]
async fn fields_of_both_apis_are_held_to_their_types_and_ranges() {
    let server = server().await;
    for (field, value, words) in [
        ("temperature", json!("hot"), "must be a number, got the string `hot`"),
        ("temperature", json!(-0.1), "must be between 0 and 2, got -0.1"),
        ("temperature", json!(1e300), "between 0 and 2"),
        ("top_p", json!(1.01), "must be between 0 and 1, got 1.01"),
        ("top_p", json!(-1), "between 0 and 1"),
        ("top_p", json!([1]), "got an array"),
        ("min_p", json!(2), "between 0 and 1"),
        ("top_k", json!(-1), "between 0 and 4294967295, got -1"),
        ("top_k", json!(1.5), "must be an integer, got 1.5"),
        ("seed", json!("7"), "must be an integer"),
        ("seed", json!(0.5), "must be an integer"),
        ("max_tokens", json!(0), "must be at least 1, got 0"),
        ("max_tokens", json!(-5), "at least 1, got -5"),
        ("max_tokens", json!("many"), "must be an integer"),
        ("max_completion_tokens", json!(0), "at least 1"),
        ("n", json!(0), "at least 1"),
        ("n", json!("one"), "must be an integer"),
        ("stream", json!("yes"), "must be a boolean, got the string `yes`"),
        ("stream", json!(1), "must be a boolean"),
        ("stream_options", json!({}), "only allowed when `stream` is true"),
        ("stop", json!(5), "a string or an array of strings, got 5"),
        ("stop", json!(""), "empty string"),
        ("stop", json!(vec!["x"; limits::STOP_STRINGS_MAX + 1]), "17 strings, and 16"),
        ("stop", json!("x".repeat(limits::STOP_STRING_BYTES_MAX + 1)), "1025 bytes"),
        ("frequency_penalty", json!(3), "between -2 and 2"),
        ("presence_penalty", json!("x"), "must be a number"),
        ("presence_penalty", json!(-2.5), "between -2 and 2, got -2.5"),
        ("repetition_penalty", json!(-1), "must be at least 0, got -1"),
        ("repetition_penalty", json!(1e200), "at least 0"),
        ("repetition_context_size", json!(-1), "must be at least 0, got -1"),
        ("presence_context_size", json!(2.5), "must be an integer, got 2.5"),
        ("frequency_context_size", json!("all"), "must be an integer"),
        ("xtc_probability", json!(1.5), "between 0 and 1, got 1.5"),
        ("xtc_threshold", json!(-0.5), "between 0 and 1"),
        ("xtc_threshold", json!(true), "must be a number, got true"),
        ("logit_bias", json!([5, 1]), "must be an object, got an array"),
        ("logit_bias", json!({"five": 1}), "token ids as keys, got `five`"),
        ("logit_bias", json!({"-1": 1}), "token ids as keys, got `-1`"),
        ("logit_bias", json!({"": 1}), "token ids as keys, got ``"),
        (
            "logit_bias",
            json!({"258": 1}),
            "names token 258, and the model's vocabulary ends at 257",
        ),
        ("logit_bias", json!({"4294967295": -100}), "names token 4294967295"),
        ("logit_bias", json!({"0".repeat(70_000): 1}), "token ids as keys"),
        ("top_logprobs", json!(21), "must be between -1 and 20, got 21"),
        ("top_logprobs", json!(true), "must be an integer"),
        ("num_draft_tokens", json!(-1), "at least 0"),
        ("user", json!(7), "must be a string, got 7"),
        ("metadata", json!("x"), "must be an object"),
        ("model", json!(7), "must be a string, got 7"),
    ] {
        for (path, body) in [
            (CHAT, chat("hi", json!({field: value}))),
            (COMPLETIONS, completion("hi", json!({field: value}))),
        ] {
            let answer = server.client.post(path, &body).await;
            check(&answer, 400, "invalid_request", Some(field), words, &body.to_string());
        }
    }
    assert!(server.rows.specs().is_empty());
}

#[tokio::test]
async fn known_fields_that_ask_for_what_we_lack_are_refused_by_name() {
    let server = server().await;
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for (path, field, value) in [
        (CHAT, "n", json!(2)),
        (CHAT, "functions", tool),
        (CHAT, "adapters", json!("lora")),
        (CHAT, "draft_model", json!("small")),
        (CHAT, "role_mapping", json!({"user": "U: "})),
        (CHAT, "guided_whitespace_pattern", json!(" ")),
        (CHAT, "audio", json!({"voice": "x"})),
        (CHAT, "modalities", json!(["text", "audio"])),
        (COMPLETIONS, "n", json!(2)),
        (COMPLETIONS, "best_of", json!(2)),
        (COMPLETIONS, "echo", json!(true)),
        (COMPLETIONS, "suffix", json!("end")),
        (COMPLETIONS, "draft_model", json!("small")),
        (COMPLETIONS, "prompt", json!(["a", "b"])),
        (COMPLETIONS, "prompt", json!([[1], [2]])),
    ] {
        let body = merged(chat("hi", json!({"prompt": "hi"})), json!({field: value}));
        let answer = server.client.post(path, &body).await;
        check(&answer, 400, "unsupported", Some(field), field, &body.to_string());
    }
}

#[tokio::test]
async fn a_field_inside_another_is_named_by_its_path_and_fields_that_differ_by_api_are_told_apart()
{
    let server = server().await;
    for (path, fields, param, words) in [
        (CHAT, json!({"logit_bias": {"5": "up"}}), "logit_bias.5", "must be a number"),
        (CHAT, json!({"logit_bias": {"5": null}}), "logit_bias.5", "must be a number, got null"),
        (CHAT, json!({"logit_bias": {"5": 101}}), "logit_bias.5", "between -100 and 100, got 101"),
        (CHAT, json!({"metadata": {"a": 1}}), "metadata.a", "must be a string, got 1"),
        (CHAT, json!({"logprobs": 3}), "logprobs", "must be a boolean, got 3"),
        (CHAT, json!({"logprobs": false, "top_logprobs": 2}), "top_logprobs", "`logprobs` is true"),
        (COMPLETIONS, json!({"logprobs": 2, "top_logprobs": "x"}), "top_logprobs", "an integer"),
        (COMPLETIONS, json!({"logprobs": 21}), "logprobs", "between 0 and 20, got 21"),
        (COMPLETIONS, json!({"logprobs": -1}), "logprobs", "between 0 and 20"),
        (COMPLETIONS, json!({"logprobs": 1.5}), "logprobs", "must be an integer, got 1.5"),
        (COMPLETIONS, json!({"logprobs": "all"}), "logprobs", "an integer or a boolean"),
    ] {
        let body = merged(chat("hi", json!({"prompt": "hi"})), fields);
        let answer = server.client.post(path, &body).await;
        check(&answer, 400, "invalid_request", Some(param), words, &body.to_string());
    }
    assert!(server.rows.specs().is_empty());
}

#[tokio::test]
async fn messages_are_refused_at_the_very_part_that_is_wrong() {
    let server = server().await;
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]);
    for (messages, code, param) in [
        (Value::Null, "invalid_request", "messages"),
        (json!([]), "invalid_request", "messages"),
        (json!("hi"), "invalid_request", "messages"),
        (json!(["hi"]), "invalid_request", "messages[0]"),
        (json!([{"content": "hi"}]), "invalid_request", "messages[0].role"),
        (json!([{"role": 5, "content": "hi"}]), "invalid_request", "messages[0].role"),
        (json!([{"role": "boss", "content": "hi"}]), "invalid_request", "messages[0].role"),
        (json!([{"role": "user"}]), "invalid_request", "messages[0].content"),
        (user(Value::Null), "invalid_request", "messages[0].content"),
        (user(json!(5)), "invalid_request", "messages[0].content"),
        (user(json!(["hi"])), "invalid_request", "messages[0].content[0]"),
        (user(json!([{"text": "hi"}])), "invalid_request", "messages[0].content[0].type"),
        (user(json!([{"type": "text"}])), "invalid_request", "messages[0].content[0].text"),
        (user(image), "unsupported", "messages[0].content[1].type"),
    ] {
        let body = json!({"messages": messages});
        let answer = server.client.post(CHAT, &body).await;
        let words = param.rsplit('.').next().unwrap();
        check(&answer, 400, code, Some(param), words, &body.to_string());
    }
}

#[tokio::test]
async fn prompts_are_refused_when_empty_foreign_or_too_long() {
    let server = server().await;
    for (prompt, code, param, words) in [
        (Value::Null, "invalid_request", "prompt", "`prompt` is required"),
        (json!(""), "invalid_request", "prompt", "must not be empty"),
        (json!([]), "invalid_request", "prompt", "must not be empty"),
        (json!([""]), "invalid_request", "prompt", "must not be empty"),
        (json!(5), "invalid_request", "prompt", "a string or an array of token ids, got 5"),
        (json!([1, "a"]), "invalid_request", "prompt[1]", "must be a token id"),
        (json!([-1]), "invalid_request", "prompt[0]", "must be a token id, got -1"),
        (json!([true]), "invalid_request", "prompt[0]", "must be a token id or a string"),
        (json!([1, 258]), "invalid_request", "prompt", "token 1 of `prompt` is 258"),
        (json!("x".repeat(4096)), "context_length_exceeded", "prompt", "4096"),
        (json!("x".repeat(5000)), "context_length_exceeded", "prompt", "5000 tokens"),
    ] {
        let answer = server.client.post(COMPLETIONS, &json!({"prompt": prompt})).await;
        check(&answer, 400, code, Some(param), words, &prompt.to_string());
    }
    let answer = server.client.post(CHAT, &chat(&"x".repeat(5000), json!({}))).await;
    check(&answer, 400, "context_length_exceeded", Some("messages"), "4096", "a long chat");
}

#[tokio::test]
async fn bodies_that_are_no_json_object_are_refused() {
    let server = server().await;
    let deep = "[".repeat(100_000);
    for body in ["", "{", "nonsense", "{\"temperature\": NaN}", "{\"n\": 1e999}", "\u{0}", &deep] {
        let answer = server.client.ask("POST", CHAT, "", body).await;
        check(&answer, 400, "invalid_request", None, "JSON", body);
    }
    for (body, got) in [("[]", "an array"), ("5", "5"), ("null", "null"), ("\"x\"", "`x`")] {
        let answer = server.client.ask("POST", CHAT, "", body).await;
        check(&answer, 400, "invalid_request", None, got, body);
    }
}

#[tokio::test]
async fn a_model_that_is_not_served_is_not_found_and_the_served_one_is_named() {
    let server = server().await;
    for (path, body) in [
        (CHAT, chat("hi", json!({"model": "gpt-4"}))),
        (COMPLETIONS, completion("hi", json!({"model": "gpt-4"}))),
    ] {
        let answer = server.client.post(path, &body).await;
        let words = "no model `gpt-4` is served; this server serves `lab/bytes`";
        check(&answer, 404, "model_not_found", Some("model"), words, path);
    }
    let answer = server.client.get("/v1/models/lab/other").await;
    check(&answer, 404, "model_not_found", Some("model"), "`lab/other`", "models");
    for model in ["", "default", "lab/bytes"] {
        let answer = server.client.post(CHAT, &chat("hi", json!({"model": model}))).await;
        assert_eq!(answer.status, 200, "{model}");
    }
}

#[tokio::test]
async fn a_route_answers_its_own_methods_and_no_other() {
    let server = server().await;
    let routes = crate::api::routes();
    let methods = |path: &str| -> Vec<&str> {
        routes.iter().filter(|route| route.path == path).map(|route| route.method).collect()
    };
    for route in &routes {
        let path = route.path.replace("{*id}", "nothing").replace("{id}", "nothing");
        let own = methods(route.path);
        // Streams of statistics do not end.
        for method in ["POST", "DELETE", "PUT"] {
            let answer = server.client.ask(method, &path, "", "").await;
            assert_eq!(answer.status == 405, !own.contains(&method), "{method} {path}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_get_the_error_object_too() {
    let server = server().await;
    for path in ["/", "/v1", "/v1/chat", "/v1/embedding", "/..%2f..%2fetc/passwd"] {
        check(&server.client.get(path).await, 404, "not_found", None, "path", path);
    }
    for (method, path) in [("GET", CHAT), ("DELETE", COMPLETIONS), ("POST", "/health")] {
        let answer = server.client.ask(method, path, "", "").await;
        check(&answer, 405, "method_not_allowed", None, "method", path);
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_and_one_at_the_limit_is_read() {
    let body = chat("hi", json!({})).to_string();
    let config = ServeConfig { body_bytes_max: body.len(), ..ServeConfig::default() };
    let server = Server::start_with(ScriptedRows::new(|_| says("ok")), config).await;
    assert_eq!(server.client.ask("POST", CHAT, "", &body).await.status, 200);
    let answer = server.client.ask("POST", CHAT, "", &format!("{body} ")).await;
    check(&answer, 413, "body_too_large", None, "too large", "one byte more");
}

#[tokio::test]
async fn bad_requests_leave_their_live_siblings_unharmed() {
    let rows = ScriptedRows::new(|_| [says("begin"), vec![Step::Gate], says("end")].concat());
    let server = Server::start(rows).await;
    let client = server.client;
    let whole = tokio::spawn(async move { client.post(CHAT, &chat("a", json!({}))).await });
    let streamed =
        tokio::spawn(async move { client.post(CHAT, &chat("b", json!({"stream": true}))).await });
    for body in ["{", "[]", r#"{"messages": []}"#, r#"{"messages": [{"role": "user"}]}"#] {
        assert_eq!(client.ask("POST", CHAT, "", body).await.status, 400);
    }
    server.rows.open_gate();
    let whole = whole.await.unwrap().json();
    assert_eq!(whole["choices"][0]["message"]["content"], "beginend");
    assert_eq!(streamed.await.unwrap().frames().len(), 11);
}
