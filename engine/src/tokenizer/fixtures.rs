//! Small tokenizers made in the test, in the styles of real models.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Tokenizer;

/// A model directory holding `tokenizer` and `files`.
pub(super) fn model_dir(tokenizer: &Value, files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &tokenizer.to_string());
    for (name, text) in files {
        write(dir.path(), name, text);
    }
    dir
}

/// Loads `tokenizer` with nothing beside it.
pub(super) fn load(tokenizer: &Value) -> Tokenizer {
    Tokenizer::load(model_dir(tokenizer, &[]).path()).unwrap()
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

/// Byte-level BPE as in GPT-2: ids 0..=255 are the bytes in the order of their characters, then
/// come three merges, two special tokens and a plain added token with characters of its own.
pub(super) fn byte_level() -> Value {
    let mut alphabet: Vec<char> =
        tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut vocab: serde_json::Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    for (id, merged) in ["th", "the", "Ġthe"].iter().enumerate() {
        vocab.insert((*merged).to_owned(), json!(256 + id));
    }
    let step = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [
            added(259, "<|im_start|>", true), added(260, "<|im_end|>", true),
            added(261, "→ now", false),
        ],
        "pre_tokenizer": step, "post_processor": null, "decoder": step,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "vocab": vocab,
            "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"]],
        },
    })
}

/// SentencePiece-like BPE with byte fallback as in Llama 2: three special tokens, the 256 bytes,
/// and a few pieces. `strip` adds the decoder step that drops one leading space.
pub(super) fn byte_fallback(strip: bool) -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "a", "b", "é", "€", "▁a", "▁▁", "ab", "😀"].map(str::to_owned));
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if strip {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "vocab": vocab,
            "merges": [["▁", "a"], ["▁", "▁"], ["a", "b"]],
        },
    })
}

/// A word-level vocabulary behind a decoder whose pieces depend on their neighbours.
pub(super) fn words(decoder: &Value, tokens: &[&str]) -> Value {
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[0]},
    })
}

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special,
    })
}
