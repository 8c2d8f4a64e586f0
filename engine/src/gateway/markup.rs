//! Calls in the markup of each format, with holes for what the model fills in.
//!
//! The markup is what the family's template writes; the parsers of `output` read it back. Formats with JSON
//! arguments are held to the tool's schema. In formats with one tag per argument, values that may be text are
//! any text, fixed choices are one of them, and all others are JSON of their schema. Formats in which text is
//! written with quoting rules of their own are not here.

use serde_json::{Map, Value, json};

use crate::grammar::{Calls, Part};
use crate::output::{Tool, ToolFormat};
use crate::tokenizer::Tokenizer;

/// References inside a schema are followed this far.
const REFERENCES_MAX: usize = 8;

/// Calls of `tools` in the markup of `format`, more than one if `several`; `None` for a format that is not
/// here.
pub(super) fn calls(
    format: ToolFormat,
    tools: &[&Tool],
    several: bool,
    tokenizer: &Tokenizer,
) -> Option<Calls> {
    let Markup { open, ways, between, close } = markup(format, tokenizer)?;
    let ways = tools.iter().flat_map(|tool| ways.iter().map(|way| way(tool))).collect();
    Some(Calls { open, ways, between: between.filter(|_| several), close, instead: None })
}

/// How a format writes calls.
struct Markup {
    open: Vec<Part>,
    /// The ways in which a call of a tool may be written.
    ways: &'static [fn(&Tool) -> Vec<Part>],
    /// `None` where an answer has one call.
    between: Option<Vec<Part>>,
    close: Vec<Part>,
}

impl Markup {
    /// Calls that stand by themselves, one after the other.
    fn single(ways: &'static [fn(&Tool) -> Vec<Part>], between: &str) -> Self {
        let between = if between.is_empty() { Vec::new() } else { vec![text(between)] };
        Self { open: Vec::new(), ways, between: Some(between), close: Vec::new() }
    }

    /// Calls between two markers.
    fn section(
        open: &str,
        ways: &'static [fn(&Tool) -> Vec<Part>],
        between: &str,
        close: &str,
    ) -> Self {
        let mut close_parts = vec![marker(close)];
        close_parts.retain(|_| !close.is_empty());
        Self { open: vec![marker(open)], close: close_parts, ..Self::single(ways, between) }
    }

    /// A JSON list of calls between two markers.
    fn list(open: &str, ways: &'static [fn(&Tool) -> Vec<Part>], close: &str) -> Self {
        let mut markup = Self::section(open, ways, ", ", close);
        markup.open.push(text("["));
        markup.close.insert(0, text("]"));
        markup
    }
}

fn markup(format: ToolFormat, tokenizer: &Tokenizer) -> Option<Markup> {
    use ToolFormat::*;
    Some(match format {
        Json => Markup::single(&[tagged_object], "\n"),
        Llama3 => {
            Markup { between: None, ..Markup::single(&[|tool| object(tool, "parameters")], "") }
        }
        Mistral if tokenizer.token_id("[ARGS]").is_some() => Markup::single(&[mistral], ""),
        Mistral => Markup::list("[TOOL_CALLS]", ARGUMENTS, ""),
        JsonList => Markup::list("<tool_calls>", ARGUMENTS, "</tool_calls>"),
        Nemotron => Markup::list("<TOOLCALL>", ARGUMENTS, "</TOOLCALL>"),
        Granite => Markup::list("<|tool_call|>", ARGUMENTS, ""),
        Cohere => Markup::list("<|START_ACTION|>", &[cohere], "<|END_ACTION|>"),
        DeepSeek => Markup::section(
            "<｜tool▁calls▁begin｜>",
            &[deepseek, deepseek_fenced],
            "",
            "<｜tool▁calls▁end｜>",
        ),
        KimiK2 => Markup::section(
            "<|tool_calls_section_begin|>",
            &[kimi],
            "",
            "<|tool_calls_section_end|>",
        ),
        QwenXml => Markup::single(&[|tool| qwen(tool, "<tool_call>", "</tool_call>")], "\n"),
        SeedXml => {
            Markup::single(&[|tool| qwen(tool, "<seed:tool_call>", "</seed:tool_call>")], "\n")
        }
        Glm => Markup::single(&[|tool| glm(tool, "")], "\n"),
        Longcat => Markup::single(&[|tool| glm(tool, "longcat_")], "\n"),
        MiniCpm5 => Markup::single(&[minicpm], "\n"),
        MiniMax => Markup::section("<minimax:tool_call>", &[minimax], "", "</minimax:tool_call>"),
        MuseSpark | DeepSeekMarkup | KimiK3 | Gemma4 | FunctionGemma | Harmony | Pythonic
        | PythonicList | PythonicLines => return None,
    })
}

