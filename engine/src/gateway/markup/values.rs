//! Values in the notations of formats that do not write JSON, as their tool's schema has them.
//!
//! - **Gemma's**: bare keys, and strings between two copies of a marker, without escapes.
//! - **Python's**: `True`, `False` and `None`; strings, lists and dictionaries as JSON writes them, which is
//!   how templates print nested values.
//!
//! A schema holds a value as far as its type, choices, lengths, bounds, items and properties go. What else it
//! asks is between the client and the model. A value that a notation cannot write, such as a string that
//! spells the marker, is left out where something else may stand, and `None` where nothing may.

use serde_json::{Map, Value, json};

use super::{marker, text, until};
use crate::grammar::Part;

/// Values deeper than this are not written: schemas may refer to themselves.
const DEPTH_MAX: usize = 8;

/// Values of no known type hold lists and objects this deep.
const FREE_DEPTH_MAX: usize = 2;

/// Longer strings are not counted.
const COUNTED_CHARACTERS_MAX: u64 = 4096;

/// Keys of objects whose keys are not known.
const FREE_KEY: &str = "[A-Za-z_][A-Za-z0-9_]{0,63}";

/// Numbers that a double holds, and integers that 64 bits do.
const INTEGER: &str = "-?(0|[1-9][0-9]{0,17})";
const NUMBER: &str = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?";

/// Keywords that bound a number.
const BOUNDS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// How values are written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Notation {
    Gemma { quote: &'static str },
    Python,
}

/// What a schema says of a value's type.
enum Shape<'a> {
    Any,
    OneOf(Vec<&'a Value>),
    AnyOf(&'a [Value]),
    Typed(Vec<&'a str>, &'a Map<String, Value>),
}

/// Writes the values of one tool's schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a> {
    pub(super) notation: Notation,
    /// What references in the schema refer to.
    pub(super) root: &'a Map<String, Value>,
}

