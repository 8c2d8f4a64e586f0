//! `cargo xtask serve`: set-up, then the server in our place.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::process::Task;
use crate::workspace::Workspace;
use crate::{model, setup};

/// Becomes `slipstream serve` with these flags; returns only if that fails.
pub(crate) fn run(workspace: &Workspace, yes: bool, flags: Vec<OsString>) -> Result<()> {
    let lock = workspace.lock()?;
    setup::build(workspace, yes)?;
    let server = setup::server(workspace)?;
    let arguments = if names_model(&flags) {
        flags
    } else {
        with_model(&model::DEMO.ready(workspace, &server)?, flags)
    };
    drop(lock);
    let task = Task::new("start the server", &server).arg("serve").args(arguments);
    let shown = task.shown().to_owned();
    let failed = task.into_command().exec();
    Err(failed).with_context(|| format!("failed to start `{shown}`"))
}

/// True if the flags choose a model, so that the demo model is not needed.
fn names_model(flags: &[OsString]) -> bool {
    flags
        .iter()
        .filter_map(|flag| flag.to_str())
        .any(|flag| flag == "--model" || flag.starts_with("--model="))
}

fn with_model(folder: &Path, flags: Vec<OsString>) -> Vec<OsString> {
    let model = [OsStr::new("--model").to_owned(), folder.as_os_str().to_owned()];
    model.into_iter().chain(flags).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_model_of_the_callers_own_is_noticed_in_both_spellings() {
        assert!(names_model(&flags(&["--port", "1", "--model", "x"])));
        assert!(names_model(&flags(&["--model=x"])));
        assert!(!names_model(&flags(&["--model-alias", "x", "--port", "1"])));
        assert!(!names_model(&[]));
    }

    #[test]
    fn the_demo_model_comes_before_the_callers_flags() {
        let arguments = with_model(Path::new("/m"), flags(&["--port", "1"]));
        assert_eq!(arguments, flags(&["--model", "/m", "--port", "1"]));
    }
}
