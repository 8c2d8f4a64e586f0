//! What a finished download says about itself: which files of which commit, each with what it was checked against.
//!
//! It lies at `.slipstream/manifest.json` in the model's folder and is written before the folder gets its name. So a
//! folder of ours that has one is whole, and a later download knows what it need not fetch again.

use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::hub::repo::{Commit, RepoFile, RepoId};

/// The folder in a model's folder that holds what is ours rather than the repository's.
pub const OWN_FOLDER: &str = ".slipstream";
/// The manifest's name in [`OWN_FOLDER`].
const MANIFEST_FILE: &str = "manifest.json";
/// The version of the file's format.
const VERSION: u32 = 1;
/// Bytes of a manifest at most: some hundred thousand files.
const MANIFEST_BYTES_MAX: u64 = 32 << 20;

/// A downloaded model: see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Where it came from.
    pub repo: RepoId,
    /// The commit that all its files are of.
    pub commit: Commit,
    /// Its files, without those in [`OWN_FOLDER`].
    pub files: Vec<ManifestFile>,
    /// When the last of them had passed, in seconds since the Unix epoch.
    pub finished_at_unix_seconds: u64,
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestFile {
    /// Where it lies in the repository and in the model's folder.
    pub path: RepoFile,
    /// Its size.
    pub bytes: u64,
    /// What its content was checked against.
    pub digest: Digest,
}

/// What the hub says of a file's content. Either is also the file's `ETag` there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Digest {
    /// The SHA-256 of the content: files that the hub keeps in LFS or Xet.
    Sha256([u8; 32]),
    /// The SHA-1 that git gives the content as a blob: all others.
    GitBlob([u8; 20]),
}

impl Digest {
    /// The digest's digits, without its kind.
    pub fn digits(&self) -> String {
        let bytes: &[u8] = match self {
            Self::Sha256(bytes) => bytes,
            Self::GitBlob(bytes) => bytes,
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "sha256",
            Self::GitBlob(_) => "git-blob",
        }
    }

    /// Reads the digits of a SHA-256, or of a git blob.
    pub fn from_digits(digits: &str) -> Option<Self> {
        let nibbles: Option<Vec<u8>> =
            digits.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
        let nibbles = nibbles.filter(|nibbles| nibbles.len().is_multiple_of(2))?;
        let bytes: Vec<u8> = nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let sha256 = <[u8; 32]>::try_from(bytes.as_slice()).map(Self::Sha256);
        sha256.or_else(|_| <[u8; 20]>::try_from(bytes.as_slice()).map(Self::GitBlob)).ok()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.kind(), self.digits())
    }
}

impl FromStr for Digest {
    type Err = Error;

    /// # Errors
    /// `BadModel` for what [`Digest`] does not write.
    fn from_str(text: &str) -> Result<Self> {
        let (kind, digits) = text.split_once(':').unwrap_or(("", text));
        let digest = Self::from_digits(digits).filter(|digest| digest.kind() == kind);
        digest.ok_or_else(|| {
            Error::new(Code::BadModel, format!("`{}` is no digest", text.escape_debug()))
        })
    }
}

impl Manifest {
    /// Where the manifest of the model in `folder` lies.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(OWN_FOLDER).join(MANIFEST_FILE)
    }

    /// Reads the manifest of the model in `folder`; `None` where there is none.
    ///
    /// # Errors
    /// `BadModel` for a manifest that no version of ours wrote, or a newer one; `Io` when it cannot be read.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = Self::path(folder);
        let attempt = || format!("failed to read `{}`", path.display());
        let text = match read_bounded(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::from(error).while_doing(attempt())),
        };
        Self::from_json(&text).map(Some).map_err(|error| error.while_doing(attempt()))
    }

    /// Writes it into the model's `folder`, in one step: whoever reads meanwhile sees the old one or this.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = Self::path(folder);
        let attempt = |error: std::io::Error| {
            Error::from(error).while_doing(format_args!("failed to write `{}`", path.display()))
        };
        fs::create_dir_all(folder.join(OWN_FOLDER)).map_err(attempt)?;
        replace(&path, self.to_json().as_bytes()).map_err(attempt)
    }

    fn to_json(&self) -> String {
        let stored = StoredManifest {
            version: VERSION,
            repo: self.repo.to_string(),
            commit: self.commit.to_string(),
            finished_at_unix_seconds: self.finished_at_unix_seconds,
            files: self.files.iter().map(StoredFile::from).collect(),
        };
        serde_json::to_string_pretty(&stored).expect("strings and numbers become JSON") + "\n"
    }

    fn from_json(text: &[u8]) -> Result<Self> {
        let bad = |why: String| Error::new(Code::BadModel, why);
        let version: StoredVersion =
            serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        if version.version != VERSION {
            return Err(bad(format!(
                "its version is {}, and this program reads {VERSION}",
                version.version
            ))
            .with_hint("it was written by another version of this program"));
        }
        let stored: StoredManifest =
            serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        let named = |error: Error| bad(error.message().to_owned());
        Ok(Self {
            repo: stored.repo.parse().map_err(named)?,
            commit: stored.commit.parse().map_err(named)?,
            files: stored
                .files
                .iter()
                .map(StoredFile::read)
                .collect::<Result<_>>()
                .map_err(named)?,
            finished_at_unix_seconds: stored.finished_at_unix_seconds,
        })
    }
}

