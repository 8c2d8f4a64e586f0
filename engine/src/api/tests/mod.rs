//! The server over real loopback connections, with scripted rows behind it.

mod access;
mod admission;
mod bad_input;
mod client;
mod lifecycle;
mod replies;
mod status;
mod tools;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::client::Client;
use super::{bind, serve};
use crate::config::{SchedulerConfig, ServeConfig};
use crate::error::Result;
use crate::gateway::Engine;
use crate::gateway::script::{self, ScriptedRows};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

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
        let engine = script::engine_with(Arc::clone(&rows), scheduler);
        Self::start_engine(rows, engine, config).await
    }

    async fn start_engine(rows: Arc<ScriptedRows>, engine: Engine, config: ServeConfig) -> Self {
        let listener = bind("127.0.0.1", 0).await.unwrap();
        let client = Client { address: listener.local_addr().unwrap() };
        let (shutdown, asked) = oneshot::channel();
        let task = tokio::spawn(async move {
            serve(listener, engine, &config, async { drop(asked.await) }).await
        });
        Self { client, rows, shutdown: Some(shutdown), task }
    }

    /// Asks it to shut down, as a signal would.
    fn shut_down(&mut self) {
        drop(self.shutdown.take());
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
