//! Calls in which every argument has a tag of its own.

use serde_json::{Map, Value, json};

use super::values::{Property, properties, string};
use super::{ANY_TEXT, find, json as json_part, marker, split, tagged, text, until};
use crate::error::{Code, Error, Result};
use crate::grammar::Part;
use crate::output::Tool;

/// References inside a schema are followed this far.
const REFERENCES_MAX: usize = 8;

/// What surrounds the value of an argument.
struct Tag {
    open: Vec<Part>,
    /// What comes between a value that is no text and its end.
    gap: &'static str,
    close: Vec<Part>,
    /// What follows the tag.
    after: &'static str,
    /// Whether what stands in the tag is the value to the last space.
    exact: bool,
}

/// What a value is written as.
#[derive(Debug, Clone, Copy)]
enum Written<'a> {
    Text,
    /// JSON of one of these types.
    Json(&'a [String]),
}

/// How a family writes tags.
struct TagForm<'a> {
    /// The tag of an argument of this name and form.
    tag: &'a dyn Fn(&str, Written<'_>) -> Tag,
    /// Whether the tag says which form the value has. Where it does not, a value that may be text is.
    typed: bool,
}

pub(super) fn qwen(tool: &Tool, open: &str, close: &str) -> Result<Vec<Part>> {
    let before = vec![marker(open), text(&format!("\n<function={}>\n", tool.name))];
    let tag = |name: &str, _: Written<'_>| Tag {
        open: tagged(&format!("<parameter={name}>\n")),
        // A line break of its own is no part of a text.
        gap: "\n",
        close: tagged("</parameter>"),
        after: "\n",
        exact: false,
    };
    let tags = tags(tool, &TagForm { tag: &tag, typed: false })?;
    Ok([before, tags, vec![text("</function>\n"), marker(close)]].concat())
}

pub(super) fn glm(tool: &Tool, prefix: &str) -> Result<Vec<Part>> {
    let before = vec![marker(&format!("<{prefix}tool_call>")), text(&format!("{}\n", tool.name))];
    let tag = |name: &str, _: Written<'_>| Tag {
        open: tagged(&format!("<{prefix}arg_key>{name}</{prefix}arg_key>\n<{prefix}arg_value>")),
        gap: "",
        close: tagged(&format!("</{prefix}arg_value>")),
        after: "\n",
        exact: true,
    };
    let tags = tags(tool, &TagForm { tag: &tag, typed: false })?;
    Ok([before, tags, vec![marker(&format!("</{prefix}tool_call>"))]].concat())
}

pub(super) fn minicpm(tool: &Tool) -> Result<Vec<Part>> {
    let before = vec![text(&format!("<function name=\"{}\">", tool.name))];
    let tag = |name: &str, _: Written<'_>| Tag {
        open: tagged(&format!("<param name=\"{}\">", attribute(name))),
        gap: "",
        close: tagged("</param>"),
        after: "",
        exact: false,
    };
    let tags = tags(tool, &TagForm { tag: &tag, typed: false })?;
    Ok([before, tags, vec![text("</function>")]].concat())
}

/// As MiniMax and Muse write it, the latter with `atem:` before the names of the tags.
pub(super) fn invoke(tool: &Tool, prefix: &str) -> Result<Vec<Part>> {
    let before = vec![text(&format!("<{prefix}invoke name=\"{}\">\n", tool.name))];
    let tag = |name: &str, _: Written<'_>| Tag {
        open: tagged(&format!("<{prefix}parameter name=\"{}\">", attribute(name))),
        gap: "",
        close: tagged(&format!("</{prefix}parameter>")),
        after: "\n",
        exact: false,
    };
    let tags = tags(tool, &TagForm { tag: &tag, typed: false })?;
    Ok([before, tags, vec![text(&format!("</{prefix}invoke>\n"))]].concat())
}

