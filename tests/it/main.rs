//! One binary for everything that is tested across modules.
#![allow(clippy::unwrap_used, reason = "a test may end at a broken expectation")]

// Rows that write in blocks.
mod blocks;
// Checkpoints in which anything may be wrong.
#[cfg(feature = "mlx")]
mod damaged;
// Answers that must match a schema, a pattern, a grammar or a choice.
mod grammar;
// Several models on one engine thread.
mod fleet;
// Thousands of requests through the gateway, in virtual time.
mod gateway;
// What mlx-lm makes of the same weights.
#[cfg(feature = "mlx")]
mod goldens;
// Batches of quantized KV caches.
#[cfg(feature = "mlx")]
mod kv_schemes;
// The table of families in the documentation.
#[cfg(feature = "mlx")]
mod models_table;
// What is told of a model before it is loaded.
#[cfg(feature = "mlx")]
mod outline;
// Rows that start from kept caches.
#[cfg(feature = "mlx")]
mod prompt_cache;
// Rows of one batch do not see each other.
#[cfg(feature = "mlx")]
mod isolation;
// Models of a hub that misbehaves.
mod hub;
// The engine's modules import downwards only.
mod layering;
// The models on a machine, and whether they load.
#[cfg(feature = "mlx")]
mod library;
// Mechanisms that are switched off for measurements.
#[cfg(feature = "mlx")]
mod levers;
// A failed engine thread fails its rows and comes back.
mod recovery;
// Sampled rows on a real model.
#[cfg(feature = "mlx")]
mod sampling;
// Stories of a few requests on one scheduler.
mod scheduling;
// The real server on the real demo model, from outside.
#[cfg(feature = "mlx")]
mod serving;
// Thousands of seeded runs of the scheduler against a naive model.
mod simulation;
// Prompts that outlive their process.
mod stored_prompts;
// House rules that neither the compiler nor clippy checks.
mod tidy;
