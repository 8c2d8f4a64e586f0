//! `cargo xtask <verb>`: everything around the engine.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to people")]
mod fetch;
#[cfg(target_os = "linux")]
mod mlx;
mod packages;
mod process;
mod stamp;
mod workspace;
fn main() -> anyhow::Result<()> {
    let w = workspace::Workspace::find()?;
    let _lock = w.lock()?;
    packages::ready(true)?;
    mlx::ready(&w)
}
