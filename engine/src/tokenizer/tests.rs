use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::fixtures::{byte_fallback, byte_level, load, model_dir, words};
use super::*;

static BYTE_LEVEL: LazyLock<Tokenizer> = LazyLock::new(|| load(&byte_level()));
static FALLBACK: LazyLock<Tokenizer> = LazyLock::new(|| load(&byte_fallback(true)));
static FALLBACK_UNSTRIPPED: LazyLock<Tokenizer> = LazyLock::new(|| load(&byte_fallback(false)));

/// What the detokenizer emits for each id, and at the end.
fn emitted(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer();
    let mut texts: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    texts.push(detokenizer.finish().unwrap());
    texts
}

/// The bytes of a byte-fallback text, gathered without streaming.
fn fallback_bytes(ids: &[u32]) -> Vec<u8> {
    let piece = |id: u32| match id {
        0..=2 => Vec::new(),
        id if FALLBACK.0.mark == Some(id) => Vec::new(),
        3..=258 => vec![u8::try_from(id - 3).unwrap()],
        id => FALLBACK.0.inner.id_to_token(id).unwrap_or_default().replace('▁', " ").into_bytes(),
    };
    ids.iter().flat_map(|&id| piece(id)).collect()
}

proptest! {
    #[test]
    fn byte_level_pieces_concatenate_to_the_whole_for_any_ids(
        ids in prop::collection::vec(0_u32..264, 0..60),
    ) {
        let whole = BYTE_LEVEL.decode_whole(&ids).unwrap();
        prop_assert_eq!(&BYTE_LEVEL.decode(&ids).unwrap(), &whole);
        prop_assert_eq!(emitted(&BYTE_LEVEL, &ids).concat(), whole);
    }

    #[test]
    fn byte_fallback_pieces_concatenate_to_the_whole_for_any_ids(
        ids in prop::collection::vec(0_u32..270, 0..60),
    ) {
        let whole = String::from_utf8_lossy(&fallback_bytes(&ids)).into_owned();
        prop_assert_eq!(&emitted(&FALLBACK_UNSTRIPPED, &ids).concat(), &whole);
        let stripped = whole.strip_prefix(' ').unwrap_or(&whole);
        prop_assert_eq!(emitted(&FALLBACK, &ids).concat(), stripped);
        prop_assert_eq!(FALLBACK.decode(&ids).unwrap(), stripped);
    }

    #[test]
    fn whole_characters_decode_as_the_tokenizers_crate_decodes_them(
        text in "[ ab\u{0}-\u{7f}éß€→😀]{0,40}",
    ) {
        for tokenizer in [&*BYTE_LEVEL, &*FALLBACK, &*FALLBACK_UNSTRIPPED] {
            let ids = tokenizer.encode(&text, true).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), tokenizer.decode_whole(&ids).unwrap());
        }
    }

    #[test]
    fn any_text_survives_encoding_and_decoding(text in any::<String>()) {
        let ids = BYTE_LEVEL.encode(&text, false).unwrap();
        prop_assert_eq!(&BYTE_LEVEL.decode(&ids).unwrap(), &text);
        let ids = FALLBACK.encode(&text, false).unwrap();
        prop_assert_eq!(FALLBACK.decode(&ids).unwrap(), text.replace('▁', " "));
    }

    #[test]
    fn half_a_character_is_never_shown(text in "[aé€😀]{1,20}", split in 0_usize..80) {
        let ids = BYTE_LEVEL.encode(&text, false).unwrap();
        let mut detokenizer = BYTE_LEVEL.detokenizer();
        let mut shown = String::new();
        for &id in &ids[..split.min(ids.len())] {
            shown.push_str(&detokenizer.push(id).unwrap());
            prop_assert!(text.starts_with(&shown));
        }
    }

    #[test]
    fn decoders_that_look_at_neighbours_stream_to_the_whole_too(
        ids in prop::collection::vec(0_u32..8, 0..40),
    ) {
        for tokenizer in &*NEIGHBOURS {
            prop_assert!(tokenizer.0.pieces.is_none());
            let whole = tokenizer.decode_whole(&ids).unwrap();
            prop_assert_eq!(emitted(tokenizer, &ids).concat(), whole);
        }
    }
}

static NEIGHBOURS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let tokens = ["[UNK]", "##a", "b", ".", "▁c", "d</w>", "e", "é"];
    let decoders = [
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "BPEDecoder", "suffix": "</w>"}),
        json!(null),
    ];
    decoders.iter().map(|decoder| load(&words(decoder, &tokens))).collect()
});

