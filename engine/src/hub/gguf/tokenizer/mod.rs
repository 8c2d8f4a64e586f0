//! From the vocabulary in a header to `tokenizer.json` and `tokenizer_config.json`.
//!
//! llama.cpp knows two families that matter here: `gpt2` (byte-level BPE with its merges in the
//! file, [`byte_level`]) and `llama` (SentencePiece BPE, whose merges are implied by the scores,
//! [`sentence_piece`]). Both become the BPE model of the `tokenizers` crate.
//!
//! Invariant: every id of the file keeps its token, so ids need no translation anywhere.

mod byte_level;
mod sentence_piece;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::bad_import;
use super::metadata::{Metadata, required};
use crate::error::{Code, Error, Result};

/// What a header's vocabulary becomes.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertedTokenizer {
    /// The bytes of `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// The content of `tokenizer_config.json`, chat template included if there is one.
    pub config: Map<String, Value>,
    /// The ids that the model's configuration repeats.
    pub special: SpecialIds,
    /// Tokens in the vocabulary.
    pub tokens: usize,
}

/// Ids with a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialIds {
    /// Starts a sequence.
    pub bos: Option<usize>,
    /// Each ends a sequence; the first is the tokenizer's `eos_token`.
    pub eos: Vec<usize>,
    /// Fills a batch.
    pub pad: Option<usize>,
    /// Stands for what cannot be encoded.
    pub unknown: Option<usize>,
}

/// Converts the tokenizer that `metadata` describes.
pub fn convert(metadata: &Metadata) -> Result<ConvertedTokenizer> {
    let key = "tokenizer.ggml.model";
    let vocabulary = Vocabulary::read(metadata)?;
    let (model, add_bos_default) = match required(metadata.string(key)?, key)? {
        "gpt2" => byte_level::convert(&vocabulary, metadata)?,
        "llama" => (sentence_piece::convert(&vocabulary, metadata)?, true),
        other => {
            return Err(bad_import(format!("tokenizer model `{other}` is not supported"))
                .with_hint("supported tokenizer models: gpt2, llama"));
        }
    };
    let special = SpecialIds::read(metadata, &vocabulary)?;
    let ends = SequenceEnds {
        bos: metadata.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos_default),
        eos: metadata.boolean("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
    };
    let file = TokenizerFile {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: added_tokens(&vocabulary, &model, &special),
        normalizer: &model.normalizer,
        pre_tokenizer: &model.pre_tokenizer,
        post_processor: post_processor(&vocabulary, &special, ends)?,
        decoder: &model.decoder,
        model: &model.bpe,
    };
    let tokenizer_json = serde_json::to_vec(&file).map_err(|error| {
        Error::new(Code::Internal, format!("failed to write tokenizer.json: {error}"))
    })?;
    let config = tokenizer_config(metadata, &vocabulary, &special, ends)?;
    Ok(ConvertedTokenizer { tokenizer_json, config, special, tokens: vocabulary.tokens.len() })
}

/// What llama.cpp says a token is for (`llama_token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    fn from_code(code: i64) -> Option<Self> {
        Some(match code {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokens by id; all distinct, with as many kinds as tokens.
#[derive(Debug)]
struct Vocabulary<'a> {
    tokens: &'a [String],
    kinds: Vec<TokenKind>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let key = "tokenizer.ggml.tokens";
        let tokens = required(metadata.strings(key)?, key)?;
        let mut seen = HashSet::with_capacity(tokens.len());
        if let Some(token) = tokens.iter().find(|token| !seen.insert(token.as_str())) {
            return Err(bad_import(format!("`{key}` lists token {token:?} twice")));
        }
        Ok(Self { tokens, kinds: read_kinds(metadata, tokens.len())? })
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &'a str, TokenKind)> {
        let kinds = self.kinds.iter().copied();
        self.tokens
            .iter()
            .zip(kinds)
            .enumerate()
            .map(|(id, (token, kind))| (id, token.as_str(), kind))
    }

    /// The id under `key`, checked against the vocabulary.
    fn id(&self, metadata: &Metadata, key: &str) -> Result<Option<usize>> {
        let Some(id) = metadata.count(key)? else {
            return Ok(None);
        };
        match usize::try_from(id).ok().filter(|id| *id < self.tokens.len()) {
            Some(id) => Ok(Some(id)),
            None => Err(bad_import(format!(
                "`{key}` is {id}, but the vocabulary has {} tokens",
                self.tokens.len()
            ))),
        }
    }
}

fn read_kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenKind>> {
    let key = "tokenizer.ggml.token_type";
    let Some(codes) = metadata.integers(key)? else {
        return Ok(vec![TokenKind::Normal; tokens]);
    };
    same_length(key, codes.len(), tokens)?;
    let kind = |(id, code): (usize, &i64)| {
        TokenKind::from_code(*code)
            .ok_or_else(|| bad_import(format!("`{key}` gives token {id} the unknown type {code}")))
    };
    codes.iter().enumerate().map(kind).collect()
}

