//! Values that a format writes as plain text, by the types that the tool's schema gives them.

use serde_json::{Map, Value};

use super::loose_json::{LooseJson, Notation, Progress};
use super::text::{literal, quoted};
use crate::output::tool::Tool;

/// References inside a schema are followed this far.
const REFERENCES_MAX: usize = 8;

/// The types that a schema allows; none when it says nothing of types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Types {
    string: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    container: bool,
    null: bool,
}

/// How a value becomes JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typing {
    /// It is text, whatever it looks like.
    Text,
    /// It is text, unless all of it is `null`.
    TextOrNull,
    /// It has one of these types; `guess` reads values of no known type as JSON.
    Typed { types: Types, guess: bool },
}

impl Typing {
    /// The typing of the argument `name` of `tool`. What the schema does not know is text, or with
    /// `guess` whatever it looks like.
    pub(super) fn of(tool: Option<&Tool>, name: &str, guess: bool) -> Self {
        let schema = tool.and_then(|tool| tool.argument_schema(name));
        let root = tool.and_then(|tool| tool.parameters.as_ref());
        let types = schema.map_or_else(Types::default, |schema| Types::of(schema, root, 0));
        let only_text =
            Types { null: false, ..types } == Types { string: true, ..Types::default() };
        match (only_text, types.null) {
            (true, false) => Self::Text,
            (true, true) => Self::TextOrNull,
            _ if types == Types::default() && !guess => Self::Text,
            _ => Self::Typed { types, guess },
        }
    }

    /// The JSON of the whole value `raw`.
    pub(super) fn json(self, raw: &str) -> String {
        match self {
            Self::TextOrNull if is_null(raw.trim()) => "null".to_owned(),
            Self::Text | Self::TextOrNull => quoted(raw),
            Self::Typed { types, guess } => types.json(raw, guess),
        }
    }

    /// Whether the beginning of a value settles that it is text.
    pub(super) fn is_text(self, beginning: &str) -> bool {
        match self {
            Self::Text => true,
            Self::TextOrNull => {
                let beginning = beginning.trim();
                !["null", "None"].iter().any(|null| null.starts_with(beginning))
            }
            Self::Typed { .. } => false,
        }
    }
}

impl Types {
    fn of(schema: &Value, root: Option<&Map<String, Value>>, depth: usize) -> Self {
        let mut types = Self::default();
        let Some(fields) = schema.as_object().filter(|_| depth < REFERENCES_MAX) else {
            return types;
        };
        match fields.get("type") {
            Some(Value::String(name)) => types.add_name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| types.add_name(name));
            }
            _ => {}
        }
        let values = fields.get("enum").and_then(Value::as_array);
        values.into_iter().flatten().chain(fields.get("const")).for_each(|value| types.add(value));
        let several = ["anyOf", "oneOf", "allOf"].iter().filter_map(|name| fields.get(*name));
        let choices = several.filter_map(Value::as_array).flatten();
        let reference = fields.get("$ref").and_then(Value::as_str);
        let referred = reference.and_then(|reference| resolve(reference, root?));
        for schema in choices.chain(referred) {
            types = types.or(Self::of(schema, root, depth + 1));
        }
        types
    }

    fn or(self, other: Self) -> Self {
        Self {
            string: self.string || other.string,
            integer: self.integer || other.integer,
            number: self.number || other.number,
            boolean: self.boolean || other.boolean,
            container: self.container || other.container,
            null: self.null || other.null,
        }
    }

    fn add_name(&mut self, name: &str) {
        match name.to_ascii_lowercase().as_str() {
            "string" | "str" | "text" => self.string = true,
            "integer" | "int" | "long" => self.integer = true,
            "number" | "float" | "double" => self.number = true,
            "boolean" | "bool" => self.boolean = true,
            "object" | "array" | "dict" | "list" => self.container = true,
            "null" => self.null = true,
            _ => {}
        }
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Null => self.null = true,
            Value::Bool(_) => self.boolean = true,
            Value::Number(number) if number.is_f64() => self.number = true,
            Value::Number(_) => self.integer = true,
            Value::String(_) => self.string = true,
            Value::Array(_) | Value::Object(_) => self.container = true,
        }
    }

    /// The first of the types that `raw` can have, the narrowest first. A value that has none of them
    /// stays what it looks like: the client sees it and can say so to the model.
    fn json(self, raw: &str, guess: bool) -> String {
        let value = raw.trim();
        if is_null(value) && (self.null || !self.string) {
            return "null".to_owned();
        }
        let number = || literal(value).filter(|_| is_numeric(value));
        let typed = None
            .or_else(|| number().filter(|_| self.integer).and_then(|number| whole(&number)))
            .or_else(|| number().filter(|_| self.number))
            .or_else(|| truth(value).filter(|_| self.boolean))
            .or_else(|| loose(value).filter(|_| self.container));
        let guesses = !self.string && (guess || self != Self::default());
        typed.or_else(|| loose(value).filter(|_| guesses)).unwrap_or_else(|| quoted(raw))
    }
}

