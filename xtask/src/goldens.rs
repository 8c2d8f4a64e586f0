//! `cargo xtask goldens`: has mlx-lm write the fixtures that our tests compare with. Our own code
//! takes part only by importing the demo model, whose files both engines read.

use anyhow::{Result, bail};

use crate::process::Task;
use crate::workspace::Workspace;
use crate::{model, setup, venv};

pub(crate) fn run(workspace: &Workspace, yes: bool) -> Result<()> {
    let lock = workspace.lock()?;
    setup::build(workspace, yes)?;
    let server = setup::server(workspace)?;
    let model = model::ready(workspace, &server)?;
    let python = venv::ORACLE.ready(workspace)?;
    drop(lock);
    let out = format!("goldens/{}", machine(std::env::consts::OS, std::env::consts::ARCH)?);
    println!("Writing `{out}`");
    Task::new("generate the goldens", python)
        .args(["goldens/generate/generate.py", "--out", &out, "--smollm2"])
        .arg(&model)
        .directory(workspace.root())
        .stream()
}

/// The kind of machine whose bits these are: system, processor and back end.
fn machine(system: &str, processor: &str) -> Result<String> {
    let back_end = match system {
        "linux" => "cpu",
        "macos" => "metal",
        other => bail!("failed to name the goldens: MLX does not run on `{other}`"),
    };
    Ok(format!("{system}-{processor}-{back_end}"))
}

#[cfg(test)]
mod tests {
    use super::machine;

    #[test]
    fn goldens_are_named_after_system_processor_and_back_end() {
        assert_eq!(machine("linux", "x86_64").unwrap(), "linux-x86_64-cpu");
        assert_eq!(machine("macos", "aarch64").unwrap(), "macos-aarch64-metal");
        assert!(machine("windows", "x86_64").is_err());
    }
}
