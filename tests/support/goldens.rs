//! Where the oracle's fixtures lie.

use std::path::PathBuf;

use crate::sources::repository;

/// The fixtures made on this kind of machine.
pub fn directory() -> PathBuf {
    repository().join("goldens/linux-x86_64-cpu")
}

/// The tiny checkpoint `name` among them.
pub fn checkpoint(name: &str) -> PathBuf {
    directory().join(name)
}
