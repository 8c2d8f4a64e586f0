//! Models on disk: how they come to be there.
//!
//! [`import()`] turns a GGUF file into a model directory in the Hugging Face layout, which our
//! loader and mlx-lm both read, and `convert()` makes a quantized one of another one. Repositories of the hub are
//! named by [`repo`], [`places`] says where models lie, and a [`manifest`] is what a finished download says of itself;
//! the [`library`] is what there is of all this, and [`fit()`](fit::fit) says what a machine can run. [`Hub`] is all of
//! this for a process that runs on. Only `convert()` touches arrays.

#[cfg(feature = "mlx")]
pub mod convert;
pub mod download;
mod facade;
pub mod fit;
pub mod gguf;
pub mod import;
pub mod jobs;
pub mod library;
pub mod manifest;
pub mod places;
pub mod remote;
pub mod repo;
pub mod search;
mod shelf;
mod staging;
pub mod token;

pub use facade::{Found, Hub, HubConfig, LibraryView, Listed, Reading};
pub use import::{ImportProgress, Imported, WeightDtype, import};
pub use shelf::View;

use std::fmt;

use crate::error::{Code, Error};

/// An error of the file system, with what was attempted.
fn io_error(error: &std::io::Error, attempt: impl fmt::Display) -> Error {
    Error::new(Code::Io, format!("{attempt}: {error}"))
}
