//! `cargo xtask bench models`: what a step costs the hosts of both engines, for every family of which
//! there is a tiny checkpoint. Next to nothing is computed, so the host's part is all there is.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Bench;
use crate::figures::{Decode, families_table};
use crate::goldens;

/// One row: two of some families fail in mlx-lm's batches.
const BATCH: &str = "1";

/// Model types that mlx-lm 0.32.2 does not know, so that there is nothing to compare.
const UNKNOWN_TO_MLX_LM: [&str; 1] = ["diffusion_gemma"];

/// Measures each tiny checkpoint and prints the table.
pub(super) fn run(bench: &Bench, root: &Path, rounds: usize) -> Result<()> {
    let mut families = Vec::new();
    for checkpoint in checkpoints(&root.join(goldens::folder()?))? {
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let model_type = model_type(&checkpoint)?;
        if UNKNOWN_TO_MLX_LM.contains(&model_type.as_str()) {
            eprintln!("Leaving out `{name}`: mlx-lm does not know `{model_type}`");
            continue;
        }
        let decode: Decode = bench
            .decode(&checkpoint, BATCH, rounds)
            .with_context(|| format!("failed to measure `{name}`"))?;
        families.push((name, decode));
    }
    println!("\n{}", families_table(&families));
    Ok(())
}

/// The folders of `goldens` that hold a checkpoint, by name.
fn checkpoints(goldens: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(goldens)
        .with_context(|| format!("failed to look into `{}`", goldens.display()))?;
    let folders = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let mut folders: Vec<_> =
        folders.into_iter().filter(|it| it.join("model.safetensors").is_file()).collect();
    folders.sort();
    match folders.is_empty() {
        true => bail!("no checkpoint in `{}`: run `cargo xtask goldens`", goldens.display()),
        false => Ok(folders),
    }
}

fn model_type(checkpoint: &Path) -> Result<String> {
    let path = checkpoint.join("config.json");
    let attempt = || format!("failed to read the model type in `{}`", path.display());
    let text = std::fs::read_to_string(&path).with_context(attempt)?;
    let config: Value = serde_json::from_str(&text).with_context(attempt)?;
    config["model_type"].as_str().map(str::to_owned).with_context(attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_the_folders_with_weights_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        assert!(checkpoints(folder.path()).is_err());
        for name in ["b", "a", "cases-only"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["b", "a"] {
            std::fs::write(folder.path().join(name).join("model.safetensors"), "").unwrap();
        }
        let expected = ["a", "b"].map(|name| folder.path().join(name));
        assert_eq!(checkpoints(folder.path()).unwrap(), expected);
    }
}
