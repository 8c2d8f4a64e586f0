//! A table of requests that are wrong in one way each, over all endpoints: each is refused in the shape of
//! its dialect and by the name of what is wrong, and a stream that is live meanwhile does not notice.

use serde_json::json;

use super::*;
use crate::api::tests::client::{Answer, read_until};
use crate::gateway::script::{Step, says};

/// Every path that takes a JSON body.
const PATHS: [&str; 8] = [
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/tokenize",
    "/v1/detokenize",
];

/// A request, and how it is refused.
struct Case {
    path: &'static str,
    body: Vec<u8>,
    status: u16,
    /// What the message says.
    words: String,
}

impl Case {
    fn new(path: &'static str, body: impl Into<Vec<u8>>, status: u16, words: &str) -> Self {
        Self { path, body: body.into(), status, words: words.to_owned() }
    }

    /// What comes back on a connection of its own.
    async fn answer(&self, server: &Server) -> Answer {
        let headers = "x-slipstream-client: table\r\n";
        server.client.send("POST", self.path, headers, &self.body).await
    }
}

fn is_anthropic(path: &str) -> bool {
    path.starts_with(MESSAGES)
}

#[track_caller]
fn check_shape(answer: &Answer, path: &str, words: &str, shown: &str) {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{path} {shown}");
    let body = answer.json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    if is_anthropic(path) {
        assert_eq!(keys(&body), ["type", "error", "request_id"], "{path} {shown}");
        assert_eq!(keys(&body["error"]), ["type", "message"], "{path} {shown}");
        assert_eq!(body["type"], "error");
        assert_eq!(Some(body["request_id"].as_str().unwrap()), answer.header("request-id"));
    } else {
        assert_eq!(keys(&body), ["error"], "{path} {shown}");
        assert_eq!(keys(&body["error"]), ["message", "type", "param", "code"], "{path} {shown}");
    }
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains(words), "{path} {shown}: {message}");
    assert!(message.len() < 1000, "{path} {shown}: a message of {} bytes", message.len());
}

