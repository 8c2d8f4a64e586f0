//! Grammars over a vocabulary of 61 tokens, as many as the scripted model can say.

use std::sync::OnceLock;

use serde_json::{Map, Value, json};
use slipstream_engine::grammar::{
    Constraint, Grammar, Grammars, Reasoning, ReasoningStart, Workers,
};
use slipstream_engine::tokenizer::Tokenizer;

/// Single characters, and pieces that straddle the parts of JSON.
const PIECES: [&str; 59] = [
    "{", "}", "[", "]", "\"", ":", ",", "a", "b", "c", "e", "f", "k", "l", "n", "o", "r", "s", "t",
    "u", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", " ", "\n", "-", ".", "<", "/", ">",
    "{\"", "\":", "\",\"", "\"}", "],", "}]", "},{\"", "\": ", "\":\"", ", ", "true", "false",
    "null", "nu", "12", "00", "ab", "co", "\\\"", "\\n", "\n  ", "k\"",
];

/// A marker that is no text.
pub const THINK: u32 = 59;
/// Ends an answer.
pub const END: u32 = 60;

/// The tokenizer: byte-level, with those pieces and two markers.
pub fn tokenizer() -> Tokenizer {
    let vocab: Map<String, Value> =
        PIECES.iter().enumerate().map(|(id, piece)| (spelled(piece), json!(id))).collect();
    assert_eq!(vocab.len(), PIECES.len(), "a piece is there twice");
    let added = |id: u32, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        })
    };
    let step = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    let definition = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(THINK, "<think>", false), added(END, "<|end|>", true)],
        "pre_tokenizer": step, "post_processor": null, "decoder": step,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": [],
        },
    });
    let directory = tempfile::tempdir().expect("a directory can be made");
    let write = |name: &str, text: String| {
        std::fs::write(directory.path().join(name), text).expect("a file can be written");
    };
    write("tokenizer.json", definition.to_string());
    write("tokenizer_config.json", json!({"eos_token": "<|end|>"}).to_string());
    Tokenizer::load(directory.path()).expect("the tokenizer is well formed")
}

/// The piece in the letters of a byte-level vocabulary.
fn spelled(piece: &str) -> String {
    piece.replace(' ', "Ġ").replace('\n', "Ċ")
}

/// A constraint, its grammar, and whether an answer meets it.
#[derive(Debug)]
pub struct Case {
    /// What the answer must match.
    pub constraint: Constraint,
    /// The same, compiled; the second half comes after reasoning.
    pub grammar: Grammar,
    /// The schema, when it is one.
    pub schema: Option<Value>,
}

/// Schemas, and other constraints behind them, each also after reasoning.
pub fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let grammars = Grammars::new(tokenizer(), 61);
        let schemas = schemas().into_iter().map(|schema| {
            let text = schema.to_string();
            (Constraint::JsonSchema { schema: text, strict: true }, Some(schema))
        });
        let others = [
            Constraint::JsonObject,
            Constraint::Regex("(a|bc){1,3}-[0-9]{2}".to_owned()),
            Constraint::Choice(["no", "not", "none at all"].map(str::to_owned).to_vec()),
            Constraint::Grammar("root ::= \"a\" root \"b\" | \"c\"".to_owned()),
        ];
        let all: Vec<_> = schemas.chain(others.map(|constraint| (constraint, None))).collect();
        let compiled = |(constraint, schema): &(Constraint, Option<Value>)| Case {
            grammar: grammars.compile(constraint).expect("the constraint is well formed"),
            constraint: constraint.clone(),
            schema: schema.clone(),
        };
        let plain: Vec<Case> = all.iter().map(compiled).collect();
        let reasoned = all.iter().map(compiled).zip(all.len()..).map(|(case, index)| {
            let (start, end) = match index % 2 {
                0 => (ReasoningStart::Opened, ">".to_owned()),
                _ => (ReasoningStart::MayOpen("<think>".to_owned()), "/>".to_owned()),
            };
            Case { grammar: case.grammar.after(Reasoning { start, end }), ..case }
        });
        let reasoned: Vec<Case> = reasoned.collect();
        plain.into_iter().chain(reasoned).collect()
    })
}

fn schemas() -> [Value; 4] {
    [
        json!({"type": "object", "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 150},
            "b": {"type": "string", "maxLength": 8},
        }, "required": ["a", "b"], "additionalProperties": false}),
        json!({"type": "array", "minItems": 1, "maxItems": 3,
            "items": {"type": "object", "properties": {"k": {"type": "boolean"}},
                "required": ["k"], "additionalProperties": false}}),
        json!({"anyOf": [
            {"enum": ["ab", "co", null, 12]},
            {"type": "object", "properties": {"c": {"const": [1, true]}}, "required": ["c"],
                "additionalProperties": false},
        ]}),
        json!({"$defs": {"t": {"type": "object", "properties": {
            "s": {"enum": ["a", "b"]}, "t": {"$ref": "#/$defs/t"},
        }, "required": ["s"], "additionalProperties": false}}, "$ref": "#/$defs/t"}),
    ]
}

/// Whether `token` ends something. A model that prefers such tokens comes to an end.
pub fn closes(token: u32) -> bool {
    let closing =
        |piece: &&str| ["\"", "}", "]", ",", "\"}", "}]", "/", ">", "c", "1"].contains(piece);
    token == END || PIECES.get(token as usize).is_some_and(closing)
}

/// The threads that fill masks for scripted rows.
pub fn workers() -> &'static Workers {
    static WORKERS: OnceLock<Workers> = OnceLock::new();
    WORKERS.get_or_init(|| Workers::start().expect("threads can be started"))
}
