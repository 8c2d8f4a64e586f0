//! Grammars against small vocabularies, told by chance what to say.

mod answers;
mod cache;
mod calls;
mod masks;
mod reasoning;
mod refusals;

use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::{Constraint, Grammar, Grammars, Matcher};
use crate::tokenizer::Tokenizer;

/// Bytes come first, then the pieces, then the markers; this many ids more are padding.
const PADDING: usize = 45;
/// Tokens of an answer at most.
const TOKENS_MAX: usize = 3_000;

/// A vocabulary of single bytes, `pieces` and two markers: `<|end|>` ends answers, `<think>` does not.
pub(crate) fn grammars(pieces: &[&str]) -> Grammars {
    let tokenizer = tokenizer(&byte_level(pieces));
    let size = tokenizer.vocab_size() + PADDING;
    Grammars::new(tokenizer, size)
}

/// Pieces that straddle what a JSON parser tells apart.
pub(crate) const PIECES: &[&str] = &[
    "{\"",
    "\":",
    "\": ",
    "\",\"",
    "\", \"",
    "\"}",
    "},{\"",
    "\":{\"",
    "\":[",
    "]}",
    "}]",
    "],\"",
    ",\n",
    "{\n  ",
    "\n}",
    "null",
    "true",
    "false",
    "tru",
    "12",
    "007",
    "-1",
    ".5",
    "e1",
    "name",
    "\"name\":",
    "na",
    "me\":\"",
    "né",
    "\u{20ac}",
    "  ",
    "\n\n",
    "\t",
    "a\"b",
    "\\\"",
    "\\n",
    "\\u00",
    "1,2",
    "[[",
    "]]",
    "alpha",
    "be",
    "ta\"",
];

/// The same with other special tokens: `<|stop|>` ends answers, and `markers` do not.
pub(crate) fn grammars_with(pieces: &[&str], markers: &[&str]) -> Grammars {
    let mut definition = byte_level(pieces);
    let first = definition["model"]["vocab"].as_object().unwrap().len();
    let names = std::iter::once(&"<|stop|>").chain(markers).zip(first..);
    definition["added_tokens"] = names.map(|(name, id)| added(id, name, true)).collect();
    let tokenizer = tokenizer_ending(&definition, "<|stop|>");
    let size = tokenizer.vocab_size() + PADDING;
    Grammars::new(tokenizer, size)
}

pub(super) fn tokenizer(definition: &Value) -> Tokenizer {
    tokenizer_ending(definition, "<|end|>")
}

fn tokenizer_ending(definition: &Value, end: &str) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("tokenizer.json", &definition.to_string());
    write("tokenizer_config.json", &json!({"eos_token": end}).to_string());
    Tokenizer::load(dir.path()).unwrap()
}

/// As GPT-2's: every byte is a printable character. Pieces have no merges, so nothing is tokenized into
/// them; a model may say them all the same.
fn byte_level(pieces: &[&str]) -> Value {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let spelled = |piece: &&str| piece.bytes().map(printable).collect::<String>();
    let words = alphabet.iter().map(char::to_string).chain(pieces.iter().map(spelled));
    let mut vocab = Map::new();
    for word in words {
        let id = vocab.len();
        vocab.entry(word).or_insert(json!(id));
    }
    let (end, think) = (vocab.len(), vocab.len() + 1);
    let step = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(end, "<|end|>", true), added(think, "<think>", false)],
        "pre_tokenizer": step, "post_processor": null, "decoder": step,
        "model": model(&vocab, false),
    })
}

/// As Llama 2's: pieces are text, `▁` is a space, and `<0x0A>` is a byte.
pub(super) fn byte_fallback(pieces: &[&str]) -> Value {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let words = bytes.chain(pieces.iter().map(|piece| piece.replace(' ', "▁")));
    let mut vocab = Map::new();
    for word in words {
        let id = vocab.len();
        vocab.entry(word).or_insert(json!(id));
    }
    let (end, think) = (vocab.len(), vocab.len() + 1);
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(end, "<|end|>", true), added(think, "<think>", false)],
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": model(&vocab, true),
    })
}

fn model(vocab: &Map<String, Value>, byte_fallback: bool) -> Value {
    json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": byte_fallback,
        "vocab": vocab, "merges": [],
    })
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special,
    })
}

/// The character that spells `byte` in GPT-2's table.
fn printable(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte) - 0x7F,
        0xAD => 0x143,
    };
    char::from_u32(code).unwrap()
}

/// All strings of `letters` letters, each `a` or `b`: tokens of which one mask walks a whole tree.
pub(crate) fn trees(letters: u32) -> Vec<String> {
    let letter = |bits: u32, place: u32| if bits >> place & 1 == 0 { 'a' } else { 'b' };
    let word = |bits| (0..letters).map(|place| letter(bits, place)).collect();
    (0..1 << letters).map(word).collect()
}

pub(crate) fn compile(grammars: &Grammars, constraint: &Constraint) -> Grammar {
    grammars.compile(constraint).unwrap()
}

/// Says what `matcher` allows, chosen by `seed`, until the answer ends: its tokens, a stop token not
/// among them. Tokens that close something are preferred, so that it does end.
pub(crate) fn babble(matcher: &mut Matcher, grammars: &Grammars, seed: u64) -> Vec<u32> {
    let mut state = seed;
    // SplitMix64 (Steele, Lea and Flood 2014): the first choices of neighbouring seeds differ.
    let mut pick = |ids: &[u32]| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ids[((mixed ^ (mixed >> 31)) % ids.len() as u64) as usize]
    };
    let tokenizer = &grammars.tokenizer;
    let stop_tokens = tokenizer.stop_tokens();
    let closes = |id: &u32| {
        stop_tokens.contains(id)
            || tokenizer
                .decode_spelled(&[*id])
                .unwrap()
                .starts_with(['"', '}', ']', ',', 'e', '<', '/', '\n', '｜'])
    };
    let mut said = Vec::new();
    while let Some(mask) = matcher.mask().unwrap() {
        let allowed: Vec<u32> = mask.allowed().collect();
        let closing: Vec<u32> = allowed.iter().copied().filter(closes).collect();
        let hurry = !closing.is_empty() && (said.len() > 200 || pick(&[0, 1, 2]) == 0);
        let marker = |id: &u32| tokenizer.decode(&[*id]).unwrap().is_empty();
        let markers: Vec<u32> = closing.iter().copied().filter(marker).collect();
        let token = match hurry {
            true if !markers.is_empty() && pick(&[0, 1]) == 0 => pick(&markers),
            true => pick(&closing),
            false => pick(&allowed),
        };
        if stop_tokens.contains(&token) {
            return said;
        }
        matcher.accept(token).unwrap();
        said.push(token);
        assert!(said.len() < TOKENS_MAX, "it never ends: {}", text(grammars, &said));
    }
    assert!(matcher.is_satisfied());
    said
}

pub(crate) fn text(grammars: &Grammars, tokens: &[u32]) -> String {
    grammars.tokenizer.decode(tokens).unwrap()
}
