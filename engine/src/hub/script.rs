//! A hub for tests: a folder of models of a few bytes, and nobody to be asked.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::download::DownloadConfig;
use super::fit::{Machine, Processing, Wish};
use super::places::Places;
use super::remote::{Patience, Remote, RemoteConfig};
use super::token::TokenStore;
use super::{Hub, HubConfig};
use crate::clock::Clock;

/// See the module's words.
pub(crate) struct ScriptedHub {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) clock: Clock,
}

impl ScriptedHub {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: Clock::manual() }
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    /// A whole model called `id`.
    pub(crate) fn add(&self, id: &str) -> PathBuf {
        let directory = self.models().join(id);
        write_model(&directory);
        directory
    }

    /// The hub over what is there now.
    pub(crate) async fn open(&self) -> Hub {
        let places = Places { models: self.models(), hugging_face: Vec::new() };
        let config = HubConfig {
            download: DownloadConfig::new(places),
            machine: Some(Machine {
                name: "a machine".to_owned(),
                processing: Processing::Processor,
                memory_bytes: 16_000_000_000,
                available_bytes: None,
                bandwidth: None,
            }),
            wish: Wish::default(),
            tokens: TokenStore::in_file(self.folder.path().join("token")),
            tokens_everywhere: false,
            program: Some("/bin/false".into()),
        };
        let patience = Patience { attempts_max: 1, ..Patience::default() };
        let remote = RemoteConfig {
            offline: true,
            patience,
            ..RemoteConfig::at("http://127.0.0.1:9").unwrap()
        };
        let remote = Remote::new(remote, self.clock.clone()).unwrap();
        Hub::open(config, remote, self.clock.clone()).await.unwrap()
    }
}

/// Writes a model of one layer.
pub(crate) fn write_model(directory: &Path) {
    let config = json!({
        "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 32,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64,
    });
    let header =
        json!({"model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}});
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    let weights = [&length[..], header.as_bytes(), &[0; 32]].concat();
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("model.safetensors"), weights).unwrap();
    fs::write(directory.join("tokenizer.json"), "{\"model\":{\"vocab\":{}}}").unwrap();
}
