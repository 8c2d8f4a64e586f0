//! Text to token ids and back.

use serde_json::json;

use super::*;
use crate::gateway::script::{IM_END, IM_START, says};

const TOKENIZE: &str = "/v1/tokenize";
const DETOKENIZE: &str = "/v1/detokenize";

async fn server() -> Server {
    Server::start(ScriptedRows::new(|_| says("ok"))).await
}

#[tokio::test]
async fn a_texts_tokens_are_counted_listed_and_become_the_text_again() {
    let server = server().await;
    for text in ["hi", "", "é\u{1F600}\n", "<|im_start|>user\nhi<|im_end|>", &"long ".repeat(9000)]
    {
        let answer = server.client.post(TOKENIZE, &json!({"prompt": text})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        let tokens = script::tokenizer().encode(text, true).unwrap();
        let head = json!({"model": "lab/bytes", "count": tokens.len(), "max_model_len": 4096});
        for (name, value) in head.as_object().unwrap() {
            assert_eq!(&body[name], value, "{name}");
        }
        assert_eq!((&body["tokens"], &body["token_strs"]), (&json!(tokens), &Value::Null));
        let back = server.client.post(DETOKENIZE, &json!({"tokens": tokens})).await.json();
        assert_eq!(back, json!({"model": "lab/bytes", "prompt": text}));
    }
    assert!(server.rows.specs().is_empty());
}

#[tokio::test]
async fn tokens_are_spelled_when_asked() {
    let server = server().await;
    let body = json!({"prompt": "a b<|im_end|>", "return_token_strs": true});
    let body = server.client.post(TOKENIZE, &body).await.json();
    assert_eq!(body["token_strs"], json!(["a", "\u{120}", "b", "<|im_end|>"]));
}

#[tokio::test]
async fn a_chats_tokens_are_those_that_its_row_is_given() {
    let server = server().await;
    let body = chat("hi", json!({"max_tokens": 1}));
    let tokens = server.client.post(TOKENIZE, &body).await.json()["tokens"].clone();
    server.client.post(CHAT, &body).await;
    assert_eq!(tokens, json!(server.rows.specs()[0].prompt));
    assert_eq!(tokens[0], json!(IM_START));
    assert!(tokens.as_array().unwrap().contains(&json!(IM_END)));
}

#[tokio::test]
async fn what_cannot_be_tokenized_or_is_no_token_is_refused_by_name() {
    let server = server().await;
    for (path, body, param) in [
        (TOKENIZE, json!({}), "prompt"),
        (TOKENIZE, json!({"prompt": 5}), "prompt"),
        (TOKENIZE, json!({"prompt": "a", "messages": []}), "messages"),
        (TOKENIZE, json!({"messages": []}), "messages"),
        (TOKENIZE, json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (TOKENIZE, chat("a", json!({"add_generation_prompt": false})), "add_generation_prompt"),
        (TOKENIZE, chat("a", json!({"add_special_tokens": true})), "add_special_tokens"),
        (TOKENIZE, json!({"prompt": "a", "return_token_strs": "yes"}), "return_token_strs"),
        (DETOKENIZE, json!({}), "tokens"),
        (DETOKENIZE, json!({"tokens": "a"}), "tokens"),
        (DETOKENIZE, json!({"tokens": [1, -1]}), "tokens[1]"),
        (DETOKENIZE, json!({"tokens": [258]}), "tokens[0]"),
        (DETOKENIZE, json!({"tokens": [[1]]}), "tokens[0]"),
    ] {
        let answer = server.client.post(path, &body).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{body}"
        );
    }
    let other = json!({"prompt": "a", "model": "gpt-4"});
    assert_eq!(server.client.post(TOKENIZE, &other).await.status, 404);
}
