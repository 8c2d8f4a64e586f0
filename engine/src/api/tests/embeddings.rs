//! Texts to vectors, where the model makes any.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;
use crate::gateway::script::Step;
use crate::gateway::{Cuts, Embeddings, ModelCard, TextVectors};
use crate::scheduler::{Priority, Purpose};

const EMBEDDINGS: &str = "/v1/embeddings";

async fn server() -> Server {
    server_of(ScriptedRows::new(|_| Vec::new()), |_| ()).await
}

/// A server of an embedding model that plays `rows`, and may differ from others.
async fn server_of(rows: Arc<ScriptedRows>, change: impl FnOnce(&mut ModelCard)) -> Server {
    let mut card = script::card();
    card.capabilities.embeddings = Embeddings::Vectors(script::vectors());
    card.capabilities.mute_because = Some("it only embeds".to_owned());
    change(&mut card);
    let (tokenizer, clock) = (script::tokenizer(), Clock::monotonic());
    let engine = Engine::new(card, tokenizer, rows.clone(), SchedulerConfig::default(), clock);
    Server::start_engine(rows, engine, ServeConfig::default()).await
}

fn vectors_of(change: impl FnOnce(&mut TextVectors)) -> impl FnOnce(&mut ModelCard) {
    let mut vectors = script::vectors();
    change(&mut vectors);
    |card| card.capabilities.embeddings = Embeddings::Vectors(vectors)
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

#[tokio::test]
async fn a_model_that_only_makes_vectors_answers_in_no_dialect_and_says_why() {
    let server = server().await;
    for path in [CHAT, COMPLETIONS, RESPONSES, MESSAGES] {
        let answer = server.client.post(path, &whole_body(path)).await;
        let error = &answer.json()["error"];
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        let words =
            "the model `lab/bytes` does not answer: it only embeds (it serves `/v1/embeddings`)";
        assert_eq!(error["message"], json!(words), "{path}");
    }
    assert!(server.rows.specs().is_empty());
    let models = server.client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["embedding_dimensions"], 4);
}

#[tokio::test]
async fn texts_are_rows_of_their_client_one_after_the_other_under_one_id() {
    let server = server().await;
    let body = json!({"input": [[7, 8], [9]], "dimensions": 3}).to_string();
    let headers = "x-slipstream-client: indexer\r\nx-slipstream-priority: background\r\n";
    let answer = server.client.send("POST", EMBEDDINGS, headers, body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let specs = server.rows.specs();
    assert_eq!(specs.iter().map(|spec| spec.prompt.len()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(specs[0].id, specs[1].id);
    for spec in specs {
        assert_eq!(spec.purpose, Purpose::Vector { dimensions: Some(3) });
        assert_eq!((&*spec.client, spec.priority), ("indexer", Priority::Background));
        let bytes = script::card().kv.row_bytes(spec.prompt.len());
        assert_eq!((spec.max_tokens, spec.kv_bytes), (0, bytes));
    }
    let metrics = server.client.get("/metrics").await.body;
    let series = r#"{model="lab/bytes",lane="continuous",client="indexer""#;
    assert!(metrics.contains(&format!("slipstream_prompt_tokens_total{series}}} 3")), "{metrics}");
    let ended = format!(r#"slipstream_requests_total{series},end="stop"}} 1"#);
    assert!(metrics.contains(&ended), "{metrics}");
}

#[tokio::test]
async fn every_text_is_held_against_the_model_before_one_is_run() {
    let few = |vectors: &mut TextVectors| {
        vectors.cuts = Cuts::To(vec![2]);
        vectors.text_tokens_max = Some(5);
    };
    let server = server_of(ScriptedRows::new(|_| Vec::new()), vectors_of(few)).await;
    for (fields, code, words) in [
        (json!({"input": [[1], [300]]}), "invalid_request", "token 0 of `input` is 300"),
        (json!({"input": [[1], [1, 2, 3, 4, 5, 6]]}), "context_length_exceeded", "6 tokens"),
        (json!({"input": [1], "dimensions": 3}), "invalid_request", "one of 2, or 4, got 3"),
    ] {
        let answer = server.client.post(EMBEDDINGS, &fields).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!(code)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    assert!(server.rows.specs().is_empty(), "a text was run beside one that is wrong");
    let whole = json!({"input": [1, 2, 3, 4, 5], "dimensions": 4});
    assert_eq!(server.client.post(EMBEDDINGS, &whole).await.status, 200);
}

#[tokio::test]
async fn the_models_prompt_stands_before_texts_and_not_before_tokens() {
    let prompted = vectors_of(|vectors| vectors.prefix = "Q: ".to_owned());
    let server = server_of(ScriptedRows::new(|_| Vec::new()), prompted).await;
    for input in [json!("ab"), json!([7, 8])] {
        assert_eq!(server.client.post(EMBEDDINGS, &json!({"input": input})).await.status, 200);
    }
    let prompts: Vec<_> = server.rows.specs().into_iter().map(|spec| spec.prompt).collect();
    assert_eq!(prompts, [script::tokenizer().encode("Q: ab", true).unwrap(), vec![7, 8]]);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_texts_along() {
    let server = server_of(ScriptedRows::new(|_| vec![Step::Gate]), |_| ()).await;
    let body = json!({"input": [[1], [2]]}).to_string();
    let connection = server.client.open("POST", EMBEDDINGS, "", &body).await;
    server.rows.waits_at_gate(1).await;
    drop(connection);
    let id = server.rows.specs()[0].id.clone();
    assert_eq!(server.rows.cancelled(1).await, [id]);
    assert_eq!(server.rows.specs().len(), 1, "a text was run for nobody");
}

#[tokio::test]
async fn a_request_for_vectors_can_be_ended_by_its_id() {
    let server = server_of(ScriptedRows::new(|_| vec![Step::Gate]), |_| ()).await;
    let body = json!({"input": [[1], [2]]});
    let (answer, ended) = tokio::join!(server.client.post(EMBEDDINGS, &body), async {
        server.rows.waits_at_gate(1).await;
        let id = server.rows.specs()[0].id.clone();
        server.client.send("DELETE", &format!("/v1/requests/{id}"), "", b"").await
    });
    assert_eq!((answer.status, ended.status), (400, 200), "{answer:?}");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("was cancelled"), "{message}");
    server.rows.cancelled(1).await;
}
