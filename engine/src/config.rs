//! Resolved settings: what the flags and defaults came to. Nothing later sees raw flags.

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
