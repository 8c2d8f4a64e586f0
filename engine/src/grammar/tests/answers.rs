//! Whatever is said under a grammar matches it.

use serde_json::{Value, json};

use super::{PIECES, babble, byte_fallback, compile, grammars, text, tokenizer};
use crate::grammar::{Constraint, Grammars};

const SEEDS: u64 = 60;

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        }, "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "array", "minItems": 1, "maxItems": 4,
            "items": {"enum": ["alpha", "beta", 7, null, {"a": [1]}]}}),
        json!({"type": "object", "properties": {
            "kind": {"const": "né\"\\\n"}, "ok": {"type": "boolean"},
            "ratio": {"type": "number", "minimum": -1, "exclusiveMaximum": 1},
            "when": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
        }, "required": ["code"], "additionalProperties": false}),
        json!({"$defs": {"tree": {"type": "object", "properties": {
            "value": {"type": "integer", "minimum": -9, "maximum": 9},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        }, "required": ["value"], "additionalProperties": false}}, "$ref": "#/$defs/tree"}),
        json!({"anyOf": [
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"],
                "additionalProperties": false},
            {"type": "string", "maxLength": 5},
            {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
        ]}),
        json!({"allOf": [
            {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}}, "required": ["x"]},
            {"properties": {"x": {"maximum": 5}, "y": {"type": "string", "maxLength": 3}},
                "required": ["y"], "additionalProperties": false},
        ]}),
        json!({"type": "object", "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
            "additionalProperties": false, "minProperties": 1, "maxProperties": 1}),
    ]
}

fn strict(schema: &Value) -> Constraint {
    Constraint::JsonSchema { schema: schema.to_string(), strict: true }
}

fn check_schemas(grammars: &Grammars) {
    for schema in schemas() {
        let grammar = compile(grammars, &strict(&schema));
        let validator = jsonschema::validator_for(&schema).unwrap();
        for seed in 0..SEEDS {
            let said = text(grammars, &babble(&mut grammar.matcher(), grammars, seed));
            let value: Value =
                serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
            assert!(validator.is_valid(&value), "{said}\nis not {schema}");
        }
    }
}

#[test]
fn json_under_a_schema_validates_however_tokens_cut_it() {
    check_schemas(&grammars(PIECES));
    check_schemas(&grammars(&[]));
}

#[test]
fn json_under_a_schema_validates_in_a_vocabulary_with_byte_fallback() {
    let tokenizer = tokenizer(&byte_fallback(PIECES));
    let size = tokenizer.vocab_size() + 7;
    check_schemas(&Grammars::new(tokenizer, size));
}

#[test]
fn a_json_object_is_one() {
    let grammars = grammars(PIECES);
    let grammar = compile(&grammars, &Constraint::JsonObject);
    for seed in 0..SEEDS {
        let said = text(&grammars, &babble(&mut grammar.matcher(), &grammars, seed));
        // An exponent may be beyond what floats hold; the text is JSON all the same.
        let read: Result<serde::de::IgnoredAny, _> = serde_json::from_str(&said);
        assert!(read.is_ok() && said.starts_with('{') && said.ends_with('}'), "{said}");
    }
}

#[test]
fn properties_come_in_the_order_of_the_schema() {
    let grammars = grammars(PIECES);
    let schema = r#"{"type":"object","properties":{"z":{"const":1},"a":{"const":2}},
        "required":["a","z"],"additionalProperties":false}"#;
    let constraint = Constraint::JsonSchema { schema: schema.to_owned(), strict: true };
    let grammar = compile(&grammars, &constraint);
    for seed in 0..20 {
        let mut said = text(&grammars, &babble(&mut grammar.matcher(), &grammars, seed));
        said.retain(|character| !character.is_whitespace());
        assert_eq!(said, r#"{"z":1,"a":2}"#);
    }
}