impl Values<'_> {
    /// A value of `schema`.
    pub(super) fn value(&self, schema: &Value) -> Option<Vec<Part>> {
        self.nested(schema, 0)
    }

    fn nested(&self, schema: &Value, depth: usize) -> Option<Vec<Part>> {
        if depth > DEPTH_MAX {
            return None;
        }
        match shape(schema, self.root, 0) {
            Shape::OneOf(values) => {
                either(values.into_iter().map(|value| self.constant(value)).collect())
            }
            Shape::AnyOf(schemas) => {
                either(schemas.iter().map(|schema| self.nested(schema, depth + 1)).collect())
            }
            Shape::Typed(kinds, fields) => {
                either(kinds.into_iter().map(|kind| self.typed(kind, fields, depth)).collect())
            }
            Shape::Any => {
                let kinds = ["string", "number", "boolean", "null", "array", "object"];
                let flat = depth >= FREE_DEPTH_MAX;
                let kinds = &kinds[..if flat { 4 } else { 6 }];
                let free = Map::new();
                either(kinds.iter().map(|kind| self.typed(kind, &free, depth)).collect())
            }
        }
    }

    fn typed(&self, kind: &str, fields: &Map<String, Value>, depth: usize) -> Option<Vec<Part>> {
        match (kind, self.notation) {
            ("integer" | "number", _) => Some(vec![number(kind, fields)]),
            ("boolean", Notation::Gemma { .. }) => Some(vec![one_of(["true", "false"])]),
            ("boolean", Notation::Python) => Some(vec![one_of(["True", "False"])]),
            ("null", Notation::Gemma { .. }) => Some(vec![text("null")]),
            ("null", Notation::Python) => Some(vec![text("None")]),
            ("string", Notation::Gemma { quote }) => {
                Some(vec![marker(quote), until(&string(fields), &[], vec![marker(quote)])])
            }
            ("array", Notation::Gemma { .. }) => self.list(fields, depth),
            ("object", Notation::Gemma { .. }) => self.object(fields, depth),
            ("string" | "array" | "object", Notation::Python) => {
                Some(vec![json_of(fields, kind, self.root)])
            }
            _ => None,
        }
    }

    fn list(&self, fields: &Map<String, Value>, depth: usize) -> Option<Vec<Part>> {
        let bound = |name: &str| fields.get(name).and_then(Value::as_u64).map(|most| most as usize);
        let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems"));
        let item = self.nested(fields.get("items").unwrap_or(&Value::Null), depth + 1);
        let items = match item {
            Some(item) => vec![Part::List { item, separator: ",".to_owned(), least, most }],
            None if least == 0 => Vec::new(),
            None => return None,
        };
        Some([vec![text("[")], items, vec![text("]")]].concat())
    }

    fn object(&self, fields: &Map<String, Value>, depth: usize) -> Option<Vec<Part>> {
        let separator = ",".to_owned();
        let named = properties(fields);
        let more = fields.get("additionalProperties").unwrap_or(&Value::Null);
        let members = match (named.is_empty(), more) {
            (true, Value::Bool(false)) => Vec::new(),
            (true, more) => match self.nested(more, depth + 1) {
                Some(value) => {
                    let key = vec![Part::Match(FREE_KEY.to_owned()), text(":")];
                    let item = [key, value].concat();
                    vec![Part::List { item, separator, least: 0, most: None }]
                }
                None => Vec::new(),
            },
            (false, _) => vec![Part::Members { separator, members: self.members(named, depth)? }],
        };
        Some([vec![text("{")], members, vec![text("}")]].concat())
    }

    fn members(
        &self,
        properties: Vec<Property<'_>>,
        depth: usize,
    ) -> Option<Vec<(Vec<Part>, bool)>> {
        let mut members = Vec::new();
        for Property { name, schema, required } in properties {
            match self.key(name).zip(self.nested(schema, depth + 1)) {
                Some((key, value)) => members.push(([key, value].concat(), required)),
                None if required => return None,
                None => {}
            }
        }
        Some(members)
    }

    /// The key `name` and what comes between it and its value.
    pub(super) fn key(&self, name: &str) -> Option<Vec<Part>> {
        match self.notation {
            Notation::Python if is_keyword(name) => Some(vec![text(&format!("{name}="))]),
            Notation::Gemma { .. } if is_bare(name) => Some(vec![text(&format!("{name}:"))]),
            Notation::Gemma { quote } if !name.contains(quote) => {
                Some(vec![marker(quote), text(name), marker(quote), text(":")])
            }
            Notation::Python | Notation::Gemma { .. } => None,
        }
    }

    fn constant(&self, value: &Value) -> Option<Vec<Part>> {
        Some(match (value, self.notation) {
            (Value::String(value), Notation::Gemma { quote }) if value.contains(quote) => {
                return None;
            }
            (Value::String(value), Notation::Gemma { quote }) => {
                vec![marker(quote), text(value), marker(quote)]
            }
            (Value::Bool(true), Notation::Python) => vec![text("True")],
            (Value::Bool(false), Notation::Python) => vec![text("False")],
            (Value::Null, Notation::Python) => vec![text("None")],
            (Value::Array(values), Notation::Gemma { .. }) => {
                let values = values.iter().map(|value| self.constant(value));
                listed("[", values.collect::<Option<_>>()?, "]")
            }
            (Value::Object(fields), Notation::Gemma { .. }) => {
                let member = |(name, value): (&String, &Value)| {
                    Some([self.key(name)?, self.constant(value)?].concat())
                };
                listed("{", fields.iter().map(member).collect::<Option<_>>()?, "}")
            }
            (value, _) => vec![text(&value.to_string())],
        })
    }
}

/// A property of an object.
pub(super) struct Property<'a> {
    pub(super) name: &'a str,
    pub(super) schema: &'a Value,
    pub(super) required: bool,
}

/// The properties that the schema of an object tells of, in its order; behind them those of which it says no
/// more than that they must be there.
pub(super) fn properties(fields: &Map<String, Value>) -> Vec<Property<'_>> {
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let told = fields.get("properties").and_then(Value::as_object).into_iter().flatten();
    let mut properties: Vec<Property<'_>> = told
        .map(|(name, schema)| Property {
            name,
            schema,
            required: required.contains(&name.as_str()),
        })
        .collect();
    for name in required {
        if !properties.iter().any(|property| property.name == name) {
            properties.push(Property { name, schema: &Value::Null, required: true });
        }
    }
    properties
}

