//! JSON schemas before they are compiled: what we know of and cannot hold an answer to is refused by name.

use llguidance::derivre::RegexBuilder;
use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};
use crate::limits::SCHEMA_NODES_MAX;

/// Keywords of JSON Schema (drafts 4 to 2020-12) that no token mask here can enforce.
const UNSUPPORTED: [&str; 18] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "$dynamicAnchor",
    "$recursiveAnchor",
];

/// Keywords whose value is a schema, or a list of them.
const HOLDS_SCHEMAS: [&str; 7] =
    ["items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf", "oneOf"];

/// Keywords whose value names schemas.
const NAMES_SCHEMAS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Between two parts of a value stands one space, or one line break with an indentation: a model that
/// goes on with white space for ever has no way to.
const WHITE_SPACE: &str = r"\x20|\r?\n[\x20\t]{0,32}";

/// Makes `schema` what the compiler is given. A `strict` one must mean what it says; of another, what an answer
/// cannot be held to is left out.
///
/// # Errors
/// `InvalidRequest` when it is no schema or too large, `Unsupported` with the keyword and its place.
pub(super) fn prepared(schema: &str, strict: bool) -> Result<Value> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| {
        Error::new(Code::InvalidRequest, format!("the JSON schema is not JSON: {error}"))
    })?;
    let Value::Object(mut fields) = schema else {
        let message = format!("the JSON schema is `{schema}`, expected an object");
        return Err(Error::new(Code::InvalidRequest, message));
    };
    Survey { strict, nodes: 0 }.object(&mut fields, "#")?;
    fields.insert(
        "x-guidance".to_owned(),
        serde_json::json!({"whitespace_pattern": WHITE_SPACE, "lenient": !strict}),
    );
    Ok(Value::Object(fields))
}

/// A walk over all subschemas.
struct Survey {
    strict: bool,
    nodes: usize,
}

impl Survey {
    fn schema(&mut self, schema: &mut Value, place: &str) -> Result<()> {
        match schema {
            Value::Object(fields) => self.object(fields, place),
            Value::Array(schemas) => {
                for (index, schema) in schemas.iter_mut().enumerate() {
                    self.schema(schema, &format!("{place}/{index}"))?;
                }
                Ok(())
            }
            // Booleans are schemas; whatever else stands here, the compiler refuses.
            _ => Ok(()),
        }
    }

    fn object(&mut self, fields: &mut Map<String, Value>, place: &str) -> Result<()> {
        self.nodes += 1;
        if self.nodes > SCHEMA_NODES_MAX {
            let message = format!("the JSON schema has more than {SCHEMA_NODES_MAX} parts");
            return Err(Error::new(Code::InvalidRequest, message));
        }
        if !self.strict {
            leave_out(fields);
        }
        for (keyword, value) in fields {
            let place = format!("{place}/{keyword}");
            check(keyword, value, &place)?;
            if HOLDS_SCHEMAS.contains(&keyword.as_str()) {
                self.schema(value, &place)?;
            } else if NAMES_SCHEMAS.contains(&keyword.as_str()) {
                for (name, schema) in value.as_object_mut().into_iter().flatten() {
                    self.schema(schema, &format!("{place}/{name}"))?;
                }
            }
        }
        Ok(())
    }
}

fn check(keyword: &str, value: &Value, place: &str) -> Result<()> {
    if UNSUPPORTED.contains(&keyword) {
        let message =
            format!("the JSON schema uses `{keyword}`, which is not supported (at `{place}`)");
        return Err(Error::new(Code::Unsupported, message)
            .with_hint("leave it out; where the API has `strict`, false has it ignored"));
    }
    match value.as_str().filter(|target| keyword == "$ref" && leads_away(target)) {
        Some(target) => {
            let message = format!(
                "the JSON schema refers to `{target}`, and only references within it, which begin \
                 with `#`, are supported (at `{place}`)"
            );
            Err(Error::new(Code::Unsupported, message))
        }
        None => Ok(()),
    }
}

/// Leaves out what no answer can be held to. Formats and combinations are the compiler's to leave out.
fn leave_out(fields: &mut Map<String, Value>) {
    fields.retain(|keyword, value| match (keyword.as_str(), value.as_str()) {
        ("$ref", Some(target)) => !leads_away(target),
        ("pattern", Some(pattern)) => is_regular(pattern),
        (keyword, _) => !UNSUPPORTED.contains(&keyword),
    });
    if let Some(Value::Object(properties)) = fields.get_mut("patternProperties") {
        properties.retain(|pattern, _| is_regular(pattern));
    }
}

fn leads_away(target: &str) -> bool {
    !target.starts_with('#')
}

/// Whether the compiler can read the pattern: it has no look-around and no back references.
fn is_regular(pattern: &str) -> bool {
    RegexBuilder::new().mk_regex_for_serach(pattern).is_ok()
}
