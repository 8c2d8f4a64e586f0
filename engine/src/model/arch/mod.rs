//! One file per architecture.

pub mod llama;
