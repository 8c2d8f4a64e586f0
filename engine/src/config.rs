//! Resolved settings: what the flags and defaults came to. Nothing later sees raw flags.

mod budget;
mod bytes;
mod keep_alive;
mod keys;
mod levers;

use std::time::Duration;

use crate::limits;

pub use budget::{ByteBudget, MemoryPlan, Room};
pub use bytes::{ByteCount, parse_bytes};
pub use keep_alive::KeepAlive;
pub use keys::ApiKey;
pub use levers::Levers;

/// How the scheduler runs rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Rows in one decode step at most (`--batch`); 1 pins every request to the serial lane, in one
    /// queue.
    pub batch_rows_max: usize,
    /// Rows that prefill at a time at most (`--prompt-concurrency`).
    pub prefill_rows_max: usize,
    /// Prompt tokens run between two decode steps at most.
    pub prefill_chunk_tokens: usize,
    /// How long a prompt may hold up the rows that decode (`--max-gap`): chunks are then cut to what
    /// was measured to fit. `None` pins them to `prefill_chunk_tokens`, so that the bits of a row do
    /// not depend on time.
    pub max_gap: Option<Duration>,
    /// Bytes that the caches of live rows may take together (`--kv-budget`); `None` is no bound.
    pub kv_budget_bytes: Option<u64>,
    /// Bytes that the caches of ended rows may take (`--prompt-cache`), as far as live rows leave room for them
    /// in the KV budget; 0 keeps none.
    pub prompt_cache_bytes: u64,
    /// Prompts with this many tokens left to run are kept at their boundaries, ones of this length are copied out
    /// of a batch at their end, and so many tokens the disk must spare to be read.
    pub kept_prompt_tokens_min: usize,
    /// Rows that may be live beyond `batch_rows_max`: one more is refused.
    pub waiting_rows_max: usize,
    /// What was switched off, for measurements.
    pub levers: Levers,
}

impl SchedulerConfig {
    /// Rows that may be live, the waiting ones included.
    pub fn live_rows_max(&self) -> usize {
        self.batch_rows_max.saturating_add(self.waiting_rows_max)
    }
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            batch_rows_max: limits::BATCH_ROWS_DEFAULT,
            prefill_rows_max: 1,
            prefill_chunk_tokens: limits::PREFILL_CHUNK_TOKENS_DEFAULT,
            max_gap: None,
            kv_budget_bytes: None,
            prompt_cache_bytes: 0,
            kept_prompt_tokens_min: limits::KEPT_PROMPT_TOKENS_MIN,
            waiting_rows_max: limits::WAITING_ROWS_MAX,
            levers: Levers::default(),
        }
    }
}

/// How the HTTP server listens and whom it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeConfig {
    /// The address it listens on (`--host`): a name or an IP address, loopback unless asked.
    pub host: String,
    /// The port it listens on (`--port`); 0 takes a free one.
    pub port: u16,
    /// Names clients may call it by, beyond loopback's and `host` (`--allowed-host`); no ports.
    pub allowed_hosts: Vec<String>,
    /// Web origins whose pages may use it (`--allowed-origin`), as browsers write them:
    /// `https://example.org`.
    pub allowed_origins: Vec<String>,
    /// The keys that open it (`--api-key`, `--api-key-file`); with none it is open to all who reach it,
    /// which must then be this machine alone.
    pub api_keys: Vec<ApiKey>,
    /// What silent streams send (`--keep-alive`), unless a request says otherwise.
    pub keep_alive: KeepAlive,
    /// Bytes of a request body at most.
    pub body_bytes_max: usize,
    /// How long a shutdown waits for live requests before it ends them.
    pub shutdown_grace: Duration,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            api_keys: Vec::new(),
            keep_alive: KeepAlive::Auto,
            body_bytes_max: limits::BODY_BYTES_MAX,
            shutdown_grace: Duration::from_millis(limits::SHUTDOWN_GRACE_MS),
        }
    }
}
