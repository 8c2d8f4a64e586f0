//! `llama` vocabularies: SentencePiece BPE, whose merges are implied by the tokens' scores.
//!
//! SentencePiece joins, again and again, the two neighbours whose union has the best score. A BPE
//! model with ranked merges does the same if a token's merges are ranked by its score: every way to
//! cut the token in two known pieces is a merge, longer left pieces first, as transformers'
//! `generate_merges` orders them.
//!
//! A **run** is a token of nothing but spaces. Tokenizers spell spaces `▁`, while llama.cpp's
//! converter writes authors' runs with real spaces; they are spelled back and merged before all
//! else, as in Gemma's own `tokenizer.json`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use super::super::metadata::{Metadata, required};
use super::{Bpe, Model, TokenKind, Vocabulary, same_length};
use crate::error::Result;

/// How SentencePiece spells a space.
const SPACE: &str = "\u{2581}";

pub(super) fn convert<'a>(
    vocabulary: &Vocabulary<'a>,
    metadata: &'a Metadata,
) -> Result<Model<'a>> {
    let key = "tokenizer.ggml.scores";
    let scores = required(metadata.floats(key)?, key)?;
    same_length(key, scores.len(), vocabulary.tokens.len())?;
    let prefixed = metadata.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let runs = author_runs(vocabulary);
    let vocab = spelling(vocabulary, &runs);
    let merges = merges(&vocab, &merge_order(vocabulary, scores, &runs));
    let mut bpe = Bpe::new(vocab, merges);
    bpe.unk_token = vocabulary
        .iter()
        .find_map(|(_, token, kind)| (kind == TokenKind::Unknown).then_some(token))
        .or(vocabulary
            .id(metadata, "tokenizer.ggml.unknown_token_id")?
            .map(|id| vocabulary.tokens[id].as_str()));
    bpe.fuse_unk = true;
    bpe.byte_fallback = vocabulary.kinds.contains(&TokenKind::Byte);
    Ok(Model {
        normalizer: normalizer(prefixed),
        pre_tokenizer: Value::Null,
        decoder: decoder(prefixed),
        bpe,
    })
}

/// Spaces become `▁`, after one more is put in front if the model was trained so.
fn normalizer(prefixed: bool) -> Value {
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    match prefixed {
        false => replace,
        true => json!({
            "type": "Sequence",
            "normalizers": [{ "type": "Prepend", "prepend": SPACE }, replace],
        }),
    }
}

/// The two forms that mlx-lm recognises as SentencePiece's.
fn decoder(prefixed: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefixed {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// The ids of the authors' runs by their length in spaces, as far as each can be made from the one
/// before and a single space.
fn author_runs(vocabulary: &Vocabulary<'_>) -> BTreeMap<usize, usize> {
    let known: HashSet<&str> = vocabulary.tokens.iter().map(String::as_str).collect();
    let is_run = |token: &str| token.len() > 1 && token.bytes().all(|byte| byte == b' ');
    let mut runs: BTreeMap<usize, usize> = vocabulary
        .iter()
        .filter(|(_, token, kind)| {
            *kind == TokenKind::UserDefined
                && is_run(token)
                && !known.contains(SPACE.repeat(token.len()).as_str())
        })
        .map(|(id, token, _)| (token.len(), id))
        .collect();
    if !known.contains(SPACE) {
        return BTreeMap::new();
    }
    let reachable = (2..).take_while(|length| runs.contains_key(length)).count() + 2;
    runs.split_off(&reachable);
    runs
}

fn spelling<'a>(vocabulary: &Vocabulary<'a>, runs: &BTreeMap<usize, usize>) -> Vec<Cow<'a, str>> {
    let mut vocab: Vec<Cow<'a, str>> =
        vocabulary.tokens.iter().map(|token| Cow::Borrowed(token.as_str())).collect();
    for (length, id) in runs {
        vocab[*id] = Cow::Owned(SPACE.repeat(*length));
    }
    vocab
}

/// The ids of the tokens that merging can make, best first.
fn merge_order(
    vocabulary: &Vocabulary<'_>,
    scores: &[f32],
    runs: &BTreeMap<usize, usize>,
) -> Vec<usize> {
    let mut normal: Vec<usize> = vocabulary
        .iter()
        .filter_map(|(id, _, kind)| (kind == TokenKind::Normal).then_some(id))
        .collect();
    normal.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]));
    runs.values().copied().chain(normal).collect()
}

fn merges<'a>(vocab: &[Cow<'a, str>], order: &[usize]) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
    let pieces: HashSet<&str> = order.iter().map(|id| vocab[*id].as_ref()).collect();
    let mut merges = Vec::with_capacity(order.len() * 2);
    for id in order {
        let token = &vocab[*id];
        for (cut, _) in token.char_indices().skip(1).collect::<Vec<_>>().into_iter().rev() {
            let (left, right) = token.split_at(cut);
            if pieces.contains(left) && pieces.contains(right) {
                merges.push(halves(token, cut));
            }
        }
    }
    merges
}

fn halves<'a>(token: &Cow<'a, str>, cut: usize) -> (Cow<'a, str>, Cow<'a, str>) {
    match token {
        Cow::Borrowed(token) => (Cow::Borrowed(&token[..cut]), Cow::Borrowed(&token[cut..])),
        Cow::Owned(token) => {
            (Cow::Owned(token[..cut].to_owned()), Cow::Owned(token[cut..].to_owned()))
        }
    }
}
