//! What the answer must look like: OpenAI's `response_format`, and the names that vLLM gives to the rest
//! (`structured_outputs`, and the older `guided_*`).
//!
//! A schema that is `strict` is held to the letter, or refused by the keyword that cannot be. Without that,
//! which is OpenAI's default, what cannot be held is left out of it. vLLM's names know no such word, and mean
//! what they say.

use serde_json::Value;

use crate::error::{Code, Error, Result};
use crate::gateway::Structure;
use crate::grammar::Constraint;
use crate::wire::Fields;
use crate::wire::fields::mismatch;

/// Reads the constraint of a request, from whichever field it came by.
///
/// # Errors
/// `InvalidRequest` when a field is malformed or two fields ask for different things, `Unsupported` for forms
/// that are known and not supported.
pub(super) fn structure(fields: &Fields<'_>) -> Result<Option<Structure>> {
    let mut asked = Vec::new();
    asked.extend(response_format(fields)?);
    if let Some(nested) = fields.nested("structured_outputs")? {
        asked.extend(one_constraint(&nested)?);
    }
    asked.extend(kinds(fields, "guided_")?);
    only(asked)
}

fn response_format(fields: &Fields<'_>) -> Result<Option<Structure>> {
    let Some(format) = fields.nested("response_format")? else {
        return Ok(None);
    };
    format.required("type")?;
    let path = format.path_of("type");
    match format.text("type")?.unwrap_or_default() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Structure {
            constraint: Constraint::JsonObject,
            param: "response_format".into(),
        })),
        "json_schema" => json_schema(&format).map(Some),
        other @ ("structural_tag" | "grammar" | "python") => {
            let message = format!("`{path}`: the format `{other}` is not supported");
            Err(Error::new(Code::Unsupported, message).with_param(path))
        }
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            Err(mismatch(&path, expected, format.required("type")?))
        }
    }
}

fn json_schema(format: &Fields<'_>) -> Result<Structure> {
    format.required("json_schema")?;
    let path = format.path_of("json_schema");
    let named = Fields::at(path, format.required("json_schema")?)?;
    let strict = named.boolean("strict")?.unwrap_or(false);
    named.required("schema")?;
    schema(&named, "schema", strict)
}

/// The one constraint of `structured_outputs`.
fn one_constraint(nested: &Fields<'_>) -> Result<Option<Structure>> {
    let mut asked = kinds(nested, "")?;
    if nested.boolean("json_object")?.unwrap_or(false) {
        let param = nested.path_of("json_object");
        asked.push(Structure { constraint: Constraint::JsonObject, param });
    }
    if asked.is_empty() {
        let message = "`structured_outputs` holds none of `json`, `json_object`, `regex`, `choice` and `grammar`";
        return Err(Error::invalid("structured_outputs", message));
    }
    only(asked)
}

/// The constraints of the fields `json`, `regex`, `choice` and `grammar`, whose names begin with `prefix`.
fn kinds(fields: &Fields<'_>, prefix: &str) -> Result<Vec<Structure>> {
    let name = |kind: &str| format!("{prefix}{kind}");
    for unknown in ["structural_tag", "whitespace_pattern", "disable_any_whitespace"].map(name) {
        if fields.get(&unknown).is_some_and(|value| *value != Value::Bool(false)) {
            let path = fields.path_of(&unknown);
            let message = format!("`{path}` is not supported by this server");
            return Err(Error::new(Code::Unsupported, message).with_param(path));
        }
    }
    let mut asked = Vec::new();
    if fields.get(&name("json")).is_some() {
        asked.push(schema(fields, &name("json"), true)?);
    }
    let of = |kind: &str, constraint| Structure { constraint, param: fields.path_of(&name(kind)) };
    if let Some(pattern) = fields.text(&name("regex"))? {
        asked.push(of("regex", Constraint::Regex(pattern.to_owned())));
    }
    if let Some(choices) = fields.array(&name("choice"))? {
        let path = fields.path_of(&name("choice"));
        asked.push(of("choice", Constraint::Choice(texts(&path, choices)?)));
    }
    if let Some(grammar) = fields.text(&name("grammar"))? {
        asked.push(of("grammar", Constraint::Grammar(grammar.to_owned())));
    }
    Ok(asked)
}

/// A schema, which may also come as its text.
///
/// # Errors
/// `InvalidRequest` when it is neither.
pub(in crate::wire) fn schema(fields: &Fields<'_>, name: &str, strict: bool) -> Result<Structure> {
    let param = fields.path_of(name);
    let schema = match fields.required(name)? {
        Value::String(text) => text.clone(),
        object @ Value::Object(_) => object.to_string(),
        other => return Err(mismatch(&param, "a JSON schema, which is an object", other)),
    };
    Ok(Structure { constraint: Constraint::JsonSchema { schema, strict }, param })
}

fn texts(path: &str, items: &[Value]) -> Result<Vec<String>> {
    let text = |(index, item): (usize, &Value)| {
        let text = item.as_str().map(str::to_owned);
        text.ok_or_else(|| mismatch(&format!("{path}[{index}]"), "a string", item))
    };
    items.iter().enumerate().map(text).collect()
}