/// Puts `content` at `path` in one step and makes it durable.
pub(super) fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let aside = path.with_extension("new");
    let mut file = File::create(&aside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Makes the names in a folder durable; only Unix can open one.
pub(super) fn sync_folder(path: &Path) -> std::io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MANIFEST_BYTES_MAX {
        return Err(std::io::Error::other(format!("it is larger than {MANIFEST_BYTES_MAX} bytes")));
    }
    fs::read(path)
}

#[derive(Debug, Deserialize)]
struct StoredVersion {
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredManifest {
    version: u32,
    repo: String,
    commit: String,
    finished_at_unix_seconds: u64,
    files: Vec<StoredFile>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredFile {
    path: String,
    bytes: u64,
    digest: String,
}

impl StoredFile {
    pub(super) fn read(&self) -> Result<ManifestFile> {
        Ok(ManifestFile {
            path: self.path.parse()?,
            bytes: self.bytes,
            digest: self.digest.parse()?,
        })
    }
}

impl From<&ManifestFile> for StoredFile {
    fn from(file: &ManifestFile) -> Self {
        Self { path: file.path.to_string(), bytes: file.bytes, digest: file.digest.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let file =
            |path: &str, bytes, digest| ManifestFile { path: path.parse().unwrap(), bytes, digest };
        Manifest {
            repo: "owner/name".parse().unwrap(),
            commit: "0123456789abcdef0123456789abcdef01234567".parse().unwrap(),
            files: vec![
                file("model.safetensors", 5 << 30, Digest::Sha256([0xab; 32])),
                file("config.json", 0, Digest::GitBlob([7; 20])),
            ],
            finished_at_unix_seconds: 1_796_070_000,
        }
    }

    #[test]
    fn a_manifest_reads_back_as_it_was_written_and_replaces_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), None);
        manifest().write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), Some(manifest()));
        let newer = Manifest { finished_at_unix_seconds: 1_796_070_001, ..manifest() };
        newer.write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), Some(newer));
        assert_eq!(fs::read_dir(folder.path().join(OWN_FOLDER)).unwrap().count(), 1);
    }

    #[test]
    fn a_manifest_of_another_version_or_with_a_hostile_path_is_refused() {
        let good = manifest().to_json();
        for (from, to, why) in [
            ("\"version\": 1", "\"version\": 2", "its version is 2"),
            ("config.json", "../config.json", "is no safe path"),
            ("owner/name", "../name", "is no repository"),
            ("git-blob:", "sha256:", "is no digest"),
            ("0123456789abcdef0123456789abcdef01234567", "main", "is no commit"),
            ("{", "[", "invalid"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            let error = Manifest::from_json(bad.as_bytes()).unwrap_err();
            assert_eq!(error.code(), Code::BadModel);
            assert!(error.message().contains(why), "{error}");
        }
    }

    #[test]
    fn digests_are_told_with_their_kind_and_read_by_their_length() {
        for digest in [Digest::Sha256([0x0f; 32]), Digest::GitBlob([0xf0; 20])] {
            assert_eq!(Digest::from_digits(&digest.digits()), Some(digest));
            assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        }
        for digits in ["", "0", "zz", "ab", &"é".repeat(20)] {
            assert_eq!(Digest::from_digits(digits), None);
        }
    }
}