/// What `#/path/to/it` refers to.
fn resolve<'a>(reference: &str, root: &'a Map<String, Value>) -> Option<&'a Value> {
    let mut steps = reference.strip_prefix("#/")?.split('/');
    let first = root.get(steps.next()?)?;
    steps.try_fold(first, |value, step| value.get(step))
}

fn is_null(value: &str) -> bool {
    matches!(value, "null" | "None")
}

fn is_numeric(value: &str) -> bool {
    value.starts_with(|next: char| next.is_ascii_digit() || matches!(next, '-' | '+' | '.'))
}

/// A number without a fraction, as an integer.
fn whole(number: &str) -> Option<String> {
    if number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return Some(number.to_owned());
    }
    let real: f64 = number.parse().ok()?;
    let exact = real.fract() == 0.0 && real.abs() < 9e15;
    exact.then(|| format!("{real:.0}"))
}

fn truth(value: &str) -> Option<String> {
    let truth = match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => "true",
        "false" | "0" | "no" | "off" => "false",
        _ => return None,
    };
    Some(truth.to_owned())
}

/// All of `text` as one value in JSON or Python.
fn loose(text: &str) -> Option<String> {
    let mut json = String::new();
    let mut reader = LooseJson::value(Notation::Python);
    let (taken, progress) = reader.read(text, true, &mut json);
    let whole = text[taken..].trim().is_empty();
    let done = match progress {
        Progress::Done => true,
        Progress::More | Progress::Unclosed | Progress::Broken => false,
    };
    (done && whole).then_some(json)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: &Value, raw: &str, expected: &str) {
        let parameters = json!({
            "type": "object", "properties": {"a": schema},
            "$defs": {"Count": {"type": "integer"}},
        });
        let parameters = parameters.as_object().cloned();
        let tool = Tool { name: "t".to_owned(), description: None, parameters };
        assert_eq!(Typing::of(Some(&tool), "a", false).json(raw), expected, "{raw}");
    }

    #[test]
    fn values_get_the_narrowest_type_that_they_fit() {
        check(&json!({"type": "string"}), "5", "\"5\"");
        check(&json!({"type": "string"}), "null", "\"null\"");
        check(&json!({"type": ["string", "null"]}), "null", "null");
        check(&json!({"type": "integer"}), " 5\n", "5");
        check(&json!({"type": "integer"}), "5.0", "5");
        check(&json!({"type": "number"}), "5.50", "5.50");
        check(&json!({"type": "boolean"}), "True", "true");
        check(&json!({"type": "boolean"}), "0", "false");
        check(&json!({"type": "integer"}), "null", "null");
        check(&json!({"type": "array"}), "['a', 1,]", "[\"a\", 1]");
        check(&json!({"type": "object"}), "{\"a\": None}", "{\"a\": null}");
        check(&json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "5", "5");
        check(&json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "five", "\"five\"");
        check(&json!({"$ref": "#/$defs/Count"}), "7", "7");
        check(&json!({"enum": ["1", "2"]}), "1", "\"1\"");
        check(&json!({"enum": [1, 2]}), "1", "1");
    }

    #[test]
    fn a_value_that_fits_no_type_stays_what_it_looks_like() {
        check(&json!({"type": "integer"}), "abc", "\"abc\"");
        check(&json!({"type": "integer"}), "5.5", "5.5");
        check(&json!({"type": "object"}), "{broken", "\"{broken\"");
        check(&json!({"type": "integer"}), "[1]", "[1]");
    }

    #[test]
    fn what_the_schema_does_not_know_is_text_or_a_guess() {
        assert_eq!(Typing::of(None, "a", false).json("5"), "\"5\"");
        assert_eq!(Typing::of(None, "a", true).json("5"), "5");
        assert_eq!(Typing::of(None, "a", true).json("five"), "\"five\"");
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let parameters = json!({"properties": {"a": {"$ref": "#/properties/a"}}});
        let parameters = parameters.as_object().cloned();
        let tool = Tool { name: "t".to_owned(), description: None, parameters };
        assert_eq!(Typing::of(Some(&tool), "a", false), Typing::Text);
    }
}
