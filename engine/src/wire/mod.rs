//! What travels over HTTP: JSON bodies in, JSON bodies out.
//!
//! Requests are read by hand from a parsed [`serde_json::Value`] (see [`Fields`]), so that each bad
//! field gets an error naming it and its value; responses are serde types. Nothing here does I/O or
//! knows a status code.

mod answer;
#[cfg(test)]
mod answers;
pub mod anthropic;
pub mod cache;
mod contents;
mod conversation;
mod effort;
pub mod embeddings;
mod fields;
pub mod hub;
pub mod models;
pub mod openai;
#[cfg(test)]
mod readers;
pub mod responses;
pub mod stats;
mod timings;
pub mod tokens;
mod tools;

pub use answer::{Ending, Frame, Teller};
pub use fields::Fields;
