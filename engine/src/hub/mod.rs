//! Models on disk: how they come to be there.
//!
//! [`import()`] turns a GGUF file into a model directory in the Hugging Face layout, which our
//! loader and mlx-lm both read. Nothing here touches arrays.

pub mod gguf;
pub mod import;

pub use import::{ImportProgress, Imported, WeightDtype, import};