fn shape<'a>(schema: &'a Value, root: &'a Map<String, Value>, depth: usize) -> Shape<'a> {
    let Some(fields) = schema.as_object().filter(|_| depth <= DEPTH_MAX) else {
        return Shape::Any;
    };
    let list = |name: &str| fields.get(name).and_then(Value::as_array).map(Vec::as_slice);
    if let Some(value) = fields.get("const") {
        return Shape::OneOf(vec![value]);
    }
    if let Some(values) = list("enum") {
        return Shape::OneOf(values.iter().collect());
    }
    if let Some(pointer) = fields.get("$ref").and_then(Value::as_str) {
        let target = pointer.strip_prefix('#').and_then(|path| super::find(root, path));
        return target.map_or(Shape::Any, |target| shape(target, root, depth + 1));
    }
    match fields.get("type") {
        Some(Value::String(kind)) => return Shape::Typed(vec![kind], fields),
        Some(Value::Array(kinds)) => {
            return Shape::Typed(kinds.iter().filter_map(Value::as_str).collect(), fields);
        }
        _ => {}
    }
    match (list("anyOf").or_else(|| list("oneOf")), list("allOf")) {
        (Some(schemas), _) => Shape::AnyOf(schemas),
        (None, Some([schema])) => shape(schema, root, depth + 1),
        _ if fields.contains_key("properties") => Shape::Typed(vec!["object"], fields),
        _ if fields.contains_key("items") => Shape::Typed(vec!["array"], fields),
        _ => Shape::Any,
    }
}

/// The ways that can be written.
fn either(ways: Vec<Option<Vec<Part>>>) -> Option<Vec<Part>> {
    let mut ways: Vec<Vec<Part>> = ways.into_iter().flatten().collect();
    match ways.len() {
        0 => None,
        1 => ways.pop(),
        _ => Some(vec![Part::Either(ways)]),
    }
}

fn one_of<const N: usize>(texts: [&str; N]) -> Part {
    Part::OneOf(texts.map(str::to_owned).to_vec())
}

fn listed(open: &str, items: Vec<Vec<Part>>, close: &str) -> Vec<Part> {
    let mut parts = vec![text(open)];
    for (index, item) in items.into_iter().enumerate() {
        parts.extend((index > 0).then(|| text(",")));
        parts.extend(item);
    }
    parts.push(text(close));
    parts
}

fn number(kind: &str, fields: &Map<String, Value>) -> Part {
    let mut bounded = Map::new();
    for name in BOUNDS {
        if let Some(bound) = fields.get(name) {
            bounded.insert(name.to_owned(), bound.clone());
        }
    }
    if bounded.is_empty() {
        let pattern = if kind == "integer" { INTEGER } else { NUMBER };
        return Part::Match(pattern.to_owned());
    }
    bounded.insert("type".to_owned(), json!(kind));
    Part::Json { schema: Value::Object(bounded).to_string(), strict: false }
}

/// A regular expression of texts as long as the schema has them.
pub(super) fn string(fields: &Map<String, Value>) -> String {
    let bound = |name: &str| fields.get(name).and_then(Value::as_u64);
    let bound = |name| bound(name).filter(|characters| *characters <= COUNTED_CHARACTERS_MAX);
    match (bound("minLength").unwrap_or(0), bound("maxLength")) {
        (0, None) => "(?s:.*)".to_owned(),
        (least, None) => format!("(?s:.{{{least},}})"),
        (least, Some(most)) => format!("(?s:.{{{least},{}}})", most.max(least)),
    }
}

/// JSON of the schema `fields`, of this type alone.
fn json_of(fields: &Map<String, Value>, kind: &str, root: &Map<String, Value>) -> Part {
    let mut schema = fields.clone();
    schema.insert("type".to_owned(), json!(kind));
    super::json(schema, root)
}

/// Whether `name` can stand before a `=` in Python, as the parser of `output` reads it.
fn is_keyword(name: &str) -> bool {
    let fits = |next: char| next.is_alphanumeric() || next == '_';
    name.chars().all(fits) && !name.is_empty() && !name.starts_with(|next: char| next.is_numeric())
}

/// Whether `name` needs no quotes in Gemma's notation.
fn is_bare(name: &str) -> bool {
    let breaks = |next: char| ",{}[]<\":".contains(next) || next.is_control();
    !name.contains(breaks) && !name.is_empty() && name.trim() == name
}
