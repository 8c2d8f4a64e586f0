//! Texts to vectors, where the model makes any.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;

const EMBEDDINGS: &str = "/v1/embeddings";

async fn server() -> Server {
    let rows = ScriptedRows::new(|_| Vec::new());
    let engine = script::engine_that_embeds(Arc::clone(&rows));
    Server::start_engine(rows, engine, ServeConfig::default()).await
}

#[tokio::test]
async fn texts_and_tokens_become_vectors_in_their_order() {
    let server = server().await;
    let (one, two) = (json!([7.0, 8.0, 0.5, 0.5]), json!([9.0, 1.0, 2.0, 3.0]));
    for (input, vectors, tokens) in
        [(json!([7, 8]), vec![&one], 2), (json!([[7, 8], [9, 1, 2, 3, 4]]), vec![&one, &two], 7)]
    {
        let body = server.client.post(EMBEDDINGS, &json!({"input": input})).await.json();
        let data: Vec<Value> = vectors
            .iter()
            .enumerate()
            .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector}))
            .collect();
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        let expected =
            json!({"object": "list", "data": data, "model": "lab/bytes", "usage": usage});
        assert_eq!(body, expected);
    }
    let texts = server.client.post(EMBEDDINGS, &json!({"input": ["ab", "c"]})).await.json();
    let ids = ["ab", "c"].map(|text| script::tokenizer().encode(text, true).unwrap());
    let tokens = server.client.post(EMBEDDINGS, &json!({"input": ids})).await.json();
    assert_eq!(texts, tokens);
}

#[tokio::test]
async fn base64_holds_the_same_numbers_and_dimensions_cut_them() {
    let server = server().await;
    let body = json!({"input": [7, 8], "encoding_format": "base64", "dimensions": 3});
    let body = server.client.post(EMBEDDINGS, &body).await.json();
    let bytes = STANDARD.decode(body["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(numbers, [7.0, 8.0, 0.5]);
}

#[tokio::test]
async fn a_model_that_makes_no_vectors_says_so_and_why() {
    let server = Server::start(ScriptedRows::new(|_| Vec::new())).await;
    let answer = server.client.post(EMBEDDINGS, &json!({"input": "hi"})).await;
    let error = &answer.json()["error"];
    assert_eq!(
        (answer.status, &error["code"], &error["param"]),
        (400, &json!("unsupported"), &json!("model"))
    );
    let words = "the model `lab/bytes` makes no embeddings: it was made to answer";
    assert!(error["message"].as_str().unwrap().starts_with(words), "{error}");
}
