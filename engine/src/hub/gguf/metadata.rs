//! The typed key-value pairs of a header.
//!
//! A getter answers `None` for an absent key and an error for a key of another type or range, so
//! that a malformed value is never taken for a missing one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::bad_import;
use crate::error::Result;

/// One metadata value. Integers of all widths become one kind, floats too.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any signed or unsigned integer.
    Integer(i128),
    /// A float; an `f32` becomes the `f64` of its shortest decimal, as a `config.json` would say it.
    Float(f64),
    /// A boolean.
    Boolean(bool),
    /// A string.
    String(String),
    /// An array.
    Array(Array),
}

/// An array value, kept compactly.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Strings.
    Strings(Vec<String>),
    /// Integers of up to 32 bits.
    Integers(Vec<i64>),
    /// `f32` numbers.
    Floats(Vec<f32>),
    /// A kind that no model we import uses (64-bit numbers, booleans, arrays): only the count is kept.
    Other(usize),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Boolean(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(Array::Strings(_)) => "an array of strings",
            Self::Array(Array::Integers(_)) => "an array of integers",
            Self::Array(Array::Floats(_)) => "an array of floats",
            Self::Array(Array::Other(_)) => "an array",
        }
    }
}

/// All key-value pairs of one file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    values: HashMap<String, Value>,
}

impl Metadata {
    /// Adds a pair; a key that is already there is an error.
    pub fn insert(&mut self, key: String, value: Value) -> Result<()> {
        match self.values.entry(key) {
            Entry::Vacant(place) => {
                place.insert(value);
                Ok(())
            }
            Entry::Occupied(place) => {
                Err(bad_import(format!("metadata key `{}` occurs twice", place.key())))
            }
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A string value.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A boolean value.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", |value| match value {
            Value::Boolean(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A count or an id: an integer in the range of `u32`, which is what the format's writers use.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer from 0 to 4294967295", |value| match value {
            Value::Integer(number) => u32::try_from(*number).ok().map(u64::from),
            _ => None,
        })
    }

    /// A finite number above zero.
    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number above 0", |value| match value {
            Value::Float(number) if number.is_finite() && *number > 0.0 => Some(*number),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::Strings(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of up to 32 bits.
    pub fn integers(&self, key: &str) -> Result<Option<&[i64]>> {
        self.typed(key, "an array of 32-bit integers", |value| match value {
            Value::Array(Array::Integers(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// An array of `f32` numbers.
    pub fn floats(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of 32-bit floats", |value| match value {
            Value::Array(Array::Floats(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        pick(value).map(Some).ok_or_else(|| {
            let found = match value {
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                other => other.kind().to_owned(),
            };
            bad_import(format!("metadata `{key}` must be {wanted}, found {found}"))
        })
    }
}

/// Turns an absent value into the error that names `key`.
pub fn required<T>(value: Option<T>, key: &str) -> Result<T> {
    value.ok_or_else(|| bad_import(format!("metadata `{key}` is missing")))
}