#[test]
fn an_unfinished_character_waits_and_ends_as_one_replacement() {
    let ids = BYTE_LEVEL.encode("é😀", false).unwrap();
    assert_eq!(emitted(&BYTE_LEVEL, &ids), ["", "é", "", "", "", "😀", ""]);
    assert_eq!(emitted(&BYTE_LEVEL, &ids[..5]), ["", "é", "", "", "", "\u{FFFD}"]);
    assert_eq!(emitted(&FALLBACK, &[3 + 0xE2, 3 + 0x82, 260]), ["", "", "\u{FFFD}a", ""]);
}

#[test]
fn a_finished_detokenizer_starts_a_new_text() {
    let mut detokenizer = FALLBACK.detokenizer();
    for _ in 0..2 {
        assert_eq!(detokenizer.push(264).unwrap(), "a");
        assert_eq!(detokenizer.push(264).unwrap(), " a");
        assert_eq!(detokenizer.finish().unwrap(), "");
    }
}

#[test]
fn special_tokens_are_read_in_prompts_and_skipped_in_text() {
    let ids = BYTE_LEVEL.encode("<|im_start|>the the→ now<|im_end|>", false).unwrap();
    assert_eq!(ids, [259, 257, 258, 261, 260]);
    assert_eq!(BYTE_LEVEL.decode(&ids).unwrap(), "the the→ now");
    assert_eq!(BYTE_LEVEL.vocab_size(), 262);
}

#[test]
fn the_beginning_of_text_is_added_only_when_asked_for() {
    assert_eq!(FALLBACK.encode("a", true).unwrap(), [1, 264]);
    assert_eq!(FALLBACK.encode("a", false).unwrap(), [264]);
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let mut tokenizer = byte_level();
    tokenizer["truncation"] = json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    });
    tokenizer["padding"] = json!({
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    });
    assert_eq!(load(&tokenizer).encode("abc", true).unwrap().len(), 3);
}

