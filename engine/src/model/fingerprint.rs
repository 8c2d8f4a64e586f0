//! What a checkpoint is, as a short name: two that have the same compute the same caches.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::UNIX_EPOCH;

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Code, Error, Result};
use crate::mlx::shards::shard_files;

/// Files beside the weights that decide what the model makes of a text.
const FILES: [&str; 3] = ["config.json", "tokenizer.json", "tokenizer_config.json"];
/// Bytes of one sample of a weights file.
const SAMPLE_BYTES: u64 = 4096;
/// Samples of a weights file, spread evenly over it.
const SAMPLES: u64 = 1024;

/// A fingerprint, in 32 hexadecimal digits, of the checkpoint in `directory` as it is run with `settings`: of its
/// configuration and tokenizer whole, and of each file of weights its name, length, time of change and a thousand
/// samples, because reading all of it takes as long as loading.
///
/// # Errors
/// `BadModel` when a file cannot be read.
pub fn fingerprint(directory: &Path, settings: &[&str]) -> Result<String> {
    let mut hash = Xxh3::new();
    for setting in settings {
        add(&mut hash, setting.as_bytes());
    }
    for name in FILES {
        match fs::read(directory.join(name)) {
            Ok(bytes) => add(&mut hash, &bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => add(&mut hash, b""),
            Err(error) => return Err(unreadable(&directory.join(name), &error)),
        }
    }
    for file in shard_files(directory)? {
        add_samples(&mut hash, &file).map_err(|error| unreadable(&file, &error))?;
    }
    let mut digits = String::new();
    // Writing to a string cannot fail.
    let _ = write!(digits, "{:032x}", hash.digest128());
    Ok(digits)
}

/// Adds `bytes` and how many they are, so that no two sequences of parts run together.
fn add(hash: &mut Xxh3, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

fn add_samples(hash: &mut Xxh3, path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    add(hash, path.file_name().unwrap_or_default().as_encoded_bytes());
    add(hash, &metadata.len().to_le_bytes());
    add(hash, &changed.as_nanos().to_le_bytes());
    for sample in 0..SAMPLES {
        let last_start = metadata.len().saturating_sub(SAMPLE_BYTES);
        file.seek(SeekFrom::Start(last_start * sample / (SAMPLES - 1)))?;
        let mut bytes = Vec::new();
        file.by_ref().take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
        add(hash, &bytes);
    }
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::BadModel, format!("failed to read `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A checkpoint of a megabyte of zeros, but for `changes`: a file, a place in it and what stands there.
    fn checkpoint(changes: &[(&str, usize)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in
            [("config.json", 20), ("tokenizer.json", 50), ("model.safetensors", 1 << 20)]
        {
            let mut content = vec![0; bytes];
            for (_, place) in changes.iter().filter(|(changed, _)| *changed == name) {
                content[*place] = 1;
            }
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(5)).unwrap();
        }
        folder
    }

    fn of(changes: &[(&str, usize)]) -> String {
        fingerprint(checkpoint(changes).path(), &["bf16", "plain"]).unwrap()
    }

    #[test]
    fn equal_checkpoints_have_equal_fingerprints_wherever_they_lie() {
        assert_eq!(of(&[]), of(&[]));
        assert_eq!(of(&[]).len(), 32);
    }

    #[test]
    fn any_changed_file_or_setting_changes_the_fingerprint() {
        let all = [
            of(&[]),
            of(&[("config.json", 19)]),
            of(&[("tokenizer.json", 0)]),
            of(&[("model.safetensors", 0)]),
            of(&[("model.safetensors", (1 << 20) - 1)]),
            of(&[("model.safetensors", 300_000)]),
            fingerprint(checkpoint(&[]).path(), &["bf16plain", ""]).unwrap(),
            fingerprint(checkpoint(&[]).path(), &["bf16"]).unwrap(),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[index + 1..].iter().all(|other| other != one), "{index}");
        }
    }

    #[test]
    fn weights_that_were_written_again_have_another_fingerprint() {
        let folder = checkpoint(&[]);
        let before = fingerprint(folder.path(), &[]).unwrap();
        let file = File::options().write(true).open(folder.path().join("model.safetensors"));
        file.unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(6)).unwrap();
        assert_ne!(fingerprint(folder.path(), &[]).unwrap(), before);
    }

    #[test]
    fn a_directory_without_weights_has_no_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(fingerprint(folder.path(), &[]).unwrap_err().code(), Code::BadModel);
    }
}
