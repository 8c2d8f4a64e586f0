//! Resolved settings: what the flags and defaults came to. Nothing later sees raw flags.

use std::time::Duration;

use crate::limits;

/// How the scheduler runs rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Rows in one decode step at most (`--batch`); 1 pins every request to the serial lane.
    pub batch_rows_max: usize,
    /// Rows that prefill at a time at most (`--prompt-concurrency`).
    pub prefill_rows_max: usize,
    /// Prompt tokens run between two decode steps at most.
    pub prefill_chunk_tokens: usize,
    /// Rows that may wait for admission at most.
    pub waiting_rows_max: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            batch_rows_max: limits::BATCH_ROWS_DEFAULT,
            prefill_rows_max: 1,
            prefill_chunk_tokens: limits::PREFILL_CHUNK_TOKENS_DEFAULT,
            waiting_rows_max: limits::WAITING_ROWS_MAX,
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
            body_bytes_max: limits::BODY_BYTES_MAX,
            shutdown_grace: Duration::from_millis(limits::SHUTDOWN_GRACE_MS),
        }
    }
}
