//! Any JSON at all, read by every reader of bodies: it is read, or refused by the name of a field.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::responses::Past;
use super::{anthropic, embeddings, openai, responses, tokens};
use crate::error::{Code, Error, Result};
use crate::gateway::script::{card, vectors};
use crate::gateway::{Embeddings, ModelCard, Reasoning, ReasoningEffort, RequestDefaults};

/// Names and words that lead deep into the readers.
const NAMES: &[&str] = &[
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "effort",
    "budget_tokens",
    "stop_sequences",
    "metadata",
    "user_id",
    "role",
    "content",
    "type",
    "text",
    "name",
    "id",
    "input",
    "input_schema",
    "tool_use_id",
    "is_error",
    "instructions",
    "call_id",
    "arguments",
    "output",
    "previous_response_id",
    "store",
    "max_output_tokens",
    "reasoning",
    "summary",
    "format",
    "verbosity",
    "include",
    "truncation",
    "parallel_tool_calls",
    "parameters",
    "prompt",
    "add_special_tokens",
    "return_token_strs",
    "encoding_format",
    "dimensions",
    "stream",
    "temperature",
];
const WORDS: &[&str] = &[
    "claude",
    "default",
    "user",
    "assistant",
    "system",
    "developer",
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "enabled",
    "disabled",
    "adaptive",
    "auto",
    "any",
    "tool",
    "none",
    "required",
    "function",
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "item_reference",
    "input_text",
    "output_text",
    "refusal",
    "reasoning_text",
    "summary_text",
    "web_search",
    "custom",
    "low",
    "xhigh",
    "max",
    "float",
    "base64",
    "é\u{0}",
    "",
];

struct Nothing;

impl Past for Nothing {
    fn conversation(&self, _: &str) -> Result<Vec<Value>> {
        Err(Error::invalid("previous_response_id", "there is no past"))
    }

    fn item(&self, _: &str) -> Option<Value> {
        None
    }
}

/// A body that is right for every reader but for what `NAMES` change.
fn right() -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    json!({"model": "default", "max_tokens": 9, "messages": messages, "input": "hi", "tokens": [7]})
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..3i64).prop_map(Value::from),
        prop::sample::select(WORDS).prop_map(Value::from),
        prop::sample::select(WORDS).prop_map(Value::from),
        ".{0,80}".prop_map(Value::from),
        Just(Value::from("é".repeat(5000))),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let names = prop::sample::select(NAMES);
        let object = prop::collection::vec((names, inner.clone()), 0..6).prop_map(|fields| {
            let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
            Value::Object(fields.collect::<Map<_, _>>())
        });
        prop_oneof![prop::collection::vec(inner, 0..4).prop_map(Value::from), object]
    })
}

/// A body that is right but for one field.
fn nearly_right() -> impl Strategy<Value = Value> {
    (prop::sample::select(NAMES), any_json()).prop_map(|(name, value)| {
        let mut body = right();
        body[name] = value;
        body
    })
}

fn embedding_card() -> ModelCard {
    let mut card = card();
    card.capabilities.embeddings = Embeddings::Vectors(vectors());
    card
}

/// What each reader says of `body`, if it refuses it.
fn refusals(body: &Value) -> [(&'static str, Option<Error>); 8] {
    let card = embedding_card();
    [
        ("model", openai::model(body).err()),
        ("model of messages", anthropic::model(body).err()),
        ("messages", anthropic::messages(body, &card).err()),
        ("count_tokens", anthropic::count_tokens(body, &card).err()),
        ("responses", responses::response(body, &card, &Nothing).err()),
        ("embeddings", embeddings::embeddings(body, &card).err()),
        ("tokenize", tokens::tokenize(body, &card).err()),
        ("detokenize", tokens::detokenize(body, &card).err()),
    ]
}

proptest! {
    #[test]
    fn any_body_is_read_or_refused_by_the_name_of_a_field(
        body in prop_oneof![any_json(), nearly_right()],
    ) {
        for (reader, refusal) in refusals(&body) {
            let Some(error) = refusal else { continue };
            let ours = [Code::InvalidRequest, Code::Unsupported, Code::ModelNotFound];
            prop_assert!(ours.contains(&error.code()), "{reader}: {error}");
            match error.param() {
                Some(param) => prop_assert!(
                    error.code() == Code::ModelNotFound || error.message().contains(param) || param.starts_with("previous"),
                    "{reader}: {param}: {error}"
                ),
                None => prop_assert!(!body.is_object(), "{reader}: {error}"),
            }
            prop_assert!(error.message().chars().count() < 400, "{reader}: {error}");
        }
    }
}

#[test]
fn the_right_body_is_right_for_all_and_null_is_absent() {
    let mut body = right();
    body["prompt"] = Value::Null;
    for name in NAMES.iter().filter(|name| right().get(**name).is_none()) {
        body[*name] = Value::Null;
    }
    for (reader, refusal) in refusals(&body) {
        assert_eq!(refusal, None, "{reader}");
    }
}

/// How a model is asked to think, and the variables of its template, by each dialect that has those.
fn meant(body: &Value, card: &ModelCard) -> Vec<(Reasoning, Map<String, Value>)> {
    let requests = [
        openai::chat(body, card).unwrap().generate,
        anthropic::messages(body, card).unwrap().generate,
        responses::response(body, card, &Nothing).unwrap().generate,
    ];
    requests.map(|request| (request.reasoning, request.template_variables)).to_vec()
}

#[test]
fn what_a_profile_says_is_meant_where_a_request_says_nothing() {
    let dry = json!({"tone": "dry"}).as_object().unwrap().clone();
    let little = Reasoning { enabled: Some(true), effort: Some(ReasoningEffort::Low) };
    let mut profiled = card();
    profiled.request_defaults =
        RequestDefaults { reasoning: Some(little), template_variables: dry.clone() };
    assert_eq!(meant(&right(), &profiled), vec![(little, dry.clone()); 3]);
    let mut body = right();
    body["reasoning_effort"] = json!("none");
    body["thinking"] = json!({"type": "disabled"});
    body["reasoning"] = json!({"effort": "none"});
    let off = Reasoning { enabled: Some(false), effort: None };
    assert_eq!(meant(&body, &profiled), vec![(off, dry); 3]);
    let plain: Vec<Reasoning> = meant(&right(), &card()).into_iter().map(|(one, _)| one).collect();
    // Anthropic's models think only if they are asked to.
    assert_eq!(plain, [Reasoning::default(), off, Reasoning::default()]);
}
