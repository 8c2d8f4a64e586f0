//! Typed reads of a JSON object.
//!
//! A field that is absent and one that is `null` are the same: unset. Unknown fields are ignored by
//! not being asked for. Every error names the field by its path (`messages[2].content`) and says
//! what it held.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};

const SHOWN_CHARS_MAX: usize = 60;

/// An object of a request body, and where in the body it stands.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The request body itself.
    ///
    /// # Errors
    /// `InvalidRequest` when it is not an object.
    pub fn of_body(body: &'a Value) -> Result<Self> {
        match body {
            Value::Object(object) => Ok(Self { object, path: String::new() }),
            other => Err(Error::new(
                Code::InvalidRequest,
                format!("the request body must be a JSON object, got {}", shown(other)),
            )),
        }
    }

    /// An object inside the body.
    ///
    /// # Errors
    /// `InvalidRequest` naming `path` when `value` is not an object.
    pub fn at(path: impl Into<String>, value: &'a Value) -> Result<Self> {
        let path = path.into();
        match value {
            Value::Object(object) => Ok(Self { object, path }),
            other => Err(mismatch(&path, "an object", other)),
        }
    }

    /// The object's own map.
    pub fn object(&self) -> &'a Map<String, Value> {
        self.object
    }

    /// The full path of the field `name`.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field's value, if it is set.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// The value of a field that must be set.
    ///
    /// # Errors
    /// `InvalidRequest` when it is not.
    pub fn required(&self, name: &str) -> Result<&'a Value> {
        let path = self.path_of(name);
        self.get(name).ok_or_else(|| Error::invalid(&path, format!("`{path}` is required")))
    }

    /// A string field.
    ///
    /// # Errors
    /// `InvalidRequest` when it holds anything else.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.read(name, "a string", Value::as_str)
    }

    /// A string field that must be set.
    ///
    /// # Errors
    /// `InvalidRequest` when it is not, or holds anything else.
    pub fn required_text(&self, name: &str) -> Result<&'a str> {
        self.required(name)?;
        Ok(self.text(name)?.unwrap_or_default())
    }

    /// A boolean field.
    ///
    /// # Errors
    /// `InvalidRequest` when it holds anything else.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>> {
        self.read(name, "a boolean", Value::as_bool)
    }

    /// An array field.
    ///
    /// # Errors
    /// `InvalidRequest` when it holds anything else.
    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>> {
        self.read(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    /// An object field.
    ///
    /// # Errors
    /// `InvalidRequest` when it holds anything else.
    pub fn nested(&self, name: &str) -> Result<Option<Self>> {
        self.get(name).map(|value| Self::at(self.path_of(name), value)).transpose()
    }

    /// An object field that must be set.
    ///
    /// # Errors
    /// `InvalidRequest` when it is not, or holds anything else.
    pub fn required_nested(&self, name: &str) -> Result<Self> {
        Self::at(self.path_of(name), self.required(name)?)
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// `InvalidRequest` when it is not a whole number, or outside.
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match (value.as_i64(), value.as_u64()) {
            (Some(number), _) if range.contains(&number) => Ok(Some(number)),
            // A number above i64 is beyond every upper bound there is.
            (Some(_), _) | (None, Some(_)) => {
                let expected = between(range.start(), range.end(), *range.end() == i64::MAX);
                Err(mismatch(&self.path_of(name), &expected, value))
            }
            (None, None) => Err(mismatch(&self.path_of(name), "an integer", value)),
        }
    }

    /// A number within `range`.
    ///
    /// # Errors
    /// `InvalidRequest` when it is not a number, not finite, or outside.
    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            Some(_) => {
                let open = *range.end() >= f64::from(f32::MAX);
                let expected = between(range.start(), range.end(), open);
                Err(mismatch(&self.path_of(name), &expected, value))
            }
            None => Err(mismatch(&self.path_of(name), "a number", value)),
        }
    }

    /// The error of the field `name`, which should have held what is `expected`.
    pub fn unexpected(&self, name: &str, expected: &str) -> Error {
        let given = self.object.get(name).unwrap_or(&Value::Null);
        mismatch(&self.path_of(name), expected, given)
    }

    /// The error of the field `name`, whose value, a kind of `things`, is known and not supported there.
    pub fn unsupported_kind(&self, name: &str, things: &str, kind: &str) -> Error {
        let (path, kind) = (self.path_of(name), shortened(kind));
        unsupported(
            &path,
            format!("`{path}`: {things} of the type `{kind}` are not supported here"),
        )
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| mismatch(&self.path_of(name), expected, value))
    }
}

/// The error of a field at `path` that should have been `expected` and holds `value`.
pub(super) fn mismatch(path: &str, expected: &str, value: &Value) -> Error {
    Error::invalid(path, format!("`{path}` must be {expected}, got {}", shown(value)))
}

/// The error of what is known and not supported, at `path`.
pub(super) fn unsupported(path: &str, message: String) -> Error {
    Error::new(Code::Unsupported, message).with_param(path)
}

/// A value as an error message shows it: short, whatever the client sent.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(boolean) => boolean.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the string `{}`", shortened(text)),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The beginning of a text that may be long.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn between<T: std::fmt::Display>(least: &T, most: &T, open: bool) -> String {
    if open { format!("at least {least}") } else { format!("between {least} and {most}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
        result.expect_err("the read should fail").message().to_owned()
    }

    #[test]
    fn null_and_absent_are_both_unset() {
        let body = json!({"a": null});
        let fields = Fields::of_body(&body).unwrap();
        assert_eq!(fields.text("a").unwrap(), None);
        assert_eq!(fields.integer("b", 0..=9).unwrap(), None);
        assert_eq!(message(fields.required("a")), "`a` is required");
    }

    #[test]
    fn an_error_names_the_path_the_expectation_and_the_value() {
        let body =
            json!({"outer": {"t": "hot", "k": -1, "f": 1.5, "big": 18446744073709551615u64}});
        let outer = Fields::of_body(&body).unwrap().nested("outer").unwrap().unwrap();
        let error = outer.number("t", 0.0..=1.0).unwrap_err();
        assert_eq!(error.param(), Some("outer.t"));
        assert_eq!(error.message(), "`outer.t` must be a number, got the string `hot`");
        assert_eq!(
            message(outer.integer("k", 0..=i64::MAX)),
            "`outer.k` must be at least 0, got -1"
        );
        assert_eq!(
            message(outer.number("f", 0.0..=1.0)),
            "`outer.f` must be between 0 and 1, got 1.5"
        );
        assert_eq!(message(outer.integer("f", 0..=9)), "`outer.f` must be an integer, got 1.5");
        assert_eq!(
            message(outer.integer("big", 0..=9)),
            "`outer.big` must be between 0 and 9, got 18446744073709551615"
        );
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let body = json!({"a": "é".repeat(5000)});
        let text = message(Fields::of_body(&body).unwrap().boolean("a"));
        assert!(text.chars().count() < 120, "{text}");
    }
}
