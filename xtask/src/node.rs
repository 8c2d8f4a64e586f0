//! The JavaScript clients of the end-to-end tests: packages that a committed lock file pins, in the
//! `node_modules` beside it, where Node looks for them. They are left alone until the lock changes.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::Task;
use crate::stamp::Stamp;
use crate::workspace::Workspace;

/// The folder of the clients and of what pins their packages, from the workspace root.
const CLIENTS: &str = "tests/clients/npm";

/// Installs the packages and returns the folder of the clients.
pub(crate) fn ready(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.root().join(CLIENTS);
    let lock = folder.join("package-lock.json");
    let pins = fs::read_to_string(&lock)
        .with_context(|| format!("failed to read `{}`", lock.display()))?;
    let stamp = Stamp::new(folder.join("node_modules/stamp"), &[("layout", "1"), ("pins", &pins)]);
    if stamp.is_current() {
        return Ok(folder);
    }
    eprintln!("Node: installing what `{CLIENTS}/package-lock.json` pins");
    Task::new(format!("install the packages of `{CLIENTS}`"), "npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .directory(&folder)
        .hint("check the network, that npm reaches its registry, and that Node is 18 or later")
        .stream()?;
    stamp.write()?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(name: &str) -> Value {
        let path = Workspace::find().unwrap().root().join(CLIENTS).join(name);
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn every_package_is_pinned_exactly_and_by_its_hash_and_no_registry_is_named() {
        let wanted = read("package.json")["dependencies"].clone();
        let lock = read("package-lock.json");
        let packages = lock["packages"].as_object().unwrap();
        for (name, version) in wanted.as_object().unwrap() {
            assert_eq!(packages[&format!("node_modules/{name}")]["version"], *version, "{name}");
        }
        for (place, package) in packages.iter().filter(|(place, _)| !place.is_empty()) {
            assert!(package["integrity"].is_string(), "{place}");
            assert!(package["resolved"].is_null(), "{place}");
        }
    }
}
