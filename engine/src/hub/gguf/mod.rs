//! GGUF: llama.cpp's single-file model format, read without trusting a byte of it.
//!
//! Words: the **header** is everything before the tensor data (version, metadata, tensor infos);
//! a **block** is the unit in which a quantized type packs its values; a **plan** says which
//! tensor of the file becomes which Hugging Face weight, and how.
//!
//! Invariants:
//! 1. No length, count or offset of the file is believed before it is compared with the bytes that
//!    are really there, so a hostile file can make us allocate a small multiple of its header at most.
//! 2. Everything is decided (header, plan, tokenizer) before the first byte is written anywhere.
//! 3. What the target layout cannot express is refused by name, never dropped.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

pub mod blocks;
pub mod metadata;
pub mod plan;
pub mod reader;
pub mod tokenizer;

mod cursor;
mod gemma3;
mod llama;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use blocks::TensorType;
pub use metadata::{Array, Metadata, Value};
pub use plan::{ModelPlan, RowOrder, TensorPlan};
pub use reader::{Header, TensorInfo, read_header};

use crate::error::{Code, Error};

/// An error about the content of an imported file.
pub(crate) fn bad_import(message: impl Into<String>) -> Error {
    Error::new(Code::BadImport, message)
}