#[test]
fn white_space_in_json_never_goes_on_and_on() {
    let grammars = grammars(PIECES);
    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]});
    let mut matcher = compile(&grammars, &strict(&schema)).matcher();
    let white: Vec<u32> = (0..grammars.tokenizer.vocab_size() as u32)
        .filter(|id| {
            let said = text(&grammars, &[*id]);
            !said.is_empty() && said.trim().is_empty()
        })
        .collect();
    assert!(white.len() > 4);
    let break_of_line = *white.iter().find(|id| text(&grammars, &[**id]) == "\n").unwrap();
    for said in [u32::from(b'{' - b'!'), break_of_line] {
        assert!(matcher.mask().unwrap().unwrap().allows(said));
        matcher.accept(said).unwrap();
    }
    let mut run = 1;
    while let Some(space) =
        white.iter().rev().find(|id| matcher.mask().unwrap().unwrap().allows(**id))
    {
        matcher.accept(*space).unwrap();
        run += 1;
        assert!(run < 40, "it is at it still");
    }
    assert!(run > 1, "an indentation is white space too");
}

#[test]
fn choices_regexes_and_grammars_say_only_what_they_list() {
    let grammars = grammars(PIECES);
    let choices = ["yes", "yes, \"really\"", "né\n\\", "no/t"].map(str::to_owned).to_vec();
    let said = distinct(&grammars, &Constraint::Choice(choices.clone()));
    assert!(said.iter().all(|said| choices.contains(said)), "{said:?}");
    assert_eq!(said.len(), choices.len(), "{said:?}");

    let said = distinct(&grammars, &Constraint::Regex("^(a|bc)[0-9]{2}/x?$".to_owned()));
    assert!(said.len() > 20);
    for said in &said {
        let rest = said.strip_prefix("bc").or(said.strip_prefix('a')).unwrap();
        let rest = rest.strip_suffix('x').unwrap_or(rest);
        assert!(
            rest.len() == 3 && rest.ends_with('/') && rest[..2].parse::<u8>().is_ok(),
            "{said}"
        );
    }

    let lark = "start: greeting \" \" NAME\ngreeting: \"hi\" | \"hello\"\nNAME: /[ab]{1,2}/\n";
    let gbnf = "root ::= greeting \" \" na-me # a comment\ngreeting ::=\n  \"hi\" | \"h\" (\"ello\")\n\
        na-me ::= [a-b]{1,2}";
    let expected: Vec<String> = ["hi", "hello"]
        .iter()
        .flat_map(|hi| ["a", "b", "aa", "ab", "ba", "bb"].map(|name| format!("{hi} {name}")))
        .collect();
    for grammar in [lark, gbnf] {
        let said = distinct(&grammars, &Constraint::Grammar(grammar.to_owned()));
        assert!(said.iter().all(|said| expected.contains(said)), "{said:?}");
        assert_eq!(said.len(), expected.len(), "{said:?}");
    }
}

#[test]
fn gbnf_has_classes_escapes_recursion_and_repetition() {
    let grammars = grammars(PIECES);
    let sum = r#"
        root  ::= term (" + " term)*
        term  ::= [0-9]{1,2} | "(" root ")"
    "#;
    for said in distinct(&grammars, &Constraint::Grammar(sum.to_owned())) {
        let opened = said.matches('(').count();
        assert_eq!(opened, said.matches(')').count(), "{said}");
        assert!(said.split(" + ").all(|term| !term.is_empty()), "{said}");
    }
    let escapes = r#"root ::= "\x41\"\\" [^\x00-\x60{-\U0010FFFF] [\]\-x] . "\u20ac""#;
    for said in distinct(&grammars, &Constraint::Grammar(escapes.to_owned())) {
        let characters: Vec<char> = said.chars().collect();
        let [a, quote, slash, letter, mark, _, euro] = characters[..] else {
            panic!("{said}");
        };
        assert_eq!((a, quote, slash, euro), ('A', '"', '\\', '\u{20ac}'));
        assert!(letter.is_ascii_lowercase() && "]-x".contains(mark), "{said}");
    }
}

/// All that is said in many tries.
fn distinct(grammars: &Grammars, constraint: &Constraint) -> Vec<String> {
    let grammar = compile(grammars, constraint);
    let mut said: Vec<String> = (0..400)
        .map(|seed| text(grammars, &babble(&mut grammar.matcher(), grammars, seed)))
        .collect();
    said.sort();
    said.dedup();
    said
}
