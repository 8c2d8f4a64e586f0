//! Slipstream's engine: continuous batching of LLM rows on Apple MLX, behind OpenAI-compatible HTTP.
//!
//! Modules form ranks; a module imports only from lower ranks (ARCHITECTURE.md has the map, and
//! `tests/it/layering.rs` holds it). The feature `mlx` gates what needs arrays.

pub mod clock;
pub mod config;
pub mod error;
pub mod limits;
pub mod telemetry;

pub mod mlx;
pub mod tokenizer;

pub mod cache;
pub mod grammar;

pub mod model;
pub mod output;
pub mod prompt_cache;
pub mod sampling;

pub mod hub;
pub mod scheduler;

pub mod gateway;

pub mod wire;

pub mod api;
