//! What does not compile, and what is said about it.

use serde_json::{Value, json};

use super::{PIECES, grammars, tokenizer};
use crate::error::{Code, Error};
use crate::grammar::{Constraint, Grammars};
use crate::limits::{GRAMMAR_BYTES_MAX, SCHEMA_NODES_MAX};

fn refusal(grammars: &Grammars, constraint: &Constraint) -> Error {
    match grammars.compile(constraint) {
        Ok(_) => panic!("{constraint:?} compiled"),
        Err(error) => error,
    }
}

fn strict(schema: &str) -> Constraint {
    Constraint::JsonSchema { schema: schema.to_owned(), strict: true }
}

#[test]
fn constraints_that_cannot_be_held_are_refused_by_name() {
    use Code::{InvalidRequest, Unsupported};
    let grammars = grammars(PIECES);
    let schema = |schema: Value| strict(&schema.to_string());
    let regex = |pattern: &str| Constraint::Regex(pattern.to_owned());
    let grammar = |text: &str| Constraint::Grammar(text.to_owned());
    let table = [
        (schema(json!({"not": {"type": "null"}})), Unsupported, "`not`"),
        (schema(json!({"items": {"uniqueItems": true}})), Unsupported, "#/items/uniqueItems"),
        (schema(json!({"properties": {"a": {"if": {}}}})), Unsupported, "#/properties/a/if"),
        (schema(json!({"anyOf": [{}, {"contains": 1}]})), Unsupported, "#/anyOf/1/contains"),
        (
            schema(json!({"$defs": {"x": {"dependentRequired": {}}}})),
            Unsupported,
            "dependentRequired",
        ),
        (
            schema(json!({"$ref": "http://example.com/x.json"})),
            Unsupported,
            "http://example.com/x.json",
        ),
        (schema(json!({"type": "string", "format": "zip-code"})), InvalidRequest, "zip-code"),
        (schema(json!({"type": "strin"})), InvalidRequest, "strin"),
        (schema(json!({"type": 7})), InvalidRequest, "type"),
        (schema(json!({"enum": 3})), InvalidRequest, "enum"),
        (schema(json!({"enum": []})), InvalidRequest, "anyOf is empty"),
        (schema(json!({"$ref": "#/$defs/absent"})), InvalidRequest, "absent"),
        (schema(json!({"type": "integer", "minimum": 5, "maximum": 4})), InvalidRequest, "minimum"),
        (schema(json!({"type": "string", "pattern": "(?=a)b"})), InvalidRequest, "look"),
        (schema(json!({"oneOf": [{"type": "string"}, {"maxLength": 3}]})), InvalidRequest, "oneOf"),
        (strict("[1]"), InvalidRequest, "expected an object"),
        (strict("{"), InvalidRequest, "not JSON"),
        (regex("a("), InvalidRequest, "regular expression"),
        (regex("a(?=b)"), InvalidRequest, "look"),
        (regex(r"(a)\1"), InvalidRequest, "backreference"),
        (regex(" "), InvalidRequest, "empty"),
        (grammar("start: other\n"), InvalidRequest, "other"),
        (grammar("start: \"a\n"), InvalidRequest, "grammar"),
        (grammar("rule: \"a\"\n"), InvalidRequest, "start"),
        (grammar("root ::= [a-"), InvalidRequest, "line 1"),
        (grammar("root ::= \"a\"\n\nroot ::= \"b\""), InvalidRequest, "line 3"),
        (grammar("top ::= \"a\""), InvalidRequest, "`root`"),
        (grammar("root ::= absent"), InvalidRequest, "`absent`"),
        (grammar("root ::= []"), InvalidRequest, "empty"),
        (grammar("root ::= [z-a]"), InvalidRequest, "backwards"),
        (grammar("root ::= \"a\"{x}"), InvalidRequest, "repetition"),
        (grammar("root ::= \"\\q\""), InvalidRequest, "\\q"),
        (Constraint::Choice(Vec::new()), InvalidRequest, "empty"),
        (Constraint::Choice(vec!["a".to_owned(), String::new()]), InvalidRequest, "empty"),
        (regex(&"a".repeat(GRAMMAR_BYTES_MAX + 1)), InvalidRequest, "bytes"),
    ];
    for (constraint, code, named) in &table {
        let error = refusal(&grammars, constraint);
        assert_eq!(error.code(), *code, "{error}");
        assert!(error.message().contains(named), "{named}: {error}");
        assert!(!error.message().contains('\n'), "{error}");
        assert_eq!(refusal(&grammars, constraint), error, "the same each time");
    }
}

#[test]
fn what_a_lax_schema_cannot_be_held_to_constrains_nothing() {
    let grammars = grammars(PIECES);
    for schema in [
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "string", "format": "zip-code"}),
        json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}),
        json!({"type": "string", "pattern": "(?=a)b"}),
        json!({"type": "object", "patternProperties": {"(?!x)": {"type": "null"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "http://example.com/x.json"}}}),
        json!({"type": "integer", "not": {"const": 3}, "if": {}, "then": false}),
    ] {
        let constraint = Constraint::JsonSchema { schema: schema.to_string(), strict: false };
        grammars.compile(&constraint).unwrap();
        refusal(&grammars, &strict(&schema.to_string()));
    }
}

#[test]
fn a_property_may_be_called_like_a_keyword() {
    let schema =
        json!({"type": "object", "properties": {"not": {"type": "null"}, "$ref": {"const": "x"}}});
    grammars(PIECES).compile(&strict(&schema.to_string())).unwrap();
}

#[test]
fn deep_and_long_constraints_are_refused_or_compile_and_end_no_process() {
    let grammars = grammars(PIECES);
    let chain = |links: usize| {
        let link = |index: usize| format!("\"a{index}\":{{\"$ref\":\"#/$defs/a{}\"}}", index + 1);
        let links: Vec<String> = (0..links).map(link).collect();
        format!(
            "{{\"$defs\":{{{},\"a{}\":{{\"type\":\"null\"}}}},\"$ref\":\"#/$defs/a0\"}}",
            links.join(","),
            links.len()
        )
    };
    assert!(grammars.compile(&strict(&chain(100))).is_ok());
    // As deep as a schema of its size can make the compiler go.
    drop(grammars.compile(&strict(&chain(SCHEMA_NODES_MAX - 3))));
    let message = refusal(&grammars, &strict(&chain(SCHEMA_NODES_MAX))).message().to_owned();
    assert!(message.contains(&SCHEMA_NODES_MAX.to_string()), "{message}");
    let nested = |open: &str, close: &str, depth: usize| open.repeat(depth) + &close.repeat(depth);
    let items = "{\"items\":".repeat(5_000) + "{}" + &"}".repeat(5_000);
    refusal(&grammars, &strict(&items));
    refusal(&grammars, &Constraint::Regex(nested("(", ")", 100_000)));
    refusal(&grammars, &Constraint::Grammar(format!("start: {}", nested("(", ")", 100_000))));
    refusal(&grammars, &Constraint::Grammar(format!("root ::= {}", nested("(", ")", 100_000))));
    drop(grammars.compile(&Constraint::Regex("(a{1,1000}){1,1000}".to_owned())));
}

#[test]
fn a_tokenizer_whose_tokens_are_not_bytes_has_no_grammars() {
    let words = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    });
    let grammars = Grammars::new(tokenizer(&words), 1);
    let error = refusal(&grammars, &Constraint::JsonObject);
    assert_eq!(error.code(), Code::Unsupported, "{error}");
}
