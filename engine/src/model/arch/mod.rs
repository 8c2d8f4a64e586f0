//! One file per architecture: what differs from the shared decoder.

pub mod granite;
mod layers;
pub mod llama;
pub mod minicpm;
pub mod ministral3;
pub mod olmo3;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
pub mod smollm3;