fn same_length(key: &str, found: usize, tokens: usize) -> Result<()> {
    if found == tokens {
        return Ok(());
    }
    Err(bad_import(format!("`{key}` has {found} items for a vocabulary of {tokens} tokens")))
}

impl SpecialIds {
    fn read(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Self> {
        let id = |name: &str| vocabulary.id(metadata, &format!("tokenizer.ggml.{name}_token_id"));
        let mut eos = vec![required(id("eos")?, "tokenizer.ggml.eos_token_id")?];
        for other in [id("eot")?, id("eom")?].into_iter().flatten() {
            if !eos.contains(&other) {
                eos.push(other);
            }
        }
        let unknown_kind = vocabulary.kinds.iter().position(|kind| *kind == TokenKind::Unknown);
        Ok(Self {
            bos: id("bos")?,
            eos,
            pad: id("padding")?,
            unknown: id("unknown")?.or(unknown_kind),
        })
    }

    fn contains(&self, id: usize) -> bool {
        self.eos.contains(&id) || [self.bos, self.pad, self.unknown].contains(&Some(id))
    }
}

/// Which special tokens encoding adds around a sequence.
#[derive(Debug, Clone, Copy)]
struct SequenceEnds {
    bos: bool,
    eos: bool,
}

/// A family's part of `tokenizer.json`.
#[derive(Debug)]
struct Model<'a> {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    bpe: Bpe<'a>,
}

#[derive(Debug, Serialize)]
struct TokenizerFile<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: &'a Value,
    pre_tokenizer: &'a Value,
    post_processor: Value,
    decoder: &'a Value,
    model: &'a Bpe<'a>,
}

#[derive(Debug, Serialize)]
struct Bpe<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: (),
    unk_token: Option<&'a str>,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "vocabulary_as_map")]
    vocab: Vec<Cow<'a, str>>,
    merges: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Bpe<'a> {
    fn new(vocab: Vec<Cow<'a, str>>, merges: Vec<(Cow<'a, str>, Cow<'a, str>)>) -> Self {
        Self {
            kind: "BPE",
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab,
            merges,
        }
    }
}

fn vocabulary_as_map<S: Serializer>(
    tokens: &[Cow<'_, str>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(tokens.iter().enumerate().map(|(id, token)| (token, id)))
}

#[derive(Debug, Serialize)]
struct AddedToken<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// Tokens that are found in the text before any BPE: the special ones, and those that the model's
/// authors defined unless the model's own vocabulary spells them differently.
fn added_tokens<'a>(
    vocabulary: &Vocabulary<'a>,
    model: &Model<'_>,
    special: &SpecialIds,
) -> Vec<AddedToken<'a>> {
    let added = vocabulary.iter().filter_map(|(id, content, kind)| {
        let is_special =
            matches!(kind, TokenKind::Control | TokenKind::Unknown) || special.contains(id);
        let is_defined = kind == TokenKind::UserDefined && model.bpe.vocab[id] == content;
        (is_special || is_defined).then_some(AddedToken {
            id,
            content,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: is_special,
        })
    });
    added.filter(|token| !token.content.is_empty()).collect()
}

fn post_processor(
    vocabulary: &Vocabulary<'_>,
    special: &SpecialIds,
    ends: SequenceEnds,
) -> Result<Value> {
    if !ends.bos && !ends.eos {
        return Ok(Value::Null);
    }
    let bos = match ends.bos {
        true => Some(required(special.bos, "tokenizer.ggml.bos_token_id")?),
        false => None,
    };
    let eos = ends.eos.then(|| special.eos[0]);
    let around = |sequence: &str, type_id: u32| -> Vec<Value> {
        let token = |id: usize| json!({ "SpecialToken": { "id": vocabulary.tokens[id], "type_id": type_id } });
        let text = json!({ "Sequence": { "id": sequence, "type_id": type_id } });
        bos.map(token).into_iter().chain([text]).chain(eos.map(token)).collect()
    };
    let definitions: Map<String, Value> = bos
        .into_iter()
        .chain(eos)
        .map(|id| {
            let token = &vocabulary.tokens[id];
            (token.clone(), json!({ "id": token, "ids": [id], "tokens": [token] }))
        })
        .collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": definitions,
    }))
}

fn tokenizer_config(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    special: &SpecialIds,
    ends: SequenceEnds,
) -> Result<Map<String, Value>> {
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| config.insert(key.to_owned(), value);
    // The class that takes tokenizer.json as it is, instead of rebuilding it by model type.
    put("tokenizer_class", "PreTrainedTokenizerFast".into());
    put("add_bos_token", ends.bos.into());
    put("add_eos_token", ends.eos.into());
    let roles = [
        ("bos_token", special.bos),
        ("eos_token", special.eos.first().copied()),
        ("pad_token", special.pad),
        ("unk_token", special.unknown),
    ];
    for (role, id) in roles {
        if let Some(id) = id {
            put(role, vocabulary.tokens[id].as_str().into());
        }
    }
    put("clean_up_tokenization_spaces", false.into());
    if let Some(template) = metadata.string("tokenizer.chat_template")? {
        put("chat_template", template.into());
    }
    Ok(config)
}
