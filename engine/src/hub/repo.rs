//! Names of the hub: repositories, their revisions and commits, and the files in them.
//!
//! All of them come from outside, on a command line, in a request or in a server's answer, and become parts of
//! paths and addresses. So each is a type that holds only what is harmless in both.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};

/// Characters of an owner or of a name, as the hub has it.
const NAME_CHARS_MAX: usize = 96;
/// Characters of a branch, tag or commit.
const REVISION_CHARS_MAX: usize = 200;
/// Bytes of a file's path in its repository.
const FILE_BYTES_MAX: usize = 512;
/// Bytes of one step of it: with what a staged file carries behind its name, this is below what file systems take.
const STEP_BYTES_MAX: usize = 200;
/// The folder in which models without an owner lie; no owner's name begins so.
const NO_OWNER: &str = "_";
/// Names that Windows keeps for devices, whatever follows behind a dot.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];
/// The same, with one digit behind each.
const NUMBERED_DEVICES: [&str; 2] = ["com", "lpt"];

/// A repository of the hub: `owner/name`, or `name` alone as a few old ones have it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoId {
    owner: Option<String>,
    name: String,
}

impl RepoId {
    /// Who it belongs to.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Its name, without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its files lie below a folder of models: `owner/name`, or `_/name`.
    pub fn relative_path(&self) -> PathBuf {
        Path::new(self.owner().unwrap_or(NO_OWNER)).join(&self.name)
    }

    /// One name for it that is no path: `owner--name`, or `_--name`. No two repositories share one, because neither
    /// part holds `--`.
    pub fn flat_name(&self) -> String {
        format!("{}--{}", self.owner().unwrap_or(NO_OWNER), self.name)
    }

    /// The repository of [`RepoId::flat_name`].
    pub fn from_flat_name(flat: &str) -> Option<Self> {
        let (owner, name) = flat.split_once("--")?;
        let text = if owner == NO_OWNER { name.to_owned() } else { format!("{owner}/{name}") };
        text.parse().ok()
    }
}

impl FromStr for RepoId {
    type Err = Error;

