//! Every way in which an answer ends, in every dialect: once, and in the dialect's own words.

use serde_json::json;

use super::*;
use crate::api::tests::client::Answer;
use crate::error::{Code, Error};
use crate::gateway::script::{Step, says};

/// An API: its path, a body, and how its streams tell things.
struct Dialect {
    path: &'static str,
    body: fn() -> Value,
    /// The text that an event adds.
    text: fn(&Value) -> Option<&str>,
    /// What an event says of the end, if it does: the reason, or the error's message.
    end: fn(&Value) -> Option<String>,
    /// The same of a whole answer.
    whole_end: fn(&Value) -> Option<String>,
    whole_text: fn(&Value) -> String,
    /// The events that stand behind the one that tells the end.
    behind: &'static [&'static str],
}

fn pointed<'a>(event: &'a Value, path: &str) -> Option<&'a str> {
    event.pointer(path).and_then(Value::as_str)
}

fn owned(event: &Value, path: &str) -> Option<String> {
    pointed(event, path).map(str::to_owned)
}

const DIALECTS: [Dialect; 4] = [
    Dialect {
        path: CHAT,
        body: || chat("hi", json!({})),
        text: |event| pointed(event, "/choices/0/delta/content"),
        end: |event| {
            owned(event, "/choices/0/finish_reason").or_else(|| owned(event, "/error/message"))
        },
        whole_end: |body| owned(body, "/choices/0/finish_reason"),
        whole_text: |body| owned(body, "/choices/0/message/content").unwrap_or_default(),
        behind: &["[DONE]"],
    },
    Dialect {
        path: COMPLETIONS,
        body: || completion("hi", json!({})),
        text: |event| pointed(event, "/choices/0/text"),
        end: |event| {
            owned(event, "/choices/0/finish_reason").or_else(|| owned(event, "/error/message"))
        },
        whole_end: |body| owned(body, "/choices/0/finish_reason"),
        whole_text: |body| owned(body, "/choices/0/text").unwrap_or_default(),
        behind: &["[DONE]"],
    },
    Dialect {
        path: MESSAGES,
        body: || {
            let messages = [json!({"role": "user", "content": "hi"})];
            json!({"model": "default", "max_tokens": 100, "messages": messages})
        },
        text: |event| pointed(event, "/delta/text"),
        end: |event| owned(event, "/delta/stop_reason").or_else(|| owned(event, "/error/message")),
        whole_end: |body| owned(body, "/stop_reason"),
        whole_text: |body| owned(body, "/content/0/text").unwrap_or_default(),
        behind: &["message_stop"],
    },
    Dialect {
        path: RESPONSES,
        body: || json!({"input": "hi"}),
        text: |event| match pointed(event, "/type") {
            Some("response.output_text.delta") => pointed(event, "/delta"),
            _ => None,
        },
        end: |event| match pointed(event, "/type")? {
            "response.completed" | "response.incomplete" | "response.failed" => {
                response_end(&event["response"])
            }
            _ => None,
        },
        whole_end: response_end,
        whole_text: |body| owned(body, "/output/0/content/0/text").unwrap_or_default(),
        behind: &[],
    },
];

fn response_end(response: &Value) -> Option<String> {
    owned(response, "/error/message")
        .or_else(|| owned(response, "/incomplete_details/reason"))
        .or_else(|| owned(response, "/status"))
}

