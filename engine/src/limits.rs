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
/// The most layers that a config may describe; the deepest released models have about 130.
pub const MODEL_LAYERS_MAX: usize = 4096;
/// The largest size (a width, a number of heads, a vocabulary) that a config may state.
pub const MODEL_SIZE_MAX: u64 = 1 << 24;
/// The most bytes that a config's caches may take of one token, in f32; the largest released models take
/// some 15 MB.
pub const MODEL_TOKEN_BYTES_MAX: u64 = 1 << 28;
/// Memory that an automatic KV budget leaves to everything that comes and goes.
pub const KV_HEADROOM_BYTES: u64 = 1 << 30;
/// Decode steps whose times are remembered.
pub const STEP_TIMES_MAX: usize = 512;
/// KV buffers grow by this many token columns (mlx-lm's `KVCache.step`).
pub const KV_GRANULE_TOKENS: usize = 256;
/// Prompt tokens of a recurrent layer that are handed to the device at once. A token is some 15
/// operations, each of which waits for the one before, and the device keeps about one and a half memories
/// for it until it has run: 70 MB for 32 tokens of a layer of 32 heads of 128 by 128.
pub const RECURRENCE_PIECE_TOKENS: usize = 32;
/// The default of `--ssd-cache-max`: bytes of the prompts that a folder keeps.
pub const DISK_CACHE_BYTES_DEFAULT: u64 = 16 << 30;
/// Bytes that are written to a folder of prompts in a day, by default: 117 TB in five years, which is
/// below what even a small laptop's drive is rated for.
pub const DISK_DAY_BYTES_DEFAULT: u64 = 64 << 30;
/// Bytes of tensors that may wait for the disk, by default.
pub const DISK_QUEUE_BYTES_DEFAULT: u64 = 2 << 30;
/// How long nobody may have used a kept prompt before it is written down, in milliseconds: between two turns of a
/// busy conversation nothing is.
pub const DISK_SETTLE_MS: u64 = 3_000;
/// How much longer for each GiB of it: a long conversation is written whole each time, and its next turn soon makes
/// that worth nothing.
pub const DISK_SETTLE_GIBIBYTE_MS: u64 = 30_000;
/// How long the engine rests while the disk is behind, in milliseconds.
pub const DISK_PAUSE_MS: u64 = 50;
/// How long a shutdown waits for prompts to be written down, in milliseconds.
pub const DISK_FLUSH_MS: u64 = 10_000;
/// How long whoever asks for kept prompts to be written down waits for that, in milliseconds.
pub const CACHE_FLUSH_MS: u64 = 30_000;
/// While rows are live, so many times as long passes as the reading of a tensor took, before the next one.
pub const DISK_READ_SHARE: u32 = 100;
/// How long a tick reads from the disk for a row that restores, in milliseconds.
pub const DISK_RESTORE_SLICE_MS: u64 = 20;
/// Evicted prompts that wait to be written down at most.
pub const DISK_SPILLED_MAX: usize = 4;
/// Stored tokens that may be read for each token of a prompt that this spares: what is farther off is faster
/// computed.
pub const DISK_TOKENS_PER_SPARED_TOKEN: usize = 16;
/// Where a tensor may start in a stored prompt: the pages of Apple's processors.
pub const DISK_ALIGNMENT_BYTES: u64 = 16 << 10;
/// Bytes of a stored prompt before its first tensor: its tokens and what describes it.
pub const DISK_HEADER_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a file of converted weights, or one tensor.
pub const SHARD_BYTES_MAX: u64 = 5_000_000_000;
/// Bytes of a checkpoint that are converted at a time, or one row.
pub const CONVERT_PIECE_BYTES: usize = 8 << 20;
/// Files of a model that are fetched at once, by default (`--jobs`).
pub const DOWNLOAD_FILES_DEFAULT: usize = 4;
/// The same at most.
pub const DOWNLOAD_FILES_MAX: usize = 32;
/// Models that are fetched at once; the rest is queued.
pub const DOWNLOADS_AT_ONCE: usize = 2;
/// Downloads that are listed, done ones among them.
pub const DOWNLOADS_MAX: usize = 256;
/// Bytes of the disk that a download leaves free.
pub const DOWNLOAD_FREE_BYTES_MIN: u64 = 256 << 20;
/// Pieces of a file that may wait to be written down; one is some hundred kilobytes at most.
pub const DOWNLOAD_QUEUE_PIECES: usize = 16;
/// How often the progress of a download is told, in milliseconds.
pub const DOWNLOAD_PROGRESS_PERIOD_MS: u64 = 200;
/// How often a file may arrive whole and wrong.
pub const DOWNLOAD_SPOILED_MAX: u32 = 2;
/// Files and folders of a repository.
pub const HUB_FILES_MAX: usize = 20_000;
/// Bytes of one answer of the hub's API.
pub const HUB_ANSWER_BYTES_MAX: usize = 16 << 20;
/// Redirects of one request to the hub.
pub const HUB_REDIRECTS_MAX: usize = 10;
/// How often a request to the hub may fail in a row before that is told.
pub const HUB_ATTEMPTS_MAX: u32 = 8;
/// The pause before a second attempt; it doubles with each attempt.
pub const HUB_PAUSE_MS: u64 = 500;
/// The longest pause that we choose ourselves.
pub const HUB_PAUSE_MS_MAX: u64 = 30_000;
/// The longest pause that the hub may ask for (`Retry-After`).
pub const HUB_ASKED_PAUSE_MS_MAX: u64 = 600_000;
/// How long the hub may be silent in the middle of an answer.
pub const HUB_SILENCE_MS_MAX: u64 = 60_000;
/// How long a connection to it may take.
pub const HUB_CONNECT_MS_MAX: u64 = 20_000;
/// How long after a look at the models on disk another name that is not known has none made.
pub const LIBRARY_LOOK_MS: u64 = 1_000;
/// Imports and conversions that run at once.
pub const JOBS_AT_ONCE: usize = 2;
/// Imports and conversions that are listed, those that ended included.
pub const JOBS_LISTED_MAX: usize = 32;
/// Models that a search tells, by default.
pub const SEARCH_HITS_DEFAULT: usize = 20;
/// The same at most.
pub const SEARCH_HITS_MAX: usize = 100;
/// Decode steps between two clearings of MLX's buffer cache.
pub const CLEAR_CACHE_STEPS: u64 = 256;
/// Clients whose requests are counted under their own names; those that come later share one.
pub const CLIENT_SERIES_MAX: usize = 64;
/// Characters of a client's name.
pub const CLIENT_NAME_CHARS_MAX: usize = 64;
/// Texts that one request may turn into vectors.
pub const EMBEDDING_INPUTS_MAX: usize = 2048;
/// How long a response can be referred to.
pub const RESPONSES_TTL_MS: u64 = 3_600_000;
/// Bytes of the responses that can be referred to, together.
pub const RESPONSES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How often a stream whose answer has not begun looks for progress.
pub const PROGRESS_PERIOD_MS: u64 = 1_000;
/// How long a stream says nothing before it gives a sign of life.
pub const SILENCE_MS_MAX: u64 = 10_000;
/// The pause between two snapshots of `/stats/stream`.
pub const STATS_PERIOD_MS: u64 = 250;
/// How long the head of a request may take, from the end of the answer before it.
pub const HEAD_MS_MAX: u64 = 30_000;
/// How long the body of a request may take.
pub const BODY_MS_MAX: u64 = 60_000;
/// The pause after a connection could not be accepted.
pub const ACCEPT_PAUSE_MS: u64 = 500;
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
/// The most likely tokens of a step that a request may ask for (`top_logprobs`).
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Bytes of a schema, regular expression, grammar or list of choices that an answer must match.
pub const GRAMMAR_BYTES_MAX: usize = 256 * 1024;
/// Subschemas of a JSON schema. The compiler descends into them, so this bounds its stack.
pub const SCHEMA_NODES_MAX: usize = 5_000;
/// The stack of a thread that compiles a grammar.
pub const GRAMMAR_STACK_BYTES: usize = 128 * 1024 * 1024;
/// Grammars that compile at once, each on a stack of its own.
pub const GRAMMAR_COMPILERS_MAX: usize = 2;
/// Compiled grammars that are kept for requests to come.
pub const GRAMMARS_MAX: usize = 64;
/// Lexer states of one row's grammar. Each takes one to two kilobytes, which the row has for itself.
pub const LEXER_STATES_MAX: usize = 50_000;
/// Lexer states of a compiled grammar that its rows begin with, beside those that it cannot do without.
pub const REHEARSAL_STATES_MAX: usize = 5_000;
/// What compiling may spend on them, in llguidance's fuel: some 100 ms.
pub const REHEARSAL_FUEL_MAX: usize = 1_000_000;
/// Threads that fill token masks.
pub const MASK_THREADS_MAX: usize = 4;
/// Prompts from this length on are kept at their boundaries while they are read, and copied out of a batch at
/// their end. What is shorter is read again sooner than it is kept.
pub const KEPT_PROMPT_TOKENS_MIN: usize = 256;
/// Tokens that are shown of a prompt and of a kept one where they part, and as many before.
pub const DIVERGENCE_TOKENS: usize = 12;
/// First tokens by which a kept prompt is listed, and as many last ones.
pub const LISTED_TOKENS_MAX: usize = 64;
/// Characters of them that are shown.
pub const LISTED_CHARS_MAX: usize = 160;
/// How often the scheduler posts a snapshot while nothing but token counts changes.
pub const SNAPSHOT_PERIOD_MS: u64 = 20;
/// How long the engine may go without progress before it counts as stuck. One prompt chunk of a large
/// model on a slow CPU stays below this.
pub const STALL_MS_MAX: u64 = 60_000;
/// The pause before a second attempt to rebuild a failed engine; it doubles with each attempt.
pub const REBUILD_PAUSE_MS: u64 = 1_000;
/// The longest pause between two attempts to rebuild a failed engine.
pub const REBUILD_PAUSE_MS_MAX: u64 = 60_000;
/// How long a model that is to be loaded waits for the memory that others hold, in milliseconds.
pub const ROOM_WAIT_MS: u64 = 60_000;
/// How often it looks, in milliseconds.
pub const ROOM_LOOK_MS: u64 = 20;
/// How long a request waits for its model to be loaded, in milliseconds.
pub const LOAD_WAIT_MS: u64 = 600_000;
/// Requests that wait for one model to be loaded at most.
pub const LOAD_WAITERS_MAX: usize = 1024;
/// How long a model that could not be loaded is not tried again for requests, in milliseconds.
pub const LOAD_FAILURE_PAUSE_MS: u64 = 5_000;
/// How long an idle model stays loaded that was loaded for a request, by default, in milliseconds.
pub const MODEL_TTL_MS_DEFAULT: u64 = 600_000;
/// How long a graceful shutdown waits for live rows.
pub const SHUTDOWN_GRACE_MS: u64 = 4_000;

const _: () = assert!(BATCH_ROWS_DEFAULT <= BATCH_ROWS_MAX);
const _: () = assert!(BATCH_ROWS_MAX <= WAITING_ROWS_MAX);
const _: () = assert!(WAITING_ROWS_MAX < COMMAND_QUEUE);
const _: () = assert!(REBUILD_PAUSE_MS <= REBUILD_PAUSE_MS_MAX);
const _: () = assert!(SHUTDOWN_GRACE_MS < 5_000);
