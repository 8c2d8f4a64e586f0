//! One file per architecture: how its checkpoints become a [`Model`](super::Model).

pub mod gemma;
pub mod gemma2;
pub mod gemma3;
pub mod llama;
