//! Calls of tools in markup.

use serde_json::{Value, json};

use super::{PIECES, babble, byte_level, compile, grammars, text, tokenizer};
use crate::grammar::{Calls, Constraint, Grammars, Part};

fn call(name: &str, schema: &Value) -> Vec<Part> {
    vec![
        Part::Marker("<tool_call>".to_owned()),
        Part::Text(format!("\n{{\"name\": \"{name}\", \"arguments\": ")),
        Part::Json { schema: schema.to_string(), strict: true },
        Part::Text("}\n".to_owned()),
        Part::Marker("</tool_call>".to_owned()),
    ]
}

fn tools() -> [(&'static str, Value); 2] {
    [
        (
            "add",
            json!({"type": "object", "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 99},
            "b": {"$ref": "#/$defs/flag"},
        }, "$defs": {"flag": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": false}),
        ),
        (
            "say",
            json!({"type": "object", "properties": {"text": {"type": "string", "maxLength": 9}},
            "required": ["text"], "additionalProperties": false}),
        ),
    ]
}

fn calls() -> Calls {
    Calls {
        ways: tools().iter().map(|(name, schema)| call(name, schema)).collect(),
        between: Some(vec![Part::Text("\n".to_owned())]),
        ..Calls::default()
    }
}

/// The names of the calls of `said`, each checked.
fn names(said: &str) -> Vec<String> {
    said.split("</tool_call>")
        .filter(|call| !call.is_empty())
        .map(|call| {
            let json =
                call.trim_start().strip_prefix("<tool_call>").unwrap_or_else(|| panic!("{said}"));
            let call: Value =
                serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {said}"));
            let name = call["name"].as_str().unwrap().to_owned();
            let tools = tools();
            let (_, schema) = tools.iter().find(|(tool, _)| *tool == name).unwrap();
            assert!(jsonschema::is_valid(schema, &call["arguments"]), "{said}");
            name
        })
        .collect()
}

fn seen(grammars: &Grammars, calls: Calls) -> Vec<Vec<String>> {
    let grammar = compile(grammars, &Constraint::Calls(calls));
    let said = (0..60).map(|seed| text(grammars, &babble(&mut grammar.matcher(), grammars, seed)));
    said.map(|said| names(&said)).collect()
}

#[test]
fn calls_name_a_tool_and_match_its_schema_however_many_they_are() {
    let grammars = grammars(PIECES);
    let several = seen(&grammars, calls());
    assert!(several.iter().all(|names| !names.is_empty()));
    assert!(
        several.iter().any(|names| names.len() > 1) && several.iter().any(|names| names.len() == 1)
    );
    for name in ["add", "say"] {
        assert!(several.iter().flatten().any(|said| said == name), "{name}");
    }
    let one = seen(&grammars, Calls { between: None, ..calls() });
    assert!(one.iter().all(|names| names.len() == 1));
}

#[test]
fn a_marker_is_its_token_where_there_is_one() {
    let mut definition = byte_level(PIECES);
    definition["added_tokens"][1]["content"] = json!("<tool_call>");
    let tokenizer = tokenizer(&definition);
    let marker = tokenizer.vocab_size() as u32 - 1;
    let grammars = Grammars::new(tokenizer, 1000);
    let mut matcher = compile(&grammars, &Constraint::Calls(calls())).matcher();
    let mask = matcher.mask().unwrap().unwrap();
    assert_eq!(mask.allowed().collect::<Vec<u32>>(), [marker]);
    matcher.accept(marker).unwrap();
    // The other marker is text.
    let said = format!("<tool_call>{}", text(&grammars, &babble(&mut matcher, &grammars, 4)));
    assert!(!names(&said).is_empty());
}

#[test]
fn a_model_that_may_do_without_a_call_answers_in_the_other_form() {
    let grammars = grammars(PIECES);
    let schema = json!({"type": "object", "properties": {"done": {"const": true}}, "required": ["done"],
        "additionalProperties": false});
    let instead = Some(vec![Part::Json { schema: schema.to_string(), strict: true }]);
    let grammar = compile(&grammars, &Constraint::Calls(Calls { instead, ..calls() }));
    let (mut called, mut answered) = (0, 0);
    for seed in 0..60 {
        let said = text(&grammars, &babble(&mut grammar.matcher(), &grammars, seed));
        match serde_json::from_str::<Value>(&said) {
            Ok(value) => {
                assert_eq!(value, json!({"done": true}));
                answered += 1;
            }
            Err(_) => called += names(&said).len().min(1),
        }
    }
    assert!(called > 0 && answered > 0, "{called} called, {answered} answered");
}
