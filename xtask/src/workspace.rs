//! Where things are. Everything that `cargo xtask` makes lies in git-ignored folders of the
//! workspace root: `.mlx/` (MLX on Linux), `.models/` (the demo model), `.venv/` (Python) and the
//! target folder of cargo.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::Task;
use crate::stamp::create_folder;

/// The checkout that this `cargo xtask` belongs to.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Found from the place of this crate: cargo says where it is now, the compiler where it was.
    pub(crate) fn find() -> Result<Self> {
        let manifest_directory = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_directory.join("..").canonicalize();
        let root = root.with_context(|| {
            format!("failed to find the workspace above `{}`", manifest_directory.display())
        })?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn mlx(&self) -> PathBuf {
        self.root.join(".mlx")
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.root.join(".models")
    }

    pub(crate) fn venvs(&self) -> PathBuf {
        self.root.join(".venv")
    }

    /// A new cargo process in the workspace. It has to be new: cargo reads `.mlx/cargo.toml` when
    /// it starts, so the cargo that runs us may have started before that file was there.
    pub(crate) fn cargo(&self, attempt: &str) -> Task {
        Task::cargo(attempt).directory(&self.root)
    }

    /// What cargo knows about the workspace and, with `dependencies`, about every crate in use.
    pub(crate) fn cargo_metadata(&self, dependencies: bool) -> Result<Value> {
        let mut task = self.cargo("read the workspace's metadata");
        task = task.args(["metadata", "--format-version", "1"]);
        if !dependencies {
            task = task.arg("--no-deps");
        }
        let json = task.capture()?;
        serde_json::from_str(&json).context("failed to parse the output of `cargo metadata`")
    }

    /// Cargo's target folder, wherever the environment puts it.
    pub(crate) fn target(&self) -> Result<PathBuf> {
        let metadata = self.cargo_metadata(false)?;
        let target = metadata["target_directory"].as_str();
        Ok(target.context("`cargo metadata` names no `target_directory`")?.into())
    }

    /// Keeps a second `cargo xtask` of this checkout from setting up the same folders. Held until
    /// the returned file is dropped.
    pub(crate) fn lock(&self) -> Result<File> {
        let venvs = self.venvs();
        create_folder(&venvs)?;
        let path = venvs.join("lock");
        let file = File::create(&path)
            .with_context(|| format!("failed to create the lock `{}`", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("Another `cargo xtask` sets this checkout up: waiting for its end.");
                file.lock().with_context(|| format!("failed to lock `{}`", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("failed to lock `{}`", path.display()));
            }
        }
        Ok(file)
    }
}

/// The version of `package` in the text of a `Cargo.lock`.
pub(crate) fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"mlx-sys-extra\"\nversion = \"9.9.9\"\n\n\
        [[package]]\nname = \"mlx-sys\"\nversion = \"0.7.0\"\nsource = \"x\"\n";

    #[test]
    fn the_locked_version_is_of_the_named_package_alone() {
        assert_eq!(locked_version(LOCK, "mlx-sys"), Some("0.7.0"));
        assert_eq!(locked_version(LOCK, "mlx-sys-extra"), Some("9.9.9"));
        assert_eq!(locked_version(LOCK, "mlx"), None);
        assert_eq!(locked_version("name = \"mlx-sys\"", "mlx-sys"), None);
    }

    #[test]
    fn this_workspace_is_found_and_locks_mlx() {
        let workspace = Workspace::find().unwrap();
        let lock = std::fs::read_to_string(workspace.root().join("Cargo.lock")).unwrap();
        assert!(locked_version(&lock, "mlx-sys").is_some());
    }
}
