//! The document tells the truth.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::api::{openapi, routes};
use crate::gateway::script::says;

fn document() -> Value {
    serde_json::from_str(openapi::DOCUMENT).unwrap()
}

/// Calls `visit` with every object in `value`.
fn walk<'a>(value: &'a Value, visit: &mut impl FnMut(&'a serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(object);
            object.values().for_each(|inner| walk(inner, visit));
        }
        Value::Array(items) => items.iter().for_each(|inner| walk(inner, visit)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_is_served_as_it_is_kept() {
    let server = Server::start(ScriptedRows::new(|_| Vec::new())).await;
    let answer = server.client.get("/openapi.json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json(), document());
}

#[test]
fn every_route_is_in_the_document_and_nothing_else_is() {
    let document = document();
    let told: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let routes = routes();
    let served: BTreeSet<(String, String)> = routes
        .iter()
        .map(|route| (route.path.replace("{*", "{"), route.method.to_owned()))
        .collect();
    assert_eq!(told, served);
}

#[test]
fn references_lead_somewhere_and_operations_have_names_parameters_and_refusals() {
    let document = document();
    let mut used = BTreeSet::new();
    walk(&document, &mut |object| {
        if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
            let target = document.pointer(reference.strip_prefix('#').unwrap());
            assert!(target.is_some(), "{reference} leads nowhere");
            used.insert(reference.to_owned());
        }
    });
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(used.contains(&format!("#/components/schemas/{name}")), "{name} is not used");
    }
    let mut names = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            assert!(names.insert(operation["operationId"].as_str().unwrap()), "{path}");
            assert!(operation["responses"]["4XX"].is_object(), "{path}");
            let parameters = operation["parameters"].as_array();
            let with_id = parameters.is_some_and(|all| all.iter().any(|one| one["name"] == "id"));
            assert_eq!(with_id, path.contains("{id}"), "{path}");
        }
    }
}

/// A value that is of none of the types that `schema` allows, if there is one.
fn foreign(schema: &Value) -> Option<Value> {
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let allows = |kind: &str| types.contains(&kind);
    if !allows("object") && !allows("array") {
        return Some(json!({"no": "such"}));
    }
    (!allows("number") && !allows("integer")).then_some(json!(7))
}

/// Every value that the document rules out of a property, with what it breaks.
fn broken(schema: &Value) -> Vec<Value> {
    let mut values: Vec<Value> = foreign(schema).into_iter().collect();
    if let Some(least) = schema["minimum"].as_f64() {
        values.push(json!(least as i64 - 1));
    }
    if let Some(most) = schema["maximum"].as_f64() {
        values.push(json!(most as i64 + 1));
    }
    if schema["type"].as_array().is_some_and(|types| types.contains(&json!("integer"))) {
        values.push(json!(1.5));
    }
    if schema["enum"].is_array() {
        values.extend([json!("no such word"), json!(7)]);
    }
    values
}

#[tokio::test]
async fn what_the_document_rules_out_is_refused_by_name() {
    let rows = ScriptedRows::new(|_| says("ok"));
    let kept = script::kept_prompt("hello", Some(7), None);
    rows.kept.lock().prompts.push(kept.clone());
    let engine = script::engine_that_embeds(Arc::clone(&rows));
    let scene = hub::scene();
    let server = Server::start_hub(rows, engine, scene.open().await).await;
    let document = document();
    let mut tried = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(reference) =
            methods["post"].pointer("/requestBody/content/application~1json/schema/$ref")
        else {
            continue;
        };
        let schema = document.pointer(&reference.as_str().unwrap()[1..]).unwrap();
        let whole = super::whole_body(path);
        let id = if path.starts_with("/api/") { "lab%2Fbytes" } else { &kept.id.to_string() };
        let path = &path.replace("{id}", id);
        let answer = server.client.post(path, &whole).await;
        // What takes long has begun.
        let expected = if path.starts_with("/api/hub/") { 202 } else { 200 };
        assert_eq!(answer.status, expected, "{path}: {answer:?}");
        for (name, property) in schema["properties"].as_object().unwrap() {
            for value in broken(property) {
                let body = merged(whole.clone(), json!({name: value}));
                let answer = server.client.post(path, &body).await;
                assert_eq!(answer.status, 400, "{path} takes {body}");
                let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
                assert!(message.contains(&format!("`{name}")), "{path}: {message}");
                tried += 1;
            }
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let mut body = whole.clone();
            body.as_object_mut().unwrap().shift_remove(name.as_str().unwrap());
            let answer = server.client.post(path, &body).await;
            assert_eq!(answer.status, 400, "{path} does without {name}");
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried} requests say little");
}