#[test]
fn stop_tokens_come_from_every_file_that_names_one() {
    let files = [
        ("tokenizer_config.json", r#"{"eos_token": {"content": "<|im_end|>"}}"#),
        ("config.json", r#"{"eos_token_id": 7, "text_config": {"eos_token_id": 8}}"#),
        ("generation_config.json", r#"{"eos_token_id": [260, 3]}"#),
    ];
    let dir = model_dir(&byte_level(), &files);
    assert_eq!(*Tokenizer::load(dir.path()).unwrap().stop_tokens(), [3, 7, 8, 260]);

    let files = [
        ("tokenizer_config.json", r#"{"eos_token": "<|im_end|>"}"#),
        ("config.json", r#"{"eos_token_id": null}"#),
    ];
    let dir = model_dir(&byte_level(), &files);
    assert_eq!(*Tokenizer::load(dir.path()).unwrap().stop_tokens(), [260]);
    assert!(BYTE_LEVEL.stop_tokens().is_empty());
}

#[test]
fn chat_templates_are_found_in_transformers_order() {
    let rendered = |files: &[(&str, &str)]| {
        let dir = model_dir(&byte_level(), files);
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let template = tokenizer.chat_template()?;
        Some(template.render(&[json!({"role": "user"})], &ChatOptions::default()).unwrap())
    };
    let jinja = ("chat_template.jinja", "jinja");
    let config = (
        "tokenizer_config.json",
        r#"{"chat_template": "config {{ bos_token }}", "bos_token": {"content": "<s>"}}"#,
    );
    let named = (
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "named"}]}"#,
    );
    let processor = ("chat_template.json", r#"{"chat_template": "processor"}"#);
    assert_eq!(rendered(&[jinja, config, processor]).as_deref(), Some("jinja"));
    assert_eq!(rendered(&[config, processor]).as_deref(), Some("config <s>"));
    assert_eq!(rendered(&[named]).as_deref(), Some("named"));
    assert_eq!(rendered(&[processor]).as_deref(), Some("processor"));
    assert_eq!(rendered(&[("tokenizer_config.json", r#"{"chat_template": null}"#)]), None);
}

#[test]
fn a_missing_or_corrupt_file_is_a_bad_model_that_names_it() {
    let check = |dir: &Path, file: &str| {
        let error = Tokenizer::load(dir).unwrap_err();
        assert_eq!(error.code(), Code::BadModel);
        assert!(error.message().contains(file), "{error}");
    };
    check(tempfile::tempdir().unwrap().path(), "tokenizer.json");
    let corrupt = [
        ("tokenizer.json", r#"{"model": 1}"#),
        ("tokenizer.json", r#"{"version": "1.0", "trunc"#),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", r#"{"chat_template": 7}"#),
        ("tokenizer_config.json", r#"{"chat_template": [{"name": "default"}]}"#),
        ("tokenizer_config.json", r#"{"chat_template": "{% for %}"}"#),
        ("config.json", "{"),
        ("config.json", r#"{"eos_token_id": "x"}"#),
        ("generation_config.json", r#"{"eos_token_id": [1, -2]}"#),
        ("chat_template.jinja", "{{ 'never closed"),
        ("chat_template.json", "{}}"),
    ];
    for file in corrupt {
        check(model_dir(&byte_level(), &[file]).path(), file.0);
    }
}

/// Special tokens, an added token that looks like one, and one that does not.
fn spellings() -> impl Strategy<Value = String> {
    let pieces = vec![
        "<|im_start|>",
        "<|im_end|>",
        "→ now",
        "<",
        "|",
        "im_end",
        ">",
        "the",
        " ",
        "é",
        "\u{FDD0}\u{FDD1}",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn spelt_control_tokens_are_plain_text(text in spellings()) {
        let control = ControlTokens::new(&BYTE_LEVEL, &[]);
        let ids = BYTE_LEVEL.encode(&control.break_up(&text), false).unwrap();
        prop_assert!(!ids.iter().any(|id| [259, 260].contains(id)), "{:?}", ids);
        prop_assert!(ids.iter().all(|id| (*id as usize) < BYTE_LEVEL.vocab_size()));
        prop_assert_eq!(BYTE_LEVEL.decode(&ids).unwrap(), text.replace("\u{FDD0}\u{FDD1}", ""));
    }

    #[test]
    fn shown_special_tokens_are_text_between_texts(ids in prop::collection::vec(0_u32..262, 0..40)) {
        let mut detokenizer = BYTE_LEVEL.detokenizer_showing(vec![260].into());
        let mut text: String = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
        text.push_str(&detokenizer.finish().unwrap());
        let parts = ids.split(|id| *id == 260).map(|part| BYTE_LEVEL.decode(part).unwrap());
        prop_assert_eq!(text, parts.collect::<Vec<_>>().join("<|im_end|>"));
    }
}

#[test]
fn text_without_spellings_is_untouched_and_added_tokens_that_are_none_stay() {
    let control = ControlTokens::new(&BYTE_LEVEL, &[]);
    for text in ["", "plain < text |>", "→ now", "<|im_start"] {
        assert!(matches!(control.break_up(text), std::borrow::Cow::Borrowed(_)), "{text}");
    }
    let also = ControlTokens::new(&BYTE_LEVEL, &["→ now"]);
    let ids = BYTE_LEVEL.encode(&also.break_up("a→ now"), false).unwrap();
    assert!(!ids.contains(&261));
    assert_eq!(BYTE_LEVEL.decode(&ids).unwrap(), "a→ now");
    let without = also.without(&["<|im_end|>"]);
    assert_eq!(BYTE_LEVEL.encode(&without.break_up("<|im_end|>"), false).unwrap(), [260]);
}

#[test]
fn spelt_control_tokens_are_plain_text_to_other_tokenizers_too() {
    for tokenizer in [&*FALLBACK, &*FALLBACK_UNSTRIPPED] {
        let control = ControlTokens::new(tokenizer, &[]);
        let ids = tokenizer.encode(&control.break_up("a</s>b"), true).unwrap();
        assert_eq!(ids.iter().filter(|id| **id <= 2).count(), 1, "{ids:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap().replace(' ', ""), "a</s>b");
    }
}

#[test]
fn the_mark_survives_templates_that_write_json_in_ascii() {
    let files = [(
        "tokenizer_config.json",
        r#"{"chat_template": "{{ messages[0].content | tojson(ensure_ascii=true) }}"}"#,
    )];
    let dir = model_dir(&byte_level(), &files);
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let control = ControlTokens::new(&tokenizer, &[]);
    let content = control.break_up("é<|im_end|>");
    let template = tokenizer.chat_template().unwrap();
    let text = template.render(&[json!({"content": content})], &ChatOptions::default()).unwrap();
    let ids = tokenizer.encode(&text, false).unwrap();
    assert!(!ids.contains(&260));
    assert_eq!(tokenizer.decode(&ids).unwrap(), "\"\\u00e9<|im_end|>\"");
}

#[test]
fn an_id_that_a_token_has_is_no_place_for_the_mark() {
    let mut tokenizer = byte_level();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocab.insert("hole".to_owned(), json!(vocab.len() + 4));
    let tokenizer = load(&tokenizer);
    assert_eq!(tokenizer.0.mark, None);
    let control = ControlTokens::new(&tokenizer, &[]);
    let ids = tokenizer.encode(&control.break_up("<|im_end|>"), false).unwrap();
    assert!(!ids.contains(&260));
}
