//! What the verbs need before they can do their work. Every step looks first whether it has
//! anything to do, so a verb just names what it needs.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::workspace::Workspace;
use crate::{model, node, packages, venv};

/// `cargo xtask setup`: what [`build`] gives; with `all`, also what the other verbs need.
pub(crate) fn run(workspace: &Workspace, yes: bool, all: bool) -> Result<()> {
    let _lock = workspace.lock()?;
    build(workspace, yes)?;
    if all {
        let server = server(workspace)?;
        model::DEMO.ready(workspace, &server)?;
        model::GEMMA.ready(workspace, &server)?;
        venv::CLIENTS.ready(workspace)?;
        node::ready(workspace)?;
        venv::ORACLE.ready(workspace)?;
    }
    println!("Set up.");
    Ok(())
}

/// Plain `cargo build` and `cargo test` work after this: system packages and MLX.
pub(crate) fn build(workspace: &Workspace, yes: bool) -> Result<()> {
    packages::ready(yes)?;
    mlx(workspace)
}

#[cfg(target_os = "linux")]
fn mlx(workspace: &Workspace) -> Result<()> {
    crate::mlx::ready(workspace)
}

/// On a Mac mlx-sys builds MLX while cargo builds us.
#[cfg(not(target_os = "linux"))]
fn mlx(_: &Workspace) -> Result<()> {
    Ok(())
}

/// Builds the optimised `slipstream` and says where it is.
pub(crate) fn server(workspace: &Workspace) -> Result<PathBuf> {
    let task = workspace.cargo("build the server");
    task.args(["build", "--release", "--package", "slipstream-engine"]).stream()?;
    let server = workspace.target()?.join("release/slipstream");
    if !server.is_file() {
        bail!("failed to build the server: cargo left no `{}`", server.display());
    }
    Ok(server)
}
