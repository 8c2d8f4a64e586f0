//! Which directories an import may replace: those that it made.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::MARKER_FILE;
use crate::error::{Code, Error, Result};
use crate::hub::io_error;
use crate::hub::staging::entries;

/// Everything that an import writes.
const FILES: [&str; 6] = [
    MARKER_FILE,
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Refuses `out` unless it is free, an empty directory or an import of ours.
pub(super) fn check_replaceable(out: &Path) -> Result<()> {
    let metadata = match fs::symlink_metadata(out) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(io_error(&error, format_args!("failed to look at `{}`", out.display())));
        }
    };
    if !metadata.is_dir() {
        return Err(taken(out, "is not a directory"));
    }
    let entries = entries(out)?;
    let foreign = entries.iter().find(|name| !FILES.contains(&name.as_str()));
    match foreign {
        None if entries.is_empty() => Ok(()),
        None if entries.iter().any(|name| name == MARKER_FILE) => Ok(()),
        None => Err(taken(out, &format!("has no `{MARKER_FILE}`, so it is no import"))),
        Some(name) => Err(taken(out, &format!("has `{name}`, which no import writes"))),
    }
}

fn taken(out: &Path, why: &str) -> Error {
    Error::new(Code::InvalidRequest, format!("`{}` {why}; it is not overwritten", out.display()))
        .with_param("out")
        .with_hint("choose another output directory, or remove this one")
}
