//! `gpt2` vocabularies: byte-level BPE with the merges in the file.
//!
//! The file names, but does not contain, the rule by which text is cut before BPE; each name that
//! we know stands for the rule of the model that brought it (llama.cpp's `llama-vocab.cpp` lists
//! the same ones). An unknown name is refused: a guess would silently give other ids.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::bad_import;
use super::super::metadata::{Metadata, required};
use super::{Bpe, Model, Vocabulary};
use crate::error::Result;

/// Llama 3's rule, as in its `tokenizer.json`.
const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's rule, as in its `tokenizer.json`.
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Converts the vocabulary; also says whether a sequence starts with BOS when the file is silent.
pub(super) fn convert<'a>(
    vocabulary: &Vocabulary<'a>,
    metadata: &'a Metadata,
) -> Result<(Model<'a>, bool)> {
    let rule = CutRule::named(metadata.string("tokenizer.ggml.pre")?.unwrap_or("default"))?;
    let vocab = vocabulary.tokens.iter().map(|token| Cow::Borrowed(token.as_str())).collect();
    let mut bpe = Bpe::new(vocab, merges(vocabulary, metadata)?);
    bpe.ignore_merges = rule == CutRule::Llama3;
    let model = Model {
        normalizer: rule.normalizer(),
        pre_tokenizer: rule.pre_tokenizer(),
        decoder: byte_level(true),
        bpe,
    };
    Ok((model, rule == CutRule::Llama3))
}

/// How text is cut into the pieces that BPE works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CutRule {
    Gpt2,
    SmolLm,
    Llama3,
    Qwen2,
}

impl CutRule {
    fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "default" | "gpt-2" | "gpt2" => Self::Gpt2,
            "smollm" => Self::SmolLm,
            "llama-bpe" | "llama3" | "llama-v3" => Self::Llama3,
            "qwen2" => Self::Qwen2,
            other => {
                return Err(bad_import(format!("pre-tokenizer `{other}` is not supported"))
                    .with_hint(
                        "supported pre-tokenizers: default, gpt-2, smollm, llama-bpe, qwen2",
                    ));
            }
        })
    }

    fn normalizer(self) -> Value {
        match self {
            Self::Qwen2 => json!({ "type": "NFC" }),
            Self::Gpt2 | Self::SmolLm | Self::Llama3 => Value::Null,
        }
    }

    fn pre_tokenizer(self) -> Value {
        match self {
            Self::Gpt2 => byte_level(true),
            Self::SmolLm => sequence(&[
                json!({ "type": "Digits", "individual_digits": true }),
                byte_level(true),
            ]),
            Self::Llama3 => sequence(&[split(LLAMA3_PATTERN), byte_level(false)]),
            Self::Qwen2 => sequence(&[split(QWEN2_PATTERN), byte_level(false)]),
        }
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex })
}

fn split(pattern: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
}

fn sequence(steps: &[Value; 2]) -> Value {
    json!({ "type": "Sequence", "pretokenizers": steps })
}

/// The merges, each checked to join two tokens into a third: a tokenizer with any other cannot be
/// loaded.
fn merges<'a>(
    vocabulary: &Vocabulary<'a>,
    metadata: &'a Metadata,
) -> Result<Vec<(Cow<'a, str>, Cow<'a, str>)>> {
    let key = "tokenizer.ggml.merges";
    let known: HashSet<&str> = vocabulary.tokens.iter().map(String::as_str).collect();
    let pair = |(index, merge): (usize, &'a String)| {
        merge
            .split_once(' ')
            .filter(|(left, right)| {
                known.contains(left)
                    && known.contains(right)
                    && known.contains(format!("{left}{right}").as_str())
            })
            .map(|(left, right)| (Cow::Borrowed(left), Cow::Borrowed(right)))
            .ok_or_else(|| {
                bad_import(format!(
                    "`{key}` {index} is {merge:?}, which does not join two tokens into a third"
                ))
            })
    };
    required(metadata.strings(key)?, key)?.iter().enumerate().map(pair).collect()
}