/// Bodies that are wrong whatever they are for.
fn wrong_everywhere(path: &'static str) -> Vec<Case> {
    let deep =
        |levels: usize| [b"{\"a\":".repeat(levels), b"1".to_vec(), b"}".repeat(levels)].concat();
    let mut torn = whole_body(path).to_string().into_bytes();
    torn.pop();
    let mut trailing = whole_body(path).to_string().into_bytes();
    trailing.extend(b" {}");
    let ten_megabytes = format!("{{\"model\": \"{}\"}}", "x".repeat(10 << 20));
    let invalid =
        |name: &str| [br#"{"model": ""#.as_slice(), name.as_bytes(), b"\xff\xfe\"}"].concat();
    vec![
        Case::new(path, "", 400, "body is empty"),
        Case::new(path, torn, 400, "not valid JSON"),
        Case::new(path, trailing, 400, "not valid JSON"),
        Case::new(path, deep(1000), 400, "not valid JSON"),
        Case::new(path, b"[".repeat(1000), 400, "not valid JSON"),
        Case::new(path, invalid("default"), 400, "not valid JSON"),
        Case::new(path, b"\xef\xbb\xbf{}".as_slice(), 400, "not valid JSON"),
        Case::new(path, br#"{"model": "\ud800"}"#.as_slice(), 400, "not valid JSON"),
        Case::new(path, "{\"model\": \"a\u{0}b\"}", 400, "not valid JSON"),
        Case::new(path, "[]", 400, "must be a JSON object, got an array"),
        Case::new(path, "\"hi\"", 400, "must be a JSON object"),
        Case::new(path, ten_megabytes, 404, "no model `xxx"),
        Case::new(
            path,
            merged(whole_body(path), json!({"model": 7})).to_string(),
            400,
            "`model` must be",
        ),
        Case::new(
            path,
            merged(whole_body(path), json!({"model": "gpt-4"})).to_string(),
            404,
            "`gpt-4`",
        ),
    ]
}

/// A whole body with one field changed, and the name that the refusal must have.
fn wrong_field(path: &'static str, name: &str, value: Value, words: &str) -> Case {
    let mut body = whole_body(path);
    body[name] = value;
    Case::new(path, body.to_string(), 400, words)
}

fn wrong_chats() -> Vec<Case> {
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let cases = [
        ("messages", Value::Null, "`messages` is required"),
        ("messages", json!([]), "`messages` must hold"),
        ("messages", json!({}), "`messages` must be an array"),
        ("messages", json!([7]), "`messages[0]`"),
        ("messages", json!([{"content": "hi"}]), "`messages[0].role`"),
        ("messages", json!([{"role": "boss", "content": "hi"}]), "`messages[0].role`"),
        ("messages", json!([{"role": "user"}]), "`messages[0].content`"),
        ("messages", user(json!(7)), "`messages[0].content`"),
        ("messages", user(json!([{"type": "image_url"}])), "`messages[0].content[0].type`"),
        ("messages", user(json!([{"type": "text", "text": 7}])), "`messages[0].content[0].text`"),
        ("messages", user(json!("x".repeat(5000))), "4096"),
        ("stream", json!("yes"), "`stream`"),
        ("stream_options", json!({}), "`stream_options`"),
        ("temperature", json!(-1), "`temperature`"),
        ("top_p", json!(2), "`top_p`"),
        ("top_k", json!(0.5), "`top_k`"),
        ("min_p", json!(-0.1), "`min_p`"),
        ("seed", json!("x"), "`seed`"),
        ("max_tokens", json!(0), "`max_tokens`"),
        ("max_completion_tokens", json!("x"), "`max_completion_tokens`"),
        ("stop", json!([7]), "`stop[0]`"),
        ("stop", json!([""]), "`stop`"),
        ("n", json!(2), "`n`"),
        ("store", json!("yes"), "`store`"),
        ("store", json!(true), "`store`"),
        ("moderation", json!({"model": "m"}), "`moderation`"),
        ("verbosity", json!("loud"), "`verbosity`"),
        ("service_tier", json!(1), "`service_tier`"),
        ("safety_identifier", json!(1), "`safety_identifier`"),
        ("reasoning_effort", json!("huge"), "`reasoning_effort`"),
        ("chat_template_kwargs", json!("x"), "`chat_template_kwargs`"),
        ("parallel_tool_calls", json!("no"), "`parallel_tool_calls`"),
        ("tool_choice", json!("maybe"), "`tool_choice`"),
        ("tool_choice", json!({"type": "allowed_tools"}), "`tool_choice.type`"),
        ("metadata", json!({"a": 7}), "`metadata.a`"),
    ];
    cases.into_iter().map(|(name, value, words)| wrong_field(CHAT, name, value, words)).collect()
}

fn wrong_completions() -> Vec<Case> {
    let cases = [
        ("prompt", Value::Null, "`prompt` is required"),
        ("prompt", json!(""), "`prompt` must not be empty"),
        ("prompt", json!({}), "`prompt` must be"),
        ("prompt", json!([1, "a"]), "`prompt[1]`"),
        ("prompt", json!([999]), "`prompt`"),
        ("prompt", json!(["a", "b"]), "`prompt` holds 2"),
        ("prompt", json!("x".repeat(5000)), "5000 tokens"),
        ("echo", json!(true), "`echo`"),
        ("suffix", json!("x"), "`suffix`"),
        ("best_of", json!(3), "`best_of`"),
        ("max_tokens", json!(-1), "`max_tokens`"),
        ("stop", json!({"a": 1}), "`stop`"),
    ];
    cases
        .into_iter()
        .map(|(name, value, words)| wrong_field(COMPLETIONS, name, value, words))
        .collect()
}

fn wrong_messages() -> Vec<Case> {
    let blocks = |role: &str, block: Value| json!([{"role": role, "content": [block]}]);
    let tools = |tool: Value| json!([tool]);
    let schema = || json!({"type": "object"});
    let cases = [
        ("model", Value::Null, "`model` is required"),
        ("messages", json!([]), "`messages` must hold"),
        ("messages", json!("hi"), "`messages` must be an array"),
        ("messages", json!([{"role": "tool", "content": "x"}]), "`messages[0].role`"),
        ("messages", json!([{"role": "user"}]), "`messages[0].content` is required"),
        ("messages", json!([{"role": "user", "content": 7}]), "`messages[0].content`"),
        ("messages", blocks("user", json!("hi")), "`messages[0].content[0]`"),
        ("messages", blocks("user", json!({"text": "hi"})), "`messages[0].content[0].type`"),
        ("messages", blocks("user", json!({"type": "text"})), "`messages[0].content[0].text`"),
        ("messages", blocks("user", json!({"type": "image"})), "`image`"),
        ("messages", blocks("user", json!({"type": "tool_use"})), "`tool_use`"),
        ("messages", blocks("user", json!({"type": "tool_result"})), "tool_use_id"),
        ("messages", blocks("assistant", json!({"type": "tool_result"})), "`tool_result`"),
        ("messages", blocks("assistant", json!({"type": "tool_use", "id": "a"})), "name"),
        (
            "messages",
            blocks("assistant", json!({"type": "tool_use", "id": "a", "name": "b"})),
            "input",
        ),
        ("messages", blocks("assistant", json!({"type": "thinking"})), "thinking"),
        ("messages", json!([{"role": "assistant", "content": "so"}]), "not continued"),
        ("system", json!(7), "`system`"),
        ("system", json!([{"type": "image"}]), "`system[0].type`"),
        ("tools", json!({}), "`tools`"),
        ("tools", tools(json!({"name": "f"})), "`tools[0].input_schema`"),
        ("tools", tools(json!({"input_schema": schema()})), "`tools[0].name`"),
        ("tools", tools(json!({"name": "", "input_schema": schema()})), "`tools[0].name`"),
        ("tools", tools(json!({"name": "f", "input_schema": "x"})), "`tools[0].input_schema`"),
        ("tools", tools(json!({"type": "bash_20250124", "name": "bash"})), "bash_20250124"),
        ("tool_choice", json!({"type": "any"}), "`tool_choice`"),
        ("tool_choice", json!({"type": "tool", "name": "f"}), "`tool_choice.name`"),
        ("tool_choice", json!({"type": "some"}), "`tool_choice.type`"),
        ("tool_choice", json!("auto"), "`tool_choice`"),
        ("thinking", json!({"type": "enabled"}), "`thinking.budget_tokens`"),
        ("thinking", json!({"type": "deep"}), "`thinking.type`"),
        ("output_config", json!({"effort": "huge"}), "`output_config.effort`"),
        ("output_config", json!({"format": {"type": "xml"}}), "`output_config.format.type`"),
        (
            "output_config",
            json!({"format": {"type": "json_schema"}}),
            "`output_config.format.schema`",
        ),
        ("mcp_servers", json!([{}]), "`mcp_servers`"),
    ];
    let both = ["/v1/messages", "/v1/messages/count_tokens"];
    let shared = cases
        .into_iter()
        .enumerate()
        .map(|(index, (name, value, words))| wrong_field(both[index % 2], name, value, words));
    shared.chain(wrong_messages_alone()).collect()
}

/// What counting tokens does not look at.
fn wrong_messages_alone() -> Vec<Case> {
    let cases = [
        ("max_tokens", Value::Null, "`max_tokens` is required"),
        ("max_tokens", json!(0), "`max_tokens`"),
        ("max_tokens", json!("9"), "`max_tokens`"),
        ("stream", json!(1), "`stream`"),
        ("stop_sequences", json!("x"), "`stop_sequences`"),
        ("stop_sequences", json!([""]), "`stop_sequences[0]`"),
        ("stop_sequences", json!(vec!["x"; 99]), "`stop_sequences`"),
        ("temperature", json!("x"), "`temperature`"),
        ("metadata", json!("x"), "`metadata`"),
        ("metadata", json!({"user_id": 7}), "`metadata.user_id`"),
        ("messages", json!([{"role": "user", "content": "x".repeat(5000)}]), "prompt is too long"),
    ];
    let cases = cases.into_iter();
    cases.map(|(name, value, words)| wrong_field(MESSAGES, name, value, words)).collect()
}

fn wrong_responses() -> Vec<Case> {
    let item = |item: Value| json!([item]);
    let function = || json!({"type": "function", "name": "f"});
    let cases = [
        ("input", Value::Null, "`input` is required"),
        ("input", json!(7), "`input`"),
        ("input", json!([]), "`input` must hold"),
        ("input", item(json!("hi")), "`input[0]`"),
        ("input", item(json!({"type": "computer_call"})), "`computer_call`"),
        ("input", item(json!({"role": "tool", "content": "x"})), "`input[0].role`"),
        ("input", item(json!({"role": "user"})), "`input[0].content`"),
        (
            "input",
            item(json!({"role": "user", "content": [{"type": "input_image"}]})),
            "`input_image`",
        ),
        ("input", item(json!({"type": "function_call"})), "`input[0].call_id`"),
        (
            "input",
            item(json!({"type": "function_call_output", "call_id": "c"})),
            "`input[0].output`",
        ),
        ("input", item(json!({"type": "item_reference", "id": "msg_x"})), "`msg_x`"),
        ("input", json!("x".repeat(5000)), "4096"),
        ("previous_response_id", json!("resp_x"), "`resp_x`"),
        ("previous_response_id", json!(7), "`previous_response_id`"),
        ("instructions", json!(7), "`instructions`"),
        ("store", json!("yes"), "`store`"),
        ("stream", json!("yes"), "`stream`"),
        ("max_output_tokens", json!(0), "`max_output_tokens`"),
        ("temperature", json!(-1), "`temperature`"),
        ("metadata", json!({"a": 7}), "`metadata.a`"),
        ("background", json!(true), "`background`"),
        ("truncation", json!("auto"), "`truncation`"),
        ("truncation", json!("some"), "`truncation`"),
        ("tools", json!([{"name": "f"}]), "`tools[0].type`"),
        ("tools", json!([{"type": "function"}]), "`tools[0].name`"),
        ("tools", json!([{"type": "custom", "name": "f"}]), "`custom`"),
        ("tools", json!([function(), function()]), "`tools[1].name`"),
        ("tool_choice", json!("required"), "`tool_choice`"),
        ("tool_choice", json!("some"), "`tool_choice`"),
        ("tool_choice", json!({"type": "function", "name": "f"}), "`tool_choice.name`"),
        ("reasoning", json!({"effort": "huge"}), "`reasoning.effort`"),
        ("reasoning", json!("low"), "`reasoning`"),
        ("text", json!({"format": {"type": "xml"}}), "`text.format.type`"),
        ("text", json!({"format": {"type": "json_schema"}}), "`text.format.schema`"),
        ("text", json!({"format": {"type": "json_schema", "schema": 7}}), "`text.format.schema`"),
        ("text", json!({"verbosity": "loud"}), "`text.verbosity`"),
        ("top_logprobs", json!(99), "`top_logprobs`"),
        ("include", json!([7]), "`include[0]`"),
        ("conversation", json!("c"), "`conversation`"),
        ("service_tier", json!(1), "`service_tier`"),
    ];
    cases
        .into_iter()
        .map(|(name, value, words)| wrong_field(RESPONSES, name, value, words))
        .collect()
}

fn wrong_others() -> Vec<Case> {
    let (embed, tokenize, detokenize) = ("/v1/embeddings", "/v1/tokenize", "/v1/detokenize");
    let cases = [
        (embed, "input", Value::Null, "`input` is required"),
        (embed, "input", json!(""), "`input` must not be empty"),
        (embed, "input", json!([]), "`input` must not be empty"),
        (embed, "input", json!(["a", ""]), "`input[1]`"),
        (embed, "input", json!([1, "a"]), "`input[1]`"),
        (embed, "input", json!([[1], ["a"]]), "`input[1][0]`"),
        (embed, "input", json!([{}]), "`input[0]`"),
        (embed, "input", json!(vec!["x"; 2049]), "2049 texts"),
        (embed, "input", json!([999]), "vocabulary"),
        (embed, "input", json!("x".repeat(5000)), "5000 tokens"),
        (embed, "encoding_format", json!("hex"), "`encoding_format`"),
        (embed, "dimensions", json!(0), "`dimensions`"),
        (embed, "dimensions", json!(99), "`dimensions`"),
        (tokenize, "prompt", Value::Null, "`prompt` or `messages`"),
        (tokenize, "prompt", json!(7), "`prompt`"),
        (tokenize, "messages", json!([]), "`messages`"),
        (tokenize, "return_token_strs", json!(1), "`return_token_strs`"),
        (tokenize, "add_special_tokens", json!("no"), "`add_special_tokens`"),
        (detokenize, "tokens", Value::Null, "`tokens` is required"),
        (detokenize, "tokens", json!("7"), "`tokens`"),
        (detokenize, "tokens", json!([7, 300]), "`tokens[1]`"),
        (detokenize, "tokens", json!([-1]), "`tokens[0]`"),
        (detokenize, "tokens", json!([1.5]), "`tokens[0]`"),
    ];
    let cases = cases.into_iter();
    cases.map(|(path, name, value, words)| wrong_field(path, name, value, words)).collect()
}

#[tokio::test]
async fn whatever_is_wrong_is_refused_by_name_while_a_sibling_goes_on() {
    let rows = ScriptedRows::new(|_| [says("begin"), vec![Step::Gate], says("end")].concat());
    let engine = script::engine_that_embeds(Arc::clone(&rows));
    let server = Server::start_engine(rows, engine, ServeConfig::default()).await;
    let body = completion("sibling", json!({"stream": true})).to_string();
    let mut sibling = server.client.open("POST", COMPLETIONS, "", &body).await;
    read_until(&mut sibling, "\"n\"").await;
    let tables =
        [wrong_chats(), wrong_completions(), wrong_messages(), wrong_responses(), wrong_others()];
    let everywhere = PATHS.into_iter().map(wrong_everywhere);
    let cases: Vec<Case> = everywhere.chain(tables).flatten().collect();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    for case in &cases {
        let shown: String = String::from_utf8_lossy(&case.body).chars().take(120).collect();
        let answer = case.answer(&server).await;
        assert_eq!(answer.status, case.status, "{} {shown}: {answer:?}", case.path);
        check_shape(&answer, case.path, &case.words, &shown);
    }
    assert_eq!(server.rows.specs().len(), 1, "something that is wrong became a row");
    server.rows.open_gate();
    read_until(&mut sibling, "\"finish_reason\":\"stop\"").await;
}

#[tokio::test]
async fn what_no_body_can_mend_is_refused_too() {
    let server = Server::start(ScriptedRows::new(|_| says("ok"))).await;
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("POST", "/v1/chat", 404),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages", 405),
        ("PUT", "/v1/messages", 405),
        ("GET", CHAT, 405),
        ("DELETE", COMPLETIONS, 405),
        ("PATCH", RESPONSES, 405),
        ("GET", "/v1/responses/resp_x", 404),
        ("DELETE", "/v1/responses/resp_x", 404),
        ("GET", "/v1/models/other", 404),
        ("DELETE", "/v1/models/lab/bytes", 405),
        ("DELETE", "/v1/requests/none", 404),
        ("GET", "/v1/requests/none", 405),
        ("POST", "/v1/cache", 405),
        ("PUT", "/v1/cache", 405),
        ("DELETE", "/v1/cache?pinned=yes", 400),
        ("DELETE", "/v1/cache?pinned=", 400),
        ("DELETE", "/v1/cache?pinned=%ff", 400),
        ("GET", "/v1/cache/flush", 405),
        ("DELETE", "/v1/cache/flush", 405),
        ("POST", "/v1/cache/flush", 400),
        ("GET", "/v1/cache/0123456789abcdef", 405),
        ("PUT", "/v1/cache/0123456789abcdef", 405),
        ("POST", "/v1/cache/0123456789abcdef", 400),
        ("POST", "/v1/cache/%ff", 400),
        ("DELETE", "/v1/cache/%ff", 400),
        ("DELETE", "/v1/cache/0123456789abcdef/pin", 404),
        ("POST", "/health", 405),
        ("POST", "/stats/stream", 405),
        ("POST", "/metrics", 405),
        ("POST", "/openapi.json", 405),
        ("GET", "/..%2f..%2fetc/passwd", 404),
        ("GET", "/v1/models/%ff", 400),
    ] {
        let answer = server.client.ask(method, path, "", "").await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        check_shape(&answer, path, "", method);
    }
}
