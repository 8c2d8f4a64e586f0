//! How models stand, and what may be done to the one of a scripted server.

use serde_json::json;

use super::*;

const MODELS: &str = "/api/models";
const MODEL: &str = "/api/models/lab%2Fbytes";

async fn server() -> Server {
    Server::start(ScriptedRows::new(|_| script::says("ok"))).await
}

/// The document's schema of a model's standing.
fn schema() -> Value {
    let document: Value = serde_json::from_str(crate::api::openapi::DOCUMENT).unwrap();
    let status = json!({"$ref": "#/components/schemas/ModelStatus"});
    json!({"components": document["components"], "allOf": [status]})
}

#[tokio::test]
async fn a_model_stands_as_the_document_says() {
    let server = server().await;
    let list = server.client.get(MODELS).await.json();
    let [model] = list["data"].as_array().unwrap().as_slice() else { panic!("{list}") };
    let validator = jsonschema::validator_for(&schema()).unwrap();
    assert!(validator.is_valid(model), "{model}");
    let told = ["id", "state", "default", "pinned", "leases"].map(|name| model[name].clone());
    assert_eq!(
        told.to_vec(),
        [json!("lab/bytes"), json!("ready"), json!(true), json!(true), json!(0)]
    );
    assert!(!validator.is_valid(&json!({"id": "x"})), "the schema holds nothing");
}

#[tokio::test]
async fn a_request_holds_a_lease_until_its_answer_was_told() {
    let rows = ScriptedRows::new(|_| vec![script::Step::Gate]);
    let server = Server::start(Arc::clone(&rows)).await;
    let leases = async || server.client.get(MODELS).await.json()["data"][0]["leases"].clone();
    let asked = async { server.client.post(CHAT, &chat("hi", json!({}))).await };
    let looked = async {
        rows.waits_at_gate(1).await;
        assert_eq!(leases().await, json!(1));
        rows.open_gate();
    };
    let (answer, ()) = tokio::join!(asked, looked);
    assert_eq!((answer.status, leases().await), (200, json!(0)));
}

#[tokio::test]
async fn the_only_model_is_loaded_and_pinned_and_cannot_go() {
    let server = server().await;
    let loaded = server.client.post(&format!("{MODEL}/load?wait=true"), &json!({})).await;
    assert_eq!((loaded.status, &loaded.json()["state"]), (200, &json!("ready")));
    let pinned = server.client.post(&format!("{MODEL}/pin"), &json!({"pinned": false})).await;
    assert_eq!((pinned.status, &pinned.json()["pinned"]), (200, &json!(false)));
    let unloaded = server.client.post(&format!("{MODEL}/unload"), &json!({})).await;
    assert_eq!((unloaded.status, &unloaded.json()["error"]["code"]), (400, &json!("unsupported")));
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_by_name() {
    let server = server().await;
    for (path, body, status, words) in [
        (format!("{MODEL}/load?wait=soon"), json!({}), 400, "`wait` must be `true` or `false`"),
        (format!("{MODEL}/unload?force=1"), json!({}), 400, "`force` must be"),
        (format!("{MODEL}/pin"), json!({}), 400, "`pinned` is required"),
        (format!("{MODEL}/pin"), json!({"pinned": 1}), 400, "`pinned` must be a boolean"),
        (format!("{MODELS}/other/load"), json!({}), 404, "no model `other` is served"),
        (format!("{MODELS}/other/pin"), json!({"pinned": true}), 404, "no model `other`"),
    ] {
        let answer = server.client.post(&path, &body).await;
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, status, "{path}: {message}");
        assert!(message.contains(words), "{path}: {message}");
    }
}
