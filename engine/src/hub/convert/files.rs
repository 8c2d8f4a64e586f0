//! What is copied along with the weights: what describes the tokenizer and how to sample, and the terms of use.
//! Nothing else, and never code.

use std::fs;
use std::path::Path;

use crate::error::Result;
use crate::hub::io_error;
use crate::hub::staging::Staging;

const NAMES: [&str; 14] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "NOTICE",
];
/// Beginnings of the names of terms of use, without an ending or with one of these.
const TERMS: [&str; 2] = ["LICENSE", "USE_POLICY"];
const TERMS_ENDS: [&str; 3] = ["", ".md", ".txt"];

/// A file to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// The files of `directory` that are copied, in the order of their names.
pub(super) fn list(directory: &Path) -> Result<Vec<Copied>> {
    let failed = |error: std::io::Error| {
        io_error(&error, format_args!("failed to list `{}`", directory.display()))
    };
    let mut copied = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_allowed(&name) {
            // Links are followed: in Hugging Face's cache every file is one.
            let metadata = fs::metadata(entry.path()).map_err(failed)?;
            if metadata.is_file() {
                copied.push(Copied { name, bytes: metadata.len() });
            }
        }
    }
    copied.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(copied)
}

fn is_allowed(name: &str) -> bool {
    let end = TERMS.iter().find_map(|start| name.strip_prefix(start));
    NAMES.contains(&name) || end.is_some_and(|end| TERMS_ENDS.contains(&end))
}

/// Copies `files` of `directory`.
pub(super) fn copy(directory: &Path, files: &[Copied], staging: &Staging) -> Result<()> {
    for Copied { name, .. } in files {
        let source = directory.join(name);
        let content = fs::read(&source).map_err(|error| {
            io_error(&error, format_args!("failed to read `{}`", source.display()))
        })?;
        staging.write(name, &content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_describes_the_tokenizer_is_copied_and_code_never() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "LICENSE",
            "LICENSE.py",
            "USE_POLICY.md",
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
            "modeling_llama.py",
            "pytorch_model.bin",
            "tokenizer.json",
        ];
        for name in names {
            fs::write(directory.path().join(name), name).unwrap();
        }
        fs::create_dir(directory.path().join("vocab.json")).unwrap();
        let copied = list(directory.path()).unwrap();
        let copied: Vec<_> = copied.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(copied, ["LICENSE", "USE_POLICY.md", "chat_template.jinja", "tokenizer.json"]);
    }
}
