//! The tiny Qwen3 as an embedding model, through the SDK: what it hears are mlx-lm's hidden states.

use std::fs;
use std::path::Path;
use std::process::Command;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use slipstream_tests::server::{self, Server};
use slipstream_tests::{demo, goldens};
use tempfile::TempDir;

const CHECKPOINT: &str = "qwen3-tiny";
/// Below a bit of a hidden state in bf16; lengths are taken in f64 by both.
const SAME_BITS: f64 = 1e-7;

/// The checkpoint with the files that sentence-transformers puts beside a Qwen3-Embedding.
pub(super) fn model(config: &Value) -> TempDir {
    let tiny = goldens::checkpoint(CHECKPOINT);
    let copy = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(tiny.join(name), copy.path().join(name)).unwrap();
    }
    let mut own: Value =
        serde_json::from_slice(&fs::read(tiny.join("config.json")).unwrap()).unwrap();
    own.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let module = |path: &str, kind: &str| json!({"name": kind, "path": path, "type": format!("sentence_transformers.models.{kind}")});
    let modules = [
        module("", "Transformer"),
        module("1_Pooling", "Pooling"),
        module("2_Normalize", "Normalize"),
    ];
    let pooling = json!({
        "word_embedding_dimension": 32, "pooling_mode_cls_token": false,
        "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true,
    });
    fs::create_dir(copy.path().join("1_Pooling")).unwrap();
    let write =
        |name: &str, value: Value| fs::write(copy.path().join(name), value.to_string()).unwrap();
    write("config.json", own);
    write("modules.json", json!(modules));
    write("1_Pooling/config.json", pooling);
    write("config_sentence_transformers.json", json!({"default_prompt_name": null}));
    copy
}

fn golden(name: &str) -> Value {
    let path = goldens::checkpoint(CHECKPOINT).join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The golden vectors of `kind`, one per text.
fn golden_vectors(kind: &str, texts: usize) -> Vec<Vec<f64>> {
    let file = fs::read(goldens::checkpoint(CHECKPOINT).join("embeddings.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&file).unwrap();
    let vector = |index: usize| {
        let bytes = stored.tensor(&format!("bfloat16.{index}.{kind}")).unwrap().data();
        let number = |four: &[u8]| f64::from(f32::from_le_bytes(four.try_into().unwrap()));
        bytes.chunks_exact(4).map(number).collect()
    };
    (0..texts).map(vector).collect()
}

fn assert_golden(told: &Value, wanted: &[Vec<f64>], kind: &str) {
    let got: Vec<Vec<f64>> = serde_json::from_value(told["vectors"].clone()).unwrap();
    assert_eq!(got.len(), wanted.len(), "{kind}");
    for (got, wanted) in got.iter().zip(wanted) {
        assert_eq!(got.len(), wanted.len(), "{kind}");
        let apart = got.iter().zip(wanted).map(|(got, wanted)| (got - wanted).abs());
        let farthest = apart.fold(0.0, f64::max);
        assert!(farthest <= SAME_BITS, "{kind}: {farthest} apart");
    }
}

/// Vectors in the numbers that they are made of.
fn numbers(told: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(told.clone()).unwrap()
}

fn told_by_sdk(server: &Server, texts: &Value) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/embeddings.py");
    let mut client = Command::new(demo::client_python());
    let output = client.arg(script).args([server.url(), texts.to_string()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_sdk_hears_mlx_lms_vectors_together_and_alone_in_numbers_and_in_base64() {
    let model = model(&json!({"is_matryoshka": true}));
    let server = Server::of(model.path(), &["--dtype", "bf16"]);
    let texts = &golden("embeddings.json")["texts"];
    let told = told_by_sdk(&server, texts);
    let count = texts.as_array().unwrap().len();
    assert_golden(&told["floats"], &golden_vectors("whole", count), "whole");
    assert_golden(&told["cut"], &golden_vectors("cut", count), "cut");
    // Every bit, whatever texts come with it and however it is written.
    let together = numbers(&told["floats"]["vectors"]);
    assert_eq!(numbers(&told["alone"]), together);
    assert_eq!(numbers(&told["base64"]["vectors"]), together);
    assert_eq!(told["text"]["vectors"][0], told["texts"]["vectors"][1]);
    let lengths = texts.as_array().unwrap().iter().map(|text| text.as_array().unwrap().len());
    assert_eq!(told["floats"]["tokens"], json!(lengths.sum::<usize>()));
    let unsupported = json!(["BadRequestError", 400, "unsupported", "model"]);
    assert_eq!((&told["chat"], &told["completion"]), (&unsupported, &unsupported));
    let wrong = json!(["BadRequestError", 400, "invalid_request", "dimensions"]);
    assert_eq!(told["too_many"], wrong);
    assert_eq!(told["models"][0]["embedding_dimensions"], 32);
    assert_eq!(server.terminate(), Some(0));
}

/// The status of a request for short vectors, and what it says.
fn short_vectors(server: &Server) -> (u16, Value) {
    let body = json!({"input": [1, 2, 3], "dimensions": 6});
    server.ask("POST", "/v1/embeddings", &body.to_string())
}

#[test]
fn vectors_are_cut_only_where_the_model_or_who_starts_the_server_says_so() {
    let model = model(&json!({}));
    let (status, told) = short_vectors(&Server::of(model.path(), &[]));
    assert_eq!((status, &told["error"]["param"]), (400, &json!("dimensions")), "{told}");
    let (status, told) = short_vectors(&Server::of(model.path(), &["--matryoshka"]));
    assert_eq!(status, 200, "{told}");
    let vector: Vec<f64> = serde_json::from_value(told["data"][0]["embedding"].clone()).unwrap();
    let length = vector.iter().map(|number| number * number).sum::<f64>().sqrt();
    assert!(vector.len() == 6 && (length - 1.0).abs() < 1e-6, "{told}");
}

#[test]
fn what_makes_no_vectors_or_other_ones_is_named() {
    let chat = goldens::checkpoint(CHECKPOINT);
    let server = Server::of(&chat, &[]);
    let (status, told) = server.ask("POST", "/v1/embeddings", r#"{"input": "hi"}"#);
    assert_eq!((status, &told["error"]["code"]), (400, &json!("unsupported")), "{told}");
    let wanted = |directory: &Path, flags: &[&str], words: &str| {
        let mut serve = server::serve_model(directory);
        let output = server::run(serve.args(["--port", "0"]).args(flags));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(words), "{told}");
    };
    wanted(&chat, &["--matryoshka"], "`--matryoshka` has no effect");
    let model = model(&json!({}));
    let mean = json!({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false});
    fs::write(model.path().join("1_Pooling/config.json"), mean.to_string()).unwrap();
    wanted(model.path(), &[], "last token alone");
}
