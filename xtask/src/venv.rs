//! Python environments, one per use, under `.venv/`. Each is made from a committed requirements
//! file that pins every package, and is left alone until that file changes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::Task;
use crate::stamp::{Stamp, remove_if_there};
use crate::workspace::Workspace;

/// One Python environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Venv {
    /// The folder below `.venv/`.
    name: &'static str,
    /// The committed list of packages, from the workspace root.
    requirements: &'static str,
    /// True if it holds MLX for Linux, whose BLAS we exchange as we do for the engine.
    mlx: bool,
}

/// mlx-lm, whose output ours must equal.
pub(crate) const ORACLE: Venv =
    Venv { name: "oracle", requirements: "goldens/generate/requirements.txt", mlx: true };

/// The SDKs of the end-to-end tests.
pub(crate) const CLIENTS: Venv =
    Venv { name: "clients", requirements: "tests/clients/requirements.txt", mlx: false };

impl Venv {
    /// Makes the environment and returns its Python.
    pub(crate) fn ready(&self, workspace: &Workspace) -> Result<PathBuf> {
        let folder = workspace.venvs().join(self.name);
        let python = folder.join("bin/python");
        let requirements = workspace.root().join(self.requirements);
        let pins = fs::read_to_string(&requirements)
            .with_context(|| format!("failed to read `{}`", requirements.display()))?;
        let place = folder.to_string_lossy();
        let stamp = Stamp::new(
            folder.join("stamp"),
            &[("layout", "2"), ("pins", &pins), ("folder", &place)],
        );
        if stamp.is_current() && python.exists() {
            return Ok(python);
        }
        eprintln!("Python: making `.venv/{}` from `{}`", self.name, self.requirements);
        remove_if_there(&folder)?;
        create(&folder)?;
        install(&python, &requirements)?;
        if self.mlx {
            exchange_blas(&python)?;
        }
        stamp.write()?;
        Ok(python)
    }
}

fn create(folder: &Path) -> Result<()> {
    let task = Task::new(format!("make a Python environment at `{}`", folder.display()), "python3");
    let task = task.args(["-m", "venv"]).arg(folder);
    task.hint("check that `python3 -m venv` works (Debian: `python3-venv`)").capture()?;
    Ok(())
}

fn install(python: &Path, requirements: &Path) -> Result<()> {
    Task::new(format!("install `{}`", requirements.display()), python)
        .args(["-m", "pip", "--quiet", "--disable-pip-version-check", "install"])
        .args(["--only-binary=:all:", "--requirement"])
        .arg(requirements)
        .hint("check the network, that pip reaches its registry, and that Python is 3.11 or later")
        .stream()
}

/// Both engines must multiply with the same BLAS, or their speeds and f32 bits do not compare.
#[cfg(target_os = "linux")]
fn exchange_blas(python: &Path) -> Result<()> {
    crate::mlx::link_openblas(&mlx_libraries(python)?)
}

/// The BLAS that MLX came with.
#[cfg(target_os = "linux")]
pub(crate) fn reference_blas(python: &Path) -> Result<PathBuf> {
    crate::mlx::reference_blas(&mlx_libraries(python)?)
}

#[cfg(target_os = "linux")]
fn mlx_libraries(python: &Path) -> Result<PathBuf> {
    let task = Task::new("find the environment's packages", python);
    let task = task.args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]);
    Ok(PathBuf::from(task.capture()?.trim()).join("mlx_cpu.libs"))
}

/// MLX for the Mac has Accelerate alone.
#[cfg(not(target_os = "linux"))]
pub(crate) fn reference_blas(_: &Path) -> Result<PathBuf> {
    Ok(PathBuf::new())
}

/// MLX for the Mac uses Accelerate in both engines.
#[cfg(not(target_os = "linux"))]
fn exchange_blas(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a requirements file that name a package.
    fn pins(venv: Venv) -> Vec<String> {
        let root = Workspace::find().unwrap().root().to_owned();
        let text = fs::read_to_string(root.join(venv.requirements)).unwrap();
        let lines = text.lines().map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn every_requirement_is_pinned_exactly() {
        for venv in [ORACLE, CLIENTS] {
            let pins = pins(venv);
            assert!(!pins.is_empty());
            for line in pins {
                let (name, version) = line.split_once("==").unwrap_or((&line, ""));
                assert!(!version.is_empty() && !version.contains('*'), "`{name}` is not pinned");
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_oracle_has_the_mlx_that_the_engine_has() {
        let wheel = crate::mlx::wheel_requirement();
        let found = pins(ORACLE).into_iter().any(|line| line.starts_with(wheel));
        assert!(found, "`{wheel}` is not among the oracle's requirements");
    }
}
