//! What is said in a message: one text, or parts.
//!
//! Every dialect lets a text come as an array of parts, each of a *type* that says which of its fields
//! holds the text. They differ in the types that may stand in a place, and in what goes between parts.

use serde_json::Value;

use super::Fields;
use super::fields::mismatch;
use crate::error::Result;

/// A type of part, and the field that holds its text.
pub(super) type Kind = (&'static str, &'static str);

/// What a field says.
pub(super) enum Contents<'a> {
    /// One text.
    Text(&'a str),
    /// Parts, not yet read.
    Parts(Vec<Fields<'a>>),
}

/// The contents of the field `name`, if it is set.
///
/// # Errors
/// `InvalidRequest` when it holds anything but a string or an array of objects.
pub(super) fn contents<'a>(fields: &Fields<'a>, name: &str) -> Result<Option<Contents<'a>>> {
    let path = fields.path_of(name);
    let parts = match fields.get(name) {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(Contents::Text(text))),
        Some(Value::Array(parts)) => parts.iter().enumerate(),
        Some(other) => return Err(mismatch(&path, "a string or an array of parts", other)),
    };
    let parts = parts.map(|(index, part)| Fields::at(format!("{path}[{index}]"), part));
    parts.collect::<Result<_>>().map(|parts| Some(Contents::Parts(parts)))
}

/// The texts of the field `name`, whose parts must all be of one of `kinds`; `None` when it is not set.
///
/// # Errors
/// `InvalidRequest` when a part is malformed, `Unsupported` when it is of another type.
pub(super) fn texts<'a>(
    fields: &Fields<'a>,
    name: &str,
    kinds: &[Kind],
) -> Result<Option<Vec<&'a str>>> {
    match contents(fields, name)? {
        None => Ok(None),
        Some(Contents::Text(text)) => Ok(Some(vec![text])),
        Some(Contents::Parts(parts)) => {
            parts.iter().map(|part| text(part, kinds)).collect::<Result<_>>().map(Some)
        }
    }
}

/// The text of a part, which must be of one of `kinds`.
///
/// # Errors
/// As [`texts`].
pub(super) fn text<'a>(part: &Fields<'a>, kinds: &[Kind]) -> Result<&'a str> {
    let kind = part.required_text("type")?;
    match kinds.iter().find(|(known, _)| *known == kind) {
        Some((_, field)) => part.required_text(field),
        None => Err(part.unsupported_kind("type", "parts", kind)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Code;

    const KINDS: &[Kind] = &[("text", "text"), ("refusal", "refusal")];

    fn read(content: &Value) -> Result<Option<Vec<String>>> {
        let body = json!({"content": content});
        let texts = texts(&Fields::of_body(&body)?, "content", KINDS)?;
        Ok(texts.map(|texts| texts.into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn a_text_is_one_and_parts_are_as_many_as_there_are() {
        assert_eq!(read(&Value::Null).unwrap(), None);
        assert_eq!(read(&json!("a")).unwrap(), Some(vec!["a".to_owned()]));
        assert_eq!(read(&json!([])).unwrap(), Some(Vec::new()));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]);
        assert_eq!(read(&parts).unwrap(), Some(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn a_bad_part_is_told_by_its_path() {
        use Code::{InvalidRequest, Unsupported};
        for (content, code, param) in [
            (json!(7), InvalidRequest, "content"),
            (json!(["a"]), InvalidRequest, "content[0]"),
            (json!([{"text": "a"}]), InvalidRequest, "content[0].type"),
            (
                json!([{"type": "text", "text": "a"}, {"type": "text"}]),
                InvalidRequest,
                "content[1].text",
            ),
            (json!([{"type": "image"}]), Unsupported, "content[0].type"),
        ] {
            let error = read(&content).unwrap_err();
            assert_eq!((error.code(), error.param()), (code, Some(param)), "{error}");
        }
    }
}
