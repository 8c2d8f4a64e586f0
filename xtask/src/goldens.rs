//! `cargo xtask goldens`: has mlx-lm write the fixtures that our tests compare with. Our own code
//! takes part only by importing models with real weights, whose files both engines read.

use anyhow::{Result, bail};

use crate::process::Task;
use crate::workspace::Workspace;
use crate::{model, setup, venv};

pub(crate) fn run(workspace: &Workspace, yes: bool) -> Result<()> {
    let lock = workspace.lock()?;
    setup::build(workspace, yes)?;
    let server = setup::server(workspace)?;
    let model = model::DEMO.ready(workspace, &server)?;
    let gemma = model::GEMMA.ready(workspace, &server)?;
    let python = venv::ORACLE.ready(workspace)?;
    let reference_blas = venv::reference_blas(&python)?;
    drop(lock);
    let out = folder()?;
    println!("Writing `{out}`");
    let generate = || {
        let task = Task::new("generate the goldens", &python).directory(workspace.root());
        // The reference BLAS sums f32 in the same order on every machine.
        let task = task.env("LD_PRELOAD", &reference_blas);
        task.args(["goldens/generate/generate.py", "--out", &out])
    };
    // The script writes the tiny checkpoints and their cases, or those of one real model.
    generate().stream()?;
    generate().arg("--smollm2").arg(&model).stream()?;
    generate().arg("--gemma3-270m").arg(&gemma).stream()
}

/// Where this kind of machine has its goldens, below the checkout.
///
/// # Errors
/// On a system that the scripts do not know.
pub(crate) fn folder() -> Result<String> {
    Ok(format!("goldens/{}", machine(std::env::consts::OS, std::env::consts::ARCH)?))
}

/// The kind of machine whose bits these are: system, processor and back end.
fn machine(system: &str, processor: &str) -> Result<String> {
    match system {
        "linux" => Ok(format!("linux-{processor}-cpu")),
        other => bail!("failed to generate goldens: the scripts know Linux only, not `{other}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::machine;

    #[test]
    fn goldens_are_named_after_system_processor_and_back_end() {
        assert_eq!(machine("linux", "x86_64").unwrap(), "linux-x86_64-cpu");
        assert_eq!(machine("linux", "aarch64").unwrap(), "linux-aarch64-cpu");
        assert!(machine("macos", "aarch64").is_err());
    }
}
