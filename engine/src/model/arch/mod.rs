//! One file per architecture: how its checkpoints become a [`Model`](super::Model).

pub mod diffusion_gemma;
pub mod gemma;
pub mod gemma2;
pub mod gemma3;
pub mod gemma4;
pub mod glm4;
pub mod glm4_moe_lite;
pub mod glm_moe_dsa;
pub mod gpt_oss;
pub mod granite;
pub mod llama;
pub mod minicpm;
pub mod minicpm3;
pub mod ministral3;
pub mod olmo3;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
pub mod qwen3_5;
pub mod qwen3_moe;
pub mod smollm3;
