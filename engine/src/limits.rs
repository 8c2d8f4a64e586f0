//! Every bound of the engine, with its unit in its name.

/// Rows that may be live beyond those that fit the batch; one more is refused with `QueueFull`.
pub const WAITING_ROWS_MAX: usize = 1024;
/// Requests that may wait on the channel to the engine thread.
pub const COMMAND_QUEUE: usize = 2048;
/// The largest accepted `--batch`.
pub const BATCH_ROWS_MAX: usize = 1024;
/// The default of `--batch`: concurrent rows in one decode step.
pub const BATCH_ROWS_DEFAULT: usize = 8;
/// Prompt tokens run between two decode steps (mlx-lm's `prefill_step_size`).
pub const PREFILL_CHUNK_TOKENS_DEFAULT: usize = 2048;
/// The same on a processor, where a chunk takes seconds.
pub const PREFILL_CHUNK_TOKENS_CPU: usize = 256;
/// Chunks that are cut to a time are multiples of this many prompt tokens, and never fewer: smaller
/// ones cost about as much.
pub const PREFILL_GRANULE_TOKENS: usize = 32;
/// The default of `--max-gap` on a GPU: how long a prompt may hold up the rows that decode.
pub const MAX_GAP_MS_GPU: u64 = 250;
/// The same on a processor. Measured with SmolLM2-135M in f32 on two busy cores, where a step takes
/// 50 to 100 ms, 1500 prompt tokens beside a running row took 16 s under a gap of 250 ms (every chunk
/// the smallest), 13 s under 1000 ms and 9 s in chunks of 256, which held the row up for 1.9 s.
pub const MAX_GAP_MS_CPU: u64 = 1_000;
/// The largest accepted `--max-gap`.
pub const MAX_GAP_MS_MAX: u64 = 60_000;
/// The default of `--max-tokens`: tokens of an answer whose request does not say.
pub const ANSWER_TOKENS_DEFAULT: usize = 4096;
/// Interactive rows that may start ahead of an older background row before one of those does.
pub const OVERTAKES_MAX: usize = 4;
/// Memory that an automatic KV budget leaves to everything that comes and goes.
pub const KV_HEADROOM_BYTES: u64 = 1 << 30;
/// Decode steps whose times are remembered.
pub const STEP_TIMES_MAX: usize = 512;
/// KV buffers grow by this many token columns (mlx-lm's `KVCache.step`).
pub const KV_GRANULE_TOKENS: usize = 256;
/// Decode steps between two clearings of MLX's buffer cache.
pub const CLEAR_CACHE_STEPS: u64 = 256;
/// Bytes of a request body, by default.
pub const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Stop strings per request.
pub const STOP_STRINGS_MAX: usize = 16;
/// Bytes of one stop string.
pub const STOP_STRING_BYTES_MAX: usize = 1024;
/// Tools per request.
pub const TOOLS_MAX: usize = 512;
/// Bytes of a tool's name.
pub const TOOL_NAME_BYTES_MAX: usize = 128;
/// Sampled ids a request may bias or rank (`top_logprobs`).
pub const TOP_LOGPROBS_MAX: usize = 20;
/// How often the scheduler posts a snapshot while nothing but token counts changes.
pub const SNAPSHOT_PERIOD_MS: u64 = 20;
/// How long the engine may go without progress before it counts as stuck. One prompt chunk of a large
/// model on a slow CPU stays below this.
pub const STALL_MS_MAX: u64 = 60_000;
/// The pause before a second attempt to rebuild a failed engine; it doubles with each attempt.
pub const REBUILD_PAUSE_MS: u64 = 1_000;
/// The longest pause between two attempts to rebuild a failed engine.
pub const REBUILD_PAUSE_MS_MAX: u64 = 60_000;
/// How long a graceful shutdown waits for live rows.
pub const SHUTDOWN_GRACE_MS: u64 = 4_000;

const _: () = assert!(BATCH_ROWS_DEFAULT <= BATCH_ROWS_MAX);
const _: () = assert!(BATCH_ROWS_MAX <= WAITING_ROWS_MAX);
const _: () = assert!(WAITING_ROWS_MAX < COMMAND_QUEUE);
const _: () = assert!(REBUILD_PAUSE_MS <= REBUILD_PAUSE_MS_MAX);
const _: () = assert!(SHUTDOWN_GRACE_MS < 5_000);