// --- calls with JSON arguments ---

const ARGUMENTS: &[fn(&Tool) -> Vec<Part>] = &[|tool| object(tool, "arguments")];

/// `{"name": "NAME", "ARGUMENTS": {...}}`.
fn object(tool: &Tool, arguments: &str) -> Vec<Part> {
    let name = Value::from(tool.name.as_str());
    let head = format!("{{\"name\": {name}, \"{arguments}\": ");
    vec![text(&head), arguments_of(tool), text("}")]
}

fn tagged_object(tool: &Tool) -> Vec<Part> {
    let before = vec![marker("<tool_call>"), text("\n")];
    [before, object(tool, "arguments"), vec![text("\n"), marker("</tool_call>")]].concat()
}

fn mistral(tool: &Tool) -> Vec<Part> {
    vec![marker("[TOOL_CALLS]"), text(&tool.name), marker("[ARGS]"), arguments_of(tool)]
}

fn cohere(tool: &Tool) -> Vec<Part> {
    let name = Value::from(tool.name.as_str());
    vec![
        text("{\"tool_call_id\": \""),
        Part::Match("[0-9]{1,2}".to_owned()),
        text(&format!("\", \"tool_name\": {name}, \"parameters\": ")),
        arguments_of(tool),
        text("}"),
    ]
}

/// As V3.1 writes it.
fn deepseek(tool: &Tool) -> Vec<Part> {
    vec![
        marker("<｜tool▁call▁begin｜>"),
        text(&tool.name),
        marker("<｜tool▁sep｜>"),
        arguments_of(tool),
        marker("<｜tool▁call▁end｜>"),
    ]
}

/// As V3 and R1 write it.
fn deepseek_fenced(tool: &Tool) -> Vec<Part> {
    vec![
        marker("<｜tool▁call▁begin｜>"),
        text("function"),
        marker("<｜tool▁sep｜>"),
        text(&format!("{}\n```json\n", tool.name)),
        arguments_of(tool),
        text("\n```"),
        marker("<｜tool▁call▁end｜>"),
    ]
}

fn kimi(tool: &Tool) -> Vec<Part> {
    vec![
        marker("<|tool_call_begin|>"),
        text(&format!("functions.{}:", tool.name)),
        Part::Match("[0-9]{1,2}".to_owned()),
        marker("<|tool_call_argument_begin|>"),
        arguments_of(tool),
        marker("<|tool_call_end|>"),
    ]
}

// --- calls with a tag for each argument ---

fn qwen(tool: &Tool, open: &str, close: &str) -> Vec<Part> {
    let before = vec![marker(open), text(&format!("\n<function={}>\n", tool.name))];
    let argument = |name: &str| Tag {
        open: format!("<parameter={name}>\n"),
        // A line break of its own is no part of a text.
        gap: "\n",
        close: "</parameter>\n".to_owned(),
    };
    [before, tags(tool, argument), vec![text("</function>\n"), marker(close)]].concat()
}

fn glm(tool: &Tool, prefix: &str) -> Vec<Part> {
    let before = vec![marker(&format!("<{prefix}tool_call>")), text(&format!("{}\n", tool.name))];
    let argument = |name: &str| Tag {
        open: format!("<{prefix}arg_key>{name}</{prefix}arg_key>\n<{prefix}arg_value>"),
        gap: "",
        close: format!("</{prefix}arg_value>\n"),
    };
    [before, tags(tool, argument), vec![marker(&format!("</{prefix}tool_call>"))]].concat()
}

fn minicpm(tool: &Tool) -> Vec<Part> {
    let before = vec![text(&format!("<function name=\"{}\">", tool.name))];
    let argument = |name: &str| Tag {
        open: format!("<param name=\"{name}\">"),
        gap: "",
        close: "</param>".to_owned(),
    };
    [before, tags(tool, argument), vec![text("</function>")]].concat()
}

fn minimax(tool: &Tool) -> Vec<Part> {
    let before = vec![text(&format!("\n<invoke name=\"{}\">\n", tool.name))];
    let argument = |name: &str| Tag {
        open: format!("<parameter name=\"{name}\">"),
        gap: "",
        close: "</parameter>\n".to_owned(),
    };
    [before, tags(tool, argument), vec![text("</invoke>\n")]].concat()
}

