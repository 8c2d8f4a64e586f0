//! The demo model and the release binary, which `cargo xtask test` provides.

use std::path::{Path, PathBuf};

/// The imported SmolLM2: `SLIPSTREAM_DEMO_MODEL`, else where `cargo xtask setup` leaves it.
///
/// # Panics
/// When it is not there.
pub fn model_directory() -> PathBuf {
    let directory = provided("SLIPSTREAM_DEMO_MODEL", ".models/SmolLM2-135M-Instruct");
    assert!(directory.is_dir(), "no demo model at {directory:?}: run `cargo xtask setup`");
    directory
}

/// The imported Gemma 3 270M: `SLIPSTREAM_GEMMA_MODEL`, else where `cargo xtask setup --all` leaves it.
///
/// # Panics
/// When it is not there.
pub fn gemma_directory() -> PathBuf {
    let directory = provided("SLIPSTREAM_GEMMA_MODEL", ".models/gemma-3-270m");
    assert!(directory.is_dir(), "no model at {directory:?}: run `cargo xtask setup --all`");
    directory
}

/// The `slipstream` binary: `SLIPSTREAM_BIN`, else the release build.
///
/// # Panics
/// When it is not there.
pub fn binary() -> PathBuf {
    let binary = provided("SLIPSTREAM_BIN", "target/release/slipstream");
    assert!(binary.is_file(), "no binary at {binary:?}: run `cargo xtask setup`");
    binary
}

/// A Python that has the client SDKs: `SLIPSTREAM_CLIENT_PYTHON`, else the clients' environment.
///
/// # Panics
/// When it is not there.
pub fn client_python() -> PathBuf {
    let python = provided("SLIPSTREAM_CLIENT_PYTHON", ".venv/clients/bin/python");
    assert!(python.is_file(), "no Python at {python:?}: run `cargo xtask setup`");
    python
}

/// The folder of the JavaScript clients with their packages: `SLIPSTREAM_CLIENT_NODE`, else where the clients
/// are.
///
/// # Panics
/// When the packages are not there.
pub fn node_clients() -> PathBuf {
    let folder = provided("SLIPSTREAM_CLIENT_NODE", "tests/clients/npm");
    let packages = folder.join("node_modules");
    assert!(packages.is_dir(), "no packages at {packages:?}: run `cargo xtask setup --all`");
    folder
}

fn provided(variable: &str, default: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os(variable).map_or_else(|| root.join(default), PathBuf::from)
}