/// How a row ends, and what each dialect calls that.
struct Ending {
    name: &'static str,
    steps: fn() -> Vec<Step>,
    fields: fn(&Dialect) -> Value,
    cancelled: bool,
    text: &'static str,
    /// In chats and completions, in messages, in responses.
    reasons: [&'static str; 3],
}

const ENDINGS: [Ending; 6] = [
    Ending {
        name: "a stop token",
        steps: || says("abc"),
        fields: |_| json!({}),
        cancelled: false,
        text: "abc",
        reasons: ["stop", "end_turn", "completed"],
    },
    Ending {
        name: "a stop string",
        steps: || says("abENDc"),
        fields: |dialect| match dialect.path {
            MESSAGES => json!({"stop_sequences": ["END"]}),
            // Responses know no stop strings.
            RESPONSES => json!({"max_output_tokens": 2}),
            _ => json!({"stop": "END"}),
        },
        cancelled: false,
        text: "ab",
        reasons: ["stop", "stop_sequence", "max_output_tokens"],
    },
    Ending {
        name: "the length",
        steps: || says("abc"),
        fields: |dialect| match dialect.path {
            RESPONSES => json!({"max_output_tokens": 2}),
            _ => json!({"max_tokens": 2}),
        },
        cancelled: false,
        text: "ab",
        reasons: ["length", "max_tokens", "max_output_tokens"],
    },
    Ending {
        name: "an error",
        steps: || {
            [says("ab"), vec![Step::Fail(Error::new(Code::EngineFailed, "it broke"))]].concat()
        },
        fields: |_| json!({}),
        cancelled: false,
        text: "ab",
        reasons: ["it broke"; 3],
    },
    Ending {
        name: "a row that vanishes",
        steps: || [says("ab"), vec![Step::Vanish]].concat(),
        fields: |_| json!({}),
        cancelled: false,
        text: "ab",
        reasons: ["the engine thread dropped the request without ending it"; 3],
    },
    Ending {
        name: "a cancellation",
        steps: || [says("ab"), vec![Step::Gate], says("c")].concat(),
        fields: |_| json!({}),
        cancelled: true,
        text: "ab",
        reasons: ["content_filter", "refusal", "content_filter"],
    },
];

impl Ending {
    fn reason(&self, dialect: &Dialect) -> &'static str {
        self.reasons[match dialect.path {
            MESSAGES => 1,
            RESPONSES => 2,
            _ => 0,
        }]
    }

    /// The answer to a request in `dialect` that ends so.
    async fn told(&self, dialect: &Dialect, stream: bool) -> Answer {
        let steps = self.steps;
        let server = Server::start(ScriptedRows::new(move |_| steps())).await;
        let fields = merged((self.fields)(dialect), json!({"stream": stream}));
        let (client, path) = (server.client, dialect.path);
        let body = merged((dialect.body)(), fields);
        let answer = tokio::spawn(async move { client.post(path, &body).await });
        if self.cancelled {
            server.rows.waits_at_gate(1).await;
            let id = server.rows.specs()[0].id.clone();
            let cancelled = client.ask("DELETE", &format!("/v1/requests/{id}"), "", "").await;
            assert_eq!(cancelled.status, 200);
        }
        answer.await.unwrap()
    }
}

#[tokio::test]
async fn every_ending_ends_a_stream_once_in_each_dialect_with_its_reason() {
    for dialect in &DIALECTS {
        for ending in &ENDINGS {
            let place = format!("{} of {}", ending.name, dialect.path);
            let answer = ending.told(dialect, true).await;
            assert_eq!(answer.status, 200, "{place}: {answer:?}");
            let mut data: Vec<String> =
                answer.events().into_iter().map(|event| event.data).collect();
            for behind in dialect.behind.iter().rev() {
                if *behind == "[DONE]" || !data.last().unwrap().contains("\"error\"") {
                    let last = data.pop().unwrap();
                    assert!(last.contains(behind), "{place}: {last}");
                }
            }
            let events: Vec<Value> =
                data.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
            let ends: Vec<String> = events.iter().filter_map(dialect.end).collect();
            assert_eq!(ends, [ending.reason(dialect)], "{place}: {events:?}");
            let last = events.last().unwrap();
            assert!((dialect.end)(last).is_some(), "{place}: {last} is not the end");
            let text: String = events.iter().filter_map(dialect.text).collect();
            if ending.cancelled {
                assert!(ending.text.starts_with(&text), "{place}: {text}");
            } else {
                assert_eq!(text, ending.text, "{place}");
            }
        }
    }
}

#[tokio::test]
async fn a_whole_answer_ends_as_its_stream_does() {
    for dialect in &DIALECTS {
        for ending in &ENDINGS {
            let place = format!("{} of {}", ending.name, dialect.path);
            let answer = ending.told(dialect, false).await;
            let body = answer.json();
            let reason = ending.reason(dialect);
            if reason.contains(' ') {
                let status = if dialect.path == MESSAGES { 529 } else { 503 };
                assert_eq!(answer.status, status, "{place}: {body}");
                assert_eq!(owned(&body, "/error/message").as_deref(), Some(reason), "{place}");
                continue;
            }
            assert_eq!(
                (answer.status, (dialect.whole_end)(&body)),
                (200, Some(reason.to_owned())),
                "{place}"
            );
            let text = (dialect.whole_text)(&body);
            if ending.cancelled {
                assert!(ending.text.starts_with(&text), "{place}: {text}");
            } else {
                assert_eq!(text, ending.text, "{place}");
            }
        }
    }
}