/// What surrounds the value of an argument.
struct Tag {
    open: String,
    /// What comes between a value that is no text and its end.
    gap: &'static str,
    close: String,
}

/// Every argument of `tool` in the order of its schema, in the tag of its name. What is not required may be
/// left out.
fn tags(tool: &Tool, tag_of: impl Fn(&str) -> Tag) -> Vec<Part> {
    let root = tool.parameters.clone().unwrap_or_default();
    let properties = root.get("properties").and_then(Value::as_object);
    let required = root.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.contains(&json!(name)));
    let mut parts = Vec::new();
    for (name, schema) in properties.into_iter().flatten() {
        let tag = tag_of(name);
        let tag = [markup_text(&tag.open), value(schema, &root, &tag)].concat();
        match is_required(name) {
            true => parts.extend(tag),
            false => parts.push(Part::Maybe(tag)),
        }
    }
    parts
}

/// A value of `schema`, and what closes `tag` after it.
fn value(schema: &Value, root: &Map<String, Value>, tag: &Tag) -> Vec<Part> {
    let closed = |value| [vec![value], markup_text(&format!("{}{}", tag.gap, tag.close))].concat();
    if let Some(choices) = texts(schema) {
        return closed(Part::OneOf(choices));
    }
    if may_be_text(schema, root, 0) {
        let end = tag.close.trim_end();
        let rest = &tag.close[end.len()..];
        let rest = Some(text(rest)).filter(|_| !rest.is_empty());
        return std::iter::once(Part::Until(end.to_owned())).chain(rest).collect();
    }
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(name) {
            schema.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    closed(Part::Json { schema: Value::Object(schema).to_string(), strict: false })
}

/// The texts that are all that `schema` allows.
fn texts(schema: &Value) -> Option<Vec<String>> {
    let only = schema.get("const").map(std::slice::from_ref);
    let values = only.or_else(|| schema.get("enum")?.as_array().map(Vec::as_slice))?;
    let texts = values.iter().map(|value| value.as_str().map(str::to_owned));
    texts.collect::<Option<Vec<String>>>().filter(|texts| texts.iter().all(|text| !text.is_empty()))
}

/// Whether a value of `schema` may be text, so that a parser reads it as it stands.
fn may_be_text(schema: &Value, root: &Map<String, Value>, depth: usize) -> bool {
    let Some(fields) = schema.as_object().filter(|_| depth < REFERENCES_MAX) else {
        return true;
    };
    if let Some(kinds) = fields.get("type") {
        return *kinds == json!("string")
            || kinds.as_array().is_some_and(|kinds| kinds.contains(&json!("string")));
    }
    if let Some(values) = fields.get("enum").and_then(Value::as_array) {
        return values.iter().any(Value::is_string);
    }
    if let Some(pointer) = fields.get("$ref").and_then(Value::as_str) {
        let target = pointer.strip_prefix('#').and_then(|path| find(root, path));
        return target.is_none_or(|target| may_be_text(target, root, depth + 1));
    }
    let several = ["anyOf", "oneOf", "allOf"].iter().filter_map(|name| fields.get(*name));
    let mut options = several.filter_map(Value::as_array).flatten().peekable();
    match options.peek() {
        None => fields.get("const").is_none_or(Value::is_string),
        Some(_) => options.any(|option| may_be_text(option, root, depth + 1)),
    }
}

/// What the JSON pointer `path` points to.
fn find<'a>(root: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut steps = path.strip_prefix('/')?.split('/');
    let first = root.get(steps.next()?)?;
    steps.try_fold(first, |value, step| value.get(step))
}

// --- parts ---

