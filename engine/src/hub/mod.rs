//! Models on disk: how they come to be there.
//!
//! [`import()`] turns a GGUF file into a model directory in the Hugging Face layout, which our
//! loader and mlx-lm both read. Repositories of the hub are named by [`repo`], [`places`] says where models lie, and a
//! [`manifest`] is what a finished download says of itself; the [`library`] is what there is of all this. Nothing here touches arrays.

pub mod gguf;
pub mod import;
pub mod library;
pub mod manifest;
pub mod places;
pub mod repo;

pub use import::{ImportProgress, Imported, WeightDtype, import};
