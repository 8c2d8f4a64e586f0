//! The server over real loopback connections, with scripted rows behind it.

mod access;
mod admission;
mod agents;
mod bad_input;
mod cache;
mod client;
mod embeddings;
mod endings;
mod hub;
mod identity;
mod kept;
mod lifecycle;
mod malformed;
mod metrics;
mod models;
mod openapi;
mod replies;
mod responses;
mod silence;
mod sockets;
mod status;
mod structure;
mod tokens;
mod tools;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::client::Client;
use super::{Offer, bind, serve};
use crate::clock::Clock;
use crate::config::{SchedulerConfig, ServeConfig};
use crate::error::Result;
use crate::gateway::script::{self, ScriptedRows};
use crate::gateway::{Engine, Residency};
use crate::hub::Hub;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A running server; dropping it shuts it down.
struct Server {
    client: Client,
    rows: Arc<ScriptedRows>,
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
}

impl Server {
    async fn start(rows: Arc<ScriptedRows>) -> Self {
        Self::start_with(rows, ServeConfig::default()).await
    }

    async fn start_with(rows: Arc<ScriptedRows>, config: ServeConfig) -> Self {
        Self::start_scheduling(rows, config, SchedulerConfig::default()).await
    }

    async fn start_scheduling(
        rows: Arc<ScriptedRows>,
        config: ServeConfig,
        scheduler: SchedulerConfig,
    ) -> Self {
        Self::start_at(rows, config, scheduler, Clock::monotonic()).await
    }

    async fn start_at(
        rows: Arc<ScriptedRows>,
        config: ServeConfig,
        scheduler: SchedulerConfig,
        clock: Clock,
    ) -> Self {
        let engine = script::engine_at(Arc::clone(&rows), scheduler, clock);
        Self::start_engine(rows, engine, config).await
    }

    async fn start_engine(rows: Arc<ScriptedRows>, engine: Engine, config: ServeConfig) -> Self {
        Self::start_offer(rows, engine.into(), config).await
    }

    /// The same with `hub` beside the engine.
    async fn start_hub(rows: Arc<ScriptedRows>, engine: Engine, hub: Hub) -> Self {
        let offer = (Residency::from(engine), hub).into();
        Self::start_offer(rows, offer, ServeConfig::default()).await
    }

    async fn start_offer(rows: Arc<ScriptedRows>, offer: Offer, config: ServeConfig) -> Self {
        let listener = bind("127.0.0.1", 0).await.unwrap();
        let client = Client { address: listener.local_addr().unwrap() };
        let (shutdown, asked) = oneshot::channel();
        let task = tokio::spawn(async move {
            serve(listener, offer, &config, async { drop(asked.await) }).await
        });
        Self { client, rows, shutdown: Some(shutdown), task }
    }

    /// Asks it to shut down, as a signal would.
    fn shut_down(&mut self) {
        drop(self.shutdown.take());
    }
}

/// A body that the route at `path` takes, and no more than it needs.
fn whole_body(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    match path {
        CHAT => json!({"messages": messages}),
        COMPLETIONS | "/v1/tokenize" => json!({"prompt": "hi"}),
        RESPONSES | "/v1/embeddings" => json!({"input": "hi"}),
        MESSAGES => json!({"model": "default", "max_tokens": 9, "messages": messages}),
        "/v1/messages/count_tokens" => json!({"model": "default", "messages": messages}),
        "/v1/detokenize" => json!({"tokens": [7]}),
        "/v1/cache/{id}" | "/api/models/{id}/pin" => json!({"pinned": true}),
        "/api/hub/downloads" => json!({"repo": "owner/name"}),
        "/api/hub/import" => json!({"path": hub::gguf_file()}),
        "/api/hub/convert" => json!({"model": "owner/tiny", "bits": 4}),
        other => panic!("{other} takes no body"),
    }
}

/// A chat request that says `text`, with `fields` set on top.
fn chat(text: &str, fields: Value) -> Value {
    merged(json!({"messages": [{"role": "user", "content": text}]}), fields)
}

/// A completion request for `text`, with `fields` set on top.
fn completion(text: &str, fields: Value) -> Value {
    merged(json!({"prompt": text}), fields)
}

fn merged(mut body: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    body.as_object_mut().unwrap().extend(fields);
    body
}