/// The arguments as JSON. What a tool's schema asks beyond what can be enforced is between the client and
/// the model.
fn arguments_of(tool: &Tool) -> Part {
    let mut schema = tool.parameters.clone().unwrap_or_default();
    schema.entry("type").or_insert("object".into());
    Part::Json { schema: Value::Object(schema).to_string(), strict: false }
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn marker(name: &str) -> Part {
    Part::Marker(name.to_owned())
}

/// `markup` with its tags as markers, which some vocabularies have as tokens.
fn markup_text(markup: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = markup;
    while let Some(start) = rest.find('<') {
        let end = rest[start..].find('>').map_or(rest.len(), |end| start + end + 1);
        if start > 0 {
            parts.push(text(&rest[..start]));
        }
        parts.push(marker(&rest[start..end]));
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        parts.push(text(rest));
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::grammar::Constraint;
    use crate::grammar::tests::{babble, compile, grammars, text as said_by};
    use crate::output::{AnswerFormat, AnswerParser, FoldedAnswer, ParserOptions, TextEnd};

    const PIECES: &[&str] = &[
        "\n</parameter>",
        "</parameter>",
        "</arg_value>",
        "</longcat_arg_value>",
        "</param>",
        "true",
        "abc",
        "{\"",
        "\": ",
        "\", \"",
        "\"}",
        "look",
        "at",
        "é",
        "\u{20ac}",
        "12",
    ];

    fn tools() -> Arc<[Tool]> {
        let tool = |name: &str, parameters: Value| Tool {
            name: name.to_owned(),
            description: None,
            parameters: parameters.as_object().cloned(),
        };
        [
            tool("look_at", json!({"type": "object", "properties": {
                "place": {"type": "string"}, "zoom": {"type": "integer", "minimum": 1, "maximum": 20},
                "mode": {"enum": ["near", "far"]}, "tags": {"$ref": "#/$defs/tags"},
            }, "required": ["place", "zoom"], "additionalProperties": false,
                "$defs": {"tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}})),
            tool("stop", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        ]
        .into()
    }

    fn parsed(format: ToolFormat, said: &str, piece_characters: usize) -> FoldedAnswer {
        let format = AnswerFormat { tools: Some(format), ..AnswerFormat::default() };
        let options = ParserOptions { tools: tools(), ..ParserOptions::default() };
        let mut parser = AnswerParser::new(&format, options);
        let characters: Vec<char> = said.chars().collect();
        let mut folded = FoldedAnswer::default();
        for piece in characters.chunks(piece_characters) {
            folded.extend(parser.push(&piece.iter().collect::<String>()));
        }
        folded.extend(parser.finish(TextEnd::Complete));
        folded
    }

    #[test]
    fn calls_in_every_markup_are_read_back_as_calls_that_match_their_schemas() {
        let grammars = grammars(PIECES);
        let tools = tools();
        let tools: Vec<&Tool> = tools.iter().collect();
        let mut formats = 0;
        for format in ToolFormat::ALL {
            let Some(calls) = calls(format, &tools, true, &grammars.tokenizer) else {
                continue;
            };
            formats += 1;
            let grammar = compile(&grammars, &Constraint::Calls(calls));
            let mut names = Vec::new();
            for seed in 0..30 {
                let said = babble(&mut grammar.matcher(), &grammars, seed);
                let said = said_by(&grammars, &said);
                let answer = parsed(format, &said, 1000);
                assert_eq!(parsed(format, &said, 1).calls.len(), answer.calls.len(), "{said}");
                assert!(!answer.calls.is_empty(), "{format:?}: {said}");
                assert_eq!(answer.text.trim(), "", "{format:?}: {said}");
                for call in answer.calls {
                    assert!(call.ended, "{format:?}: {said}");
                    let tool = tools.iter().find(|tool| tool.name == call.name).unwrap();
                    let schema = Value::Object(tool.parameters.clone().unwrap());
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    assert!(
                        jsonschema::is_valid(&schema, &arguments),
                        "{format:?}: {said}\n{arguments}"
                    );
                    names.push(call.name);
                }
            }
            assert!(names.iter().any(|name| name == "stop"), "{format:?}");
            assert!(names.iter().any(|name| name == "look_at"), "{format:?}");
        }
        assert_eq!(formats, 15);
    }

    #[test]
    fn a_value_that_may_be_text_is_told_from_one_that_may_not() {
        let root = json!({"$defs": {"n": {"type": "number"}, "s": {"type": "string"}}});
        let root = root.as_object().unwrap();
        for (schema, expected) in [
            (json!({}), true),
            (json!({"type": "string"}), true),
            (json!({"type": ["null", "string"]}), true),
            (json!({"type": "integer"}), false),
            (json!({"anyOf": [{"type": "null"}, {"type": "string"}]}), true),
            (json!({"anyOf": [{"type": "null"}, {"type": "object"}]}), false),
            (json!({"$ref": "#/$defs/n"}), false),
            (json!({"$ref": "#/$defs/s"}), true),
            (json!({"$ref": "#/$defs/absent"}), true),
            (json!({"enum": [1, 2]}), false),
            (json!({"enum": [1, "2"]}), true),
            (json!({"const": 3}), false),
        ] {
            assert_eq!(may_be_text(&schema, root, 0), expected, "{schema}");
        }
    }
}
