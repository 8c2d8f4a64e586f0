//! Model directories that `serve` refuses, each by one line that names what does not fit, exit code 2.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use slipstream_tests::{demo, goldens, server};

const TENSOR: &str = "model.layers.1.mlp.down_proj.weight";

/// A copy of the tiny Llama, to be damaged.
struct Copy(tempfile::TempDir);

impl Copy {
    fn new() -> Self {
        let copy = tempfile::tempdir().unwrap();
        let tiny = goldens::checkpoint("llama-tiny");
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
        {
            fs::copy(tiny.join(name), copy.path().join(name)).unwrap();
        }
        Self(copy)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let text = fs::read_to_string(self.path(name)).unwrap();
        let mut json: Value = serde_json::from_str(&text).unwrap();
        edit(&mut json);
        fs::write(self.path(name), json.to_string()).unwrap();
    }

    /// Rewrites the weights: `edit` gets each tensor's name and bytes and returns its new name.
    fn edit_weights(&self, edit: impl Fn(&str, &mut [u8]) -> Vec<String>) {
        let file = fs::read(self.path("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let mut edited: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for (name, view) in tensors.iter() {
            let mut bytes = view.data().to_vec();
            for name in edit(name, &mut bytes) {
                edited.push((name, view.dtype(), view.shape().to_vec(), bytes.clone()));
            }
        }
        let views = edited.iter().map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &self.path("model.safetensors")).unwrap();
    }

    #[track_caller]
    fn is_refused(&self, words: &[&str]) {
        let mut command = Command::new(demo::binary());
        command.args(["serve", "--port", "0", "--model"]).arg(self.0.path());
        let output = server::run(&mut command);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        for word in words {
            assert!(told.contains(word), "`{word}` is not in `{told}`");
        }
    }
}

#[test]
fn a_config_that_is_no_json_lacks_a_field_or_contradicts_itself_is_named() {
    let broken = Copy::new();
    fs::write(broken.path("config.json"), "{").unwrap();
    broken.is_refused(&["config.json"]);
    for field in ["model_type", "hidden_size", "num_hidden_layers", "vocab_size", "rms_norm_eps"] {
        let copy = Copy::new();
        copy.edit_json("config.json", |config| {
            config.as_object_mut().unwrap().remove(field);
        });
        copy.is_refused(&[&format!("`{field}`")]);
    }
    for (field, value, words) in [
        ("model_type", json!("llama9"), ["llama9", "supported: "]),
        ("num_attention_heads", json!(3), ["3 ", "heads"]),
        ("num_key_value_heads", json!(3), ["3 ", "heads"]),
        ("hidden_size", json!("wide"), ["hidden_size", "wide"]),
        ("num_hidden_layers", json!(-1), ["num_hidden_layers", "-1"]),
        ("intermediate_size", json!(130), ["mlp", "130"]),
    ] {
        let copy = Copy::new();
        copy.edit_json("config.json", |config| config[field] = value);
        copy.is_refused(&words);
    }
}

#[test]
fn a_tensor_that_is_missing_left_over_or_full_of_nan_is_named() {
    let missing = Copy::new();
    missing.edit_weights(|name, _| (name != TENSOR).then(|| name.to_owned()).into_iter().collect());
    missing.is_refused(&[TENSOR, "missing"]);
    let surplus = Copy::new();
    surplus.edit_weights(|name, _| match name {
        TENSOR => vec![TENSOR.to_owned(), "model.layers.9.mlp.down_proj.weight".to_owned()],
        other => vec![other.to_owned()],
    });
    surplus.is_refused(&["model.layers.9.mlp.down_proj.weight", "config"]);
    let damaged = Copy::new();
    damaged.edit_weights(|name, bytes| {
        if name == TENSOR {
            // A bf16 NaN in the middle.
            let middle = bytes.len() / 4 * 2;
            bytes[middle..middle + 2].copy_from_slice(&0x7FC0_u16.to_le_bytes());
        }
        vec![name.to_owned()]
    });
    damaged.is_refused(&[TENSOR, "NaN"]);
}

#[test]
fn a_tokenizer_that_knows_more_than_the_embedding_is_refused_with_both_numbers() {
    let copy = Copy::new();
    copy.edit_json("tokenizer.json", |tokenizer| {
        tokenizer["model"]["vocab"]["unheard-of"] = json!(1000);
    });
    copy.is_refused(&["1000", "288"]);
}

#[test]
fn a_tokenizer_that_is_missing_or_no_json_is_named() {
    let missing = Copy::new();
    fs::remove_file(missing.path("tokenizer.json")).unwrap();
    missing.is_refused(&["tokenizer.json"]);
    let broken = Copy::new();
    fs::write(broken.path("tokenizer.json"), "[]").unwrap();
    broken.is_refused(&["tokenizer.json"]);
}
