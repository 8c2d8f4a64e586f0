//! `cargo xtask test`: set-up, then every check, cheapest first, up to the first that fails.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::clock::Stopwatch;
use crate::process::Task;
use crate::workspace::Workspace;
use crate::{model, node, setup, venv};

/// One check: a name for people, and the command whose exit status tells.
struct Check {
    name: &'static str,
    task: Task,
}

/// What the end-to-end tests are told through the environment.
struct Fixtures {
    server: PathBuf,
    model: PathBuf,
    gemma: PathBuf,
    python: PathBuf,
    node: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, yes: bool) -> Result<()> {
    let watch = Stopwatch::start();
    println!("== format");
    // Needs no set-up, so a stray space is told at once.
    format_check(workspace).stream().context("1 check failed: format")?;
    println!("== set-up");
    let fixtures = fixtures(workspace, yes)?;
    println!("== set-up: done in {:.0} s", watch.seconds());
    let checks = checks(workspace, &fixtures);
    let mut passed = 1;
    for Check { name, task } in checks {
        println!("== {name}: {}", task.shown());
        let watch = Stopwatch::start();
        let outcome = task.stream();
        let verdict = if outcome.is_ok() { "passed" } else { "FAILED" };
        println!("== {name}: {verdict} after {:.0} s", watch.seconds());
        outcome.with_context(|| format!("1 check failed: {name} ({passed} passed before it)"))?;
        passed += 1;
    }
    println!("== all {passed} checks passed in {:.0} s", watch.seconds());
    Ok(())
}

fn fixtures(workspace: &Workspace, yes: bool) -> Result<Fixtures> {
    let _lock = workspace.lock()?;
    setup::build(workspace, yes)?;
    let server = setup::server(workspace)?;
    let model = model::DEMO.ready(workspace, &server)?;
    let gemma = model::GEMMA.ready(workspace, &server)?;
    let python = venv::CLIENTS.ready(workspace)?;
    let node = node::ready(workspace)?;
    Ok(Fixtures { server, model, gemma, python, node })
}

fn format_check(workspace: &Workspace) -> Task {
    workspace
        .cargo("check the format")
        .args(["fmt", "--all", "--check"])
        .hint("run `cargo fmt --all`")
}

fn checks(workspace: &Workspace, fixtures: &Fixtures) -> Vec<Check> {
    let lints = workspace.cargo("pass the lints").args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]);
    let without_mlx = workspace.cargo("pass the tests that need no MLX").args([
        "test",
        "--package",
        "slipstream-engine",
        "--no-default-features",
    ]);
    let all = workspace
        .cargo("pass the tests")
        .args(["test", "--workspace"])
        .env("SLIPSTREAM_BIN", &fixtures.server)
        .env("SLIPSTREAM_DEMO_MODEL", &fixtures.model)
        .env("SLIPSTREAM_GEMMA_MODEL", &fixtures.gemma)
        .env("SLIPSTREAM_CLIENT_PYTHON", &fixtures.python)
        .env("SLIPSTREAM_CLIENT_NODE", &fixtures.node);
    vec![
        Check { name: "lints", task: lints },
        Check { name: "tests without MLX", task: without_mlx },
        Check { name: "all tests", task: all },
    ]
}