/// DeepSeek V3.2's, which say of each value whether it is text.
pub(super) fn deepseek(tool: &Tool) -> Result<Vec<Part>> {
    const MARK: [&str; 1] = ["｜DSML｜"];
    let before = split(&format!("<｜DSML｜invoke name=\"{}\">\n", tool.name), &MARK);
    let tag = |name: &str, written: Written<'_>| {
        let is_text = matches!(written, Written::Text);
        let name = attribute(name);
        let open = format!("<｜DSML｜parameter name=\"{name}\" string=\"{is_text}\">");
        Tag {
            open: split(&open, &MARK),
            gap: "",
            close: split("</｜DSML｜parameter>", &MARK),
            after: "\n",
            exact: true,
        }
    };
    let tags = tags(tool, &TagForm { tag: &tag, typed: true })?;
    Ok([before, tags, split("</｜DSML｜invoke>\n", &MARK)].concat())
}

/// Kimi K3's, which say the type of each value.
pub(super) fn kimi(tool: &Tool) -> Result<Vec<Part>> {
    const MARKS: [&str; 3] = ["<|open|>", "<|close|>", "<|sep|>"];
    let parts = |text: &str| split(text, &MARKS);
    let tag = |name: &str, written: Written<'_>| {
        let name = attribute(name);
        let before = parts(&format!("<|open|>argument key=\"{name}\" type=\""));
        let kind = match written {
            Written::Text => text("string"),
            Written::Json(kinds) => Part::OneOf(kinds.to_vec()),
        };
        Tag {
            open: [before, vec![kind], parts("\"<|sep|>")].concat(),
            gap: "",
            close: parts("<|close|>argument<|sep|>"),
            after: "",
            exact: true,
        }
    };
    let before = parts(&format!("<|open|>call tool=\"{}\" index=\"", tool.name));
    let index = vec![Part::Match("[1-9][0-9]?".to_owned())];
    let tags = tags(tool, &TagForm { tag: &tag, typed: true })?;
    let after = parts("<|close|>call<|sep|>");
    Ok([before, index, parts("\"<|sep|>"), tags, after].concat())
}

/// Every argument of `tool` in the order of its schema, in the tag of its name. What is not required may be
/// left out.
///
/// # Errors
/// `Unsupported` naming an argument that must be there and whose name no tag can hold.
fn tags(tool: &Tool, form: &TagForm<'_>) -> Result<Vec<Part>> {
    let root = tool.parameters.clone().unwrap_or_default();
    let mut parts = Vec::new();
    for Property { name, schema, required } in properties(&root) {
        if !fits_tag(name) {
            if required {
                return Err(unwritable(tool, name));
            }
            continue;
        }
        let ways = ways(name, schema, &root, form);
        let way = if ways.len() == 1 { ways.concat() } else { vec![Part::Either(ways)] };
        match required {
            true => parts.extend(way),
            false => parts.push(Part::Maybe(way)),
        }
    }
    Ok(parts)
}

/// The error for an argument that a format has no way to write.
pub(super) fn unwritable(tool: &Tool, name: &str) -> Error {
    let message = format!(
        "the model's form of calls cannot write `{name}`, which `{}` requires, so the call cannot be forced",
        tool.name
    );
    Error::new(Code::Unsupported, message)
        .with_param("tool_choice")
        .with_hint("`tool_choice` may be `auto` or `none`")
}

fn ways(
    name: &str,
    schema: &Value,
    root: &Map<String, Value>,
    form: &TagForm<'_>,
) -> Vec<Vec<Part>> {
    let may_be_text = may_be_text(schema, root, 0);
    let mut ways = Vec::new();
    if let Some(choices) = texts(schema) {
        ways.push((form.tag)(name, Written::Text).around(Part::OneOf(choices), ""));
    } else if may_be_text {
        ways.push((form.tag)(name, Written::Text).around_text(schema));
    }
    let other = match (may_be_text, form.typed) {
        (false, _) => Some(schema.clone()),
        (true, true) => without_text(schema, root, 0),
        (true, false) => None,
    };
    if let Some(other) = other {
        let kinds = kinds(&other);
        let tag = (form.tag)(name, Written::Json(&kinds));
        let gap = tag.gap;
        let fields = other.as_object().cloned().unwrap_or_default();
        ways.push(tag.around(json_part(fields, root), gap));
    }
    ways
}

impl Tag {
    fn around(self, value: Part, gap: &str) -> Vec<Part> {
        let gap = text(gap);
        [self.open, vec![value, gap], self.close, vec![text(self.after)]].concat()
    }

