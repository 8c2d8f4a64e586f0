//! Models on disk: how they come to be there.
//!
//! [`download`] fetches one from the hub into the folder that [`places`] names, and leaves a [`manifest`] in it;
//! [`search`] finds what there is to fetch. Both ask a [`remote`] hub, which is shown a [`token`] where one is known,
//! and name repositories and files by the types of [`repo`]. [`import()`] turns a GGUF file into a model directory in
//! the Hugging Face layout, which our loader and mlx-lm both read, and `convert()` makes a quantized one of another
//! one. The [`library`] is what there is of all this, and [`fit()`](fit::fit) says what a machine can run. [`Hub`] is
//! all of it for a process that runs on. Only `convert()` touches arrays.

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
#[cfg(test)]
pub(crate) mod script;
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