    /// # Errors
    /// `InvalidRequest` for what the hub would not take as a name.
    fn from_str(text: &str) -> Result<Self> {
        let (owner, name) = match text.split_once('/') {
            Some((owner, name)) => (Some(owner), name),
            None => (None, text),
        };
        let begins_well =
            |owner: &str| owner.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !owner.is_none_or(|owner| is_name(owner) && begins_well(owner)) || !is_name(name) {
            return Err(Error::invalid("repo", format!("`{}` is no repository", shown(text)))
                .with_hint("write it as on the hub: `owner/name`"));
        }
        Ok(Self { owner: owner.map(str::to_owned), name: name.to_owned() })
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(formatter, "{owner}/{}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let edge = |character: char| "-.".contains(character);
    (1..=NAME_CHARS_MAX).contains(&text.len())
        && text.chars().all(allowed)
        && !text.starts_with(edge)
        && !text.ends_with(edge)
        && !text.contains("..")
        && !text.contains("--")
        && !is_device(text)
}

/// A branch, a tag or a commit of a repository; `main` unless someone says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(String);

impl Revision {
    /// The revision as the hub writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl From<&Commit> for Revision {
    fn from(commit: &Commit) -> Self {
        Self(commit.0.clone())
    }
}

impl FromStr for Revision {
    type Err = Error;

    /// # Errors
    /// `InvalidRequest` for what is no name of a branch, tag or commit.
    fn from_str(text: &str) -> Result<Self> {
        let allowed =
            |character: char| character.is_ascii_alphanumeric() || "-_./+".contains(character);
        let step = |step: &str| !step.is_empty() && !step.starts_with('.') && !step.ends_with('.');
        let fine = text.len() <= REVISION_CHARS_MAX
            && text.chars().all(allowed)
            && text.split('/').all(step)
            && !text.starts_with('-')
            && !text.contains("..");
        if !fine {
            return Err(Error::invalid("revision", format!("`{}` is no revision", shown(text)))
                .with_hint("give a branch, a tag or a commit"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A commit: forty hexadecimal digits, which mean the same files for ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commit(String);

impl Commit {
    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Commit {
    type Err = Error;

    /// # Errors
    /// `InvalidRequest` for anything but forty hexadecimal digits.
    fn from_str(text: &str) -> Result<Self> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 40 || !text.bytes().all(digit) {
            return Err(Error::invalid("commit", format!("`{}` is no commit", shown(text))));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A file in a repository: a relative path, with `/` between its steps, that stays where it is joined to on every
/// system.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoFile(String);

impl RepoFile {
    /// The path as the hub writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where the file lies below `folder`.
    pub fn below(&self, folder: &Path) -> PathBuf {
        self.steps().fold(folder.to_owned(), |path, step| path.join(step))
    }

    /// The last step: the file's name.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// What follows the last dot of the name, in lower case; empty where there is none.
    pub fn extension(&self) -> String {
        let extension = self.name().rsplit_once('.').map_or("", |(_, extension)| extension);
        extension.to_ascii_lowercase()
    }

    fn steps(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

impl FromStr for RepoFile {
    type Err = Error;

    /// # Errors
    /// `InvalidRequest` for a path that could mean something else than a file below a folder, here or on another
    /// system.
    fn from_str(text: &str) -> Result<Self> {
        if text.len() > FILE_BYTES_MAX || !text.split('/').all(is_step) {
            return Err(Error::invalid("path", format!("`{}` is no safe path", shown(text)))
                .with_hint("a file is named by a relative path of plain names"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for RepoFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Whether a step is a plain name. One that begins with a dot is never part of a model, and could be a folder of
/// ours; one that ends with a dot or a space is another name on Windows.
fn is_step(step: &str) -> bool {
    let odd = |character: char| character.is_control() || r#"\:*?"<>|"#.contains(character);
    (1..=STEP_BYTES_MAX).contains(&step.len())
        && !step.contains(odd)
        && !step.starts_with(['.', ' ', '~'])
        && !step.ends_with(['.', ' '])
        && !is_device(step)
}

fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).trim_end().to_ascii_lowercase();
    let numbered = |device: &&str| {
        let digit = stem.strip_prefix(*device).map(str::chars);
        digit.is_some_and(|mut rest| {
            rest.next().is_some_and(|digit| "0123456789¹²³".contains(digit))
                && rest.next().is_none()
        })
    };
    DEVICES.contains(&stem.as_str()) || NUMBERED_DEVICES.iter().any(numbered)
}

/// `text` for a message: on one line, and not endless.
fn shown(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repositories_are_read_with_and_without_an_owner_and_told_as_they_were() {
        for text in ["mlx-community/Qwen3-0.6B-4bit", "gpt2", "a/b", "org_1/_x.y-z", "0/a.gguf"] {
            let repo: RepoId = text.parse().unwrap();
            assert_eq!(repo.to_string(), text);
            assert_eq!(RepoId::from_flat_name(&repo.flat_name()), Some(repo));
        }
        let repo: RepoId = "mlx-community/Qwen3".parse().unwrap();
        assert_eq!(repo.relative_path(), Path::new("mlx-community/Qwen3"));
        assert_eq!("gpt2".parse::<RepoId>().unwrap().relative_path(), Path::new("_/gpt2"));
    }

    #[test]
    fn what_could_leave_a_folder_or_an_address_is_no_repository() {
        let long = "x".repeat(97);
        for text in [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "..",
            ".",
            "a/.b",
            ".a/b",
            "_/b",
            "a/b.",
            "a--b/c",
            "a/b--c",
            "a/b..c",
            "a\\b",
            "a/b c",
            "a/ü",
            "a/b?x",
            "a/b#x",
            "a/b%2e",
            "con/a",
            "a/NUL.txt",
            "a/com1",
            "a\0/b",
            "a/b\n",
            "https://x/y",
            "~/b",
            &long,
        ] {
            assert!(text.parse::<RepoId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn revisions_are_branches_tags_and_commits() {
        for text in ["main", "v1.0", "refs/pr/7", "4f2c", "release-2_a+b"] {
            assert_eq!(text.parse::<Revision>().unwrap().as_str(), text);
        }
        for text in
            ["", "-x", "a//b", "/a", "a/", "../x", "a..b", "a b", "a?b", "a\\b", "a/.b", "é"]
        {
            assert!(text.parse::<Revision>().is_err(), "{text:?}");
        }
        assert!("0123456789abcdef0123456789abcdef01234567".parse::<Commit>().is_ok());
        for text in ["", "main", "0123456789abcdef0123456789abcdef0123456G"] {
            assert!(text.parse::<Commit>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn files_are_plain_relative_paths() {
        let file: RepoFile = "onnx/Model-00001-of-00002.SafeTensors".parse().unwrap();
        assert_eq!(
            (file.name(), file.extension().as_str()),
            ("Model-00001-of-00002.SafeTensors", "safetensors")
        );
        assert_eq!(
            file.below(Path::new("/m")),
            Path::new("/m/onnx/Model-00001-of-00002.SafeTensors")
        );
        assert_eq!("LICENSE".parse::<RepoFile>().unwrap().extension(), "");
        for text in [
            "",
            ".",
            "..",
            "../x",
            "a/../x",
            "/etc/passwd",
            "a//b",
            "a/",
            "./a",
            "a\\b",
            "C:\\x",
            "c:x",
            ".slipstream/manifest.json",
            ".git/config",
            "a/.hidden",
            "NUL",
            "aux.json",
            "a/COM1.json",
            "lpt³",
            "a.",
            "a ",
            "x\0y",
            "x\ny",
            "a:stream",
            "~",
            "a?b",
            "a*b",
        ] {
            assert!(text.parse::<RepoFile>().is_err(), "{text:?}");
        }
        assert!("x".repeat(201).parse::<RepoFile>().is_err());
        assert!("common.json".parse::<RepoFile>().is_ok());
        assert!("com10.json".parse::<RepoFile>().is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_taken_for_a_file_stays_below_its_folder(text in "[a-z./\\\\: ~\\-\\PC]{0,12}") {
            if let Ok(file) = text.parse::<RepoFile>() {
                let path = file.below(Path::new("/models/x"));
                prop_assert!(path.starts_with("/models/x"));
                prop_assert!(path.components().all(|step| matches!(
                    step,
                    std::path::Component::RootDir | std::path::Component::Normal(_)
                )));
                prop_assert_eq!(path.components().count(), 3 + text.split('/').count());
            }
        }

        #[test]
        fn whatever_is_taken_for_a_repository_is_one_folder_in_one_folder(text in "[a-zA-Z0-9._/-]{0,12}") {
            if let Ok(repo) = text.parse::<RepoId>() {
                prop_assert_eq!(repo.relative_path().components().count(), 2);
                prop_assert_eq!(RepoId::from_flat_name(&repo.flat_name()), Some(repo));
            }
        }
    }
}