fn only(mut asked: Vec<Structure>) -> Result<Option<Structure>> {
    match &asked[..] {
        [first, second, ..] => {
            let message = format!(
                "`{}` and `{}` both say what the answer must look like: send one of them",
                first.param, second.param
            );
            Err(Error::invalid(second.param.clone(), message))
        }
        _ => Ok(asked.pop()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<Option<Structure>> {
        structure(&Fields::of_body(body).unwrap())
    }

    #[track_caller]
    fn check(body: &Value, constraint: Option<Constraint>, param: &str) {
        let expected =
            constraint.map(|constraint| Structure { constraint, param: param.to_owned() });
        assert_eq!(read(body).unwrap(), expected, "{body}");
    }

    #[track_caller]
    fn check_refused(body: &Value, code: Code, param: &str) {
        let error = read(body).unwrap_err();
        assert_eq!((error.code(), error.param()), (code, Some(param)), "{body}: {error}");
    }

    #[test]
    fn every_form_of_a_constraint_is_read() {
        let schema =
            |strict| Some(Constraint::JsonSchema { schema: r#"{"b":1,"a":2}"#.to_owned(), strict });
        let format = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": schema}});
        let own = json!({"b": 1, "a": 2});
        let path = "response_format.json_schema.schema";
        check(&json!({}), None, "");
        check(&json!({"response_format": null, "guided_json": null}), None, "");
        check(&json!({"response_format": {"type": "text"}}), None, "");
        let object = json!({"response_format": {"type": "json_object"}});
        check(&object, Some(Constraint::JsonObject), "response_format");
        check(&format(json!({"name": "x", "schema": own})), schema(false), path);
        check(&format(json!({"schema": own, "strict": true})), schema(true), path);
        check(&format(json!({"schema": own, "strict": false})), schema(false), path);
        check(&json!({"guided_json": own}), schema(true), "guided_json");
        check(&json!({"guided_json": own.to_string()}), schema(true), "guided_json");
        check(
            &json!({"structured_outputs": {"json": own}}),
            schema(true),
            "structured_outputs.json",
        );
        let regex = Some(Constraint::Regex("a+".to_owned()));
        check(&json!({"guided_regex": "a+"}), regex.clone(), "guided_regex");
        check(&json!({"structured_outputs": {"regex": "a+"}}), regex, "structured_outputs.regex");
        let choice = Some(Constraint::Choice(vec!["a".to_owned(), "b".to_owned()]));
        check(&json!({"guided_choice": ["a", "b"]}), choice.clone(), "guided_choice");
        check(
            &json!({"structured_outputs": {"choice": ["a", "b"]}}),
            choice,
            "structured_outputs.choice",
        );
        let grammar = Some(Constraint::Grammar("root ::= \"a\"".to_owned()));
        check(&json!({"guided_grammar": "root ::= \"a\""}), grammar, "guided_grammar");
        let object = json!({"structured_outputs": {"json_object": true}});
        check(&object, Some(Constraint::JsonObject), "structured_outputs.json_object");
    }

    #[test]
    fn a_bad_constraint_is_refused_by_the_name_of_its_field() {
        use Code::{InvalidRequest, Unsupported};
        let format = |format: Value| json!({"response_format": format});
        check_refused(&format(json!("json_object")), InvalidRequest, "response_format");
        check_refused(&format(json!({})), InvalidRequest, "response_format.type");
        check_refused(&format(json!({"type": "xml"})), InvalidRequest, "response_format.type");
        check_refused(
            &format(json!({"type": "structural_tag"})),
            Unsupported,
            "response_format.type",
        );
        let schema = "response_format.json_schema";
        check_refused(&format(json!({"type": "json_schema"})), InvalidRequest, schema);
        for (value, param) in [
            (json!({"name": "x"}), "response_format.json_schema.schema"),
            (json!({"schema": [1]}), "response_format.json_schema.schema"),
            (json!({"schema": {}, "strict": "yes"}), "response_format.json_schema.strict"),
        ] {
            let body = format(json!({"type": "json_schema", "json_schema": value}));
            check_refused(&body, InvalidRequest, param);
        }
        check_refused(&json!({"guided_json": 3}), InvalidRequest, "guided_json");
        check_refused(&json!({"guided_regex": 3}), InvalidRequest, "guided_regex");
        check_refused(&json!({"guided_choice": ["a", 3]}), InvalidRequest, "guided_choice[1]");
        check_refused(&json!({"guided_grammar": []}), InvalidRequest, "guided_grammar");
        check_refused(
            &json!({"guided_whitespace_pattern": " "}),
            Unsupported,
            "guided_whitespace_pattern",
        );
        check_refused(&json!({"structured_outputs": {}}), InvalidRequest, "structured_outputs");
        check_refused(
            &json!({"structured_outputs": {"type": "object"}}),
            InvalidRequest,
            "structured_outputs",
        );
        let two = json!({"guided_regex": "a", "guided_choice": ["a"]});
        check_refused(&two, InvalidRequest, "guided_choice");
        let two = json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}});
        check_refused(&two, InvalidRequest, "structured_outputs.regex");
    }
}