    fn around_text(self, schema: &Value) -> Vec<Part> {
        let counted = schema.as_object().filter(|_| self.exact);
        let body = counted.map_or_else(|| ANY_TEXT.to_owned(), string);
        let value = until(&body, &[], self.close);
        [self.open, vec![value, text(self.after)]].concat()
    }
}

/// Whether a tag's head can hold `name`, as the parsers of `output` read it.
fn fits_tag(name: &str) -> bool {
    let breaks = |next: char| "<>{}'\"\n\r".contains(next);
    !name.contains(breaks) && !name.is_empty() && name.trim() == name && name.len() <= 128
}

/// `text` in an attribute.
fn attribute(text: &str) -> String {
    text.replace('&', "&amp;")
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

/// What `schema` allows beside text.
fn without_text(schema: &Value, root: &Map<String, Value>, depth: usize) -> Option<Value> {
    let anything = || json!({"type": ["integer", "number", "boolean", "null", "object", "array"]});
    let Some(fields) = schema.as_object().filter(|_| depth < REFERENCES_MAX) else {
        return Some(anything());
    };
    let with = |name: &str, value: Value| {
        let mut fields = fields.clone();
        fields.insert(name.to_owned(), value);
        Some(Value::Object(fields))
    };
    let others = |values: &[Value]| -> Vec<Value> {
        values.iter().filter(|value| !value.is_string()).cloned().collect()
    };
    if let Some(values) = fields.get("enum").and_then(Value::as_array) {
        let others = others(values);
        return (!others.is_empty()).then(|| with("enum", others.into())).flatten();
    }
    if let Some(pointer) = fields.get("$ref").and_then(Value::as_str) {
        let target = pointer.strip_prefix('#').and_then(|path| find(root, path));
        return target.map_or_else(|| Some(anything()), |to| without_text(to, root, depth + 1));
    }
    match fields.get("type") {
        Some(Value::Array(kinds)) => {
            let is_other = |kind: &&Value| **kind != json!("string");
            let kinds: Vec<Value> = kinds.iter().filter(is_other).cloned().collect();
            return (!kinds.is_empty()).then(|| with("type", kinds.into())).flatten();
        }
        Some(kind) => return (*kind != json!("string")).then(|| schema.clone()),
        None => {}
    }
    for name in ["anyOf", "oneOf"] {
        if let Some(options) = fields.get(name).and_then(Value::as_array) {
            let options: Vec<Value> =
                options.iter().filter_map(|option| without_text(option, root, depth + 1)).collect();
            return (!options.is_empty()).then(|| with(name, options.into())).flatten();
        }
    }
    match fields.get("const") {
        Some(value) => (!value.is_string()).then(|| schema.clone()),
        None => Some(anything()),
    }
}

/// The names of the types of `schema`, as far as it says so, else of all but text.
fn kinds(schema: &Value) -> Vec<String> {
    let all = ["number", "integer", "boolean", "null", "object", "array"];
    let mut kinds: Vec<String> = match &schema["type"] {
        Value::String(kind) => vec![kind.clone()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => all.map(str::to_owned).to_vec(),
    };
    // Some templates tell of integers as numbers.
    if kinds.iter().any(|kind| kind == "integer") && !kinds.iter().any(|kind| kind == "number") {
        kinds.push("number".to_owned());
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn what_a_schema_allows_beside_text_is_the_rest_of_it() {
        let root = json!({"$defs": {"s": {"type": "string"}, "n": {"type": ["null", "string"]}}});
        let root = root.as_object().unwrap();
        for (schema, expected) in [
            (json!({"type": "string"}), None),
            (json!({"type": "integer"}), Some(json!({"type": "integer"}))),
            (json!({"type": ["null", "string"]}), Some(json!({"type": ["null"]}))),
            (json!({"$ref": "#/$defs/s"}), None),
            (json!({"$ref": "#/$defs/n"}), Some(json!({"type": ["null"]}))),
            (json!({"enum": [1, "2"]}), Some(json!({"enum": [1]}))),
            (json!({"const": "x"}), None),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
                Some(json!({"anyOf": [{"type": "null"}]})),
            ),
        ] {
            assert_eq!(without_text(&schema, root, 0), expected, "{schema}");
        }
    }
}
