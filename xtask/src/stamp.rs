//! What a finished step leaves behind: a file with the hash of everything that went in. A step
//! whose stamp is current has nothing to do; one that died half way has no stamp and starts over
//! from what it kept. A stamp is therefore written last, and in one move.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The mark of one finished step.
#[derive(Debug)]
pub(crate) struct Stamp {
    path: PathBuf,
    inputs: String,
}

impl Stamp {
    /// A stamp kept at `path` for these inputs, given as name and value. Order matters.
    pub(crate) fn new(path: PathBuf, inputs: &[(&str, &str)]) -> Self {
        Self { path, inputs: inputs_hash(inputs) }
    }

    /// True when the step ended with exactly these inputs.
    pub(crate) fn is_current(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|found| found.trim_end() == self.inputs)
    }

    /// Says that the step has ended.
    pub(crate) fn write(&self) -> Result<()> {
        write_whole(&self.path, &format!("{}\n", self.inputs))
    }

    /// Forgets an earlier end, so that a run that dies half way is seen as unfinished.
    pub(crate) fn clear(&self) -> Result<()> {
        remove_if_there(&self.path)
    }
}

fn inputs_hash(inputs: &[(&str, &str)]) -> String {
    let mut hash = Sha256::new();
    for (name, value) in inputs {
        // Lengths keep ("a", "bc") apart from ("ab", "c").
        hash.update(format!("{}:{name}={}:", name.len(), value.len()));
        hash.update(value);
    }
    hex(&hash.finalize())
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file so that readers see the old text or the new one, never half.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let partial = partial(path);
    fs::write(&partial, text)
        .with_context(|| format!("failed to write `{}`", partial.display()))?;
    rename(&partial, path)
}

/// Where a file or folder grows before it is renamed to `path`.
pub(crate) fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// An empty folder at [`partial`] of `path`, with leftovers of an earlier run removed.
pub(crate) fn fresh_partial(path: &Path) -> Result<PathBuf> {
    let partial = partial(path);
    remove_if_there(&partial)?;
    create_folder(&partial)?;
    Ok(partial)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)
        .with_context(|| format!("failed to rename `{}` to `{}`", from.display(), to.display()))
}

pub(crate) fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .with_context(|| format!("failed to create the folder `{}`", path.display()))
}

/// Removes a file or a whole folder; nothing there is fine.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.with_context(|| format!("failed to remove `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(directory: &Path, inputs: &[(&str, &str)]) -> Stamp {
        Stamp::new(directory.join("stamp"), inputs)
    }

    #[test]
    fn a_step_is_current_only_after_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let stamp = stamp(directory.path(), &[("version", "1")]);
        assert!(!stamp.is_current());
        stamp.write().unwrap();
        assert!(stamp.is_current());
        stamp.clear().unwrap();
        stamp.clear().unwrap();
        assert!(!stamp.is_current());
    }

    #[test]
    fn any_change_of_the_inputs_makes_a_stamp_stale() {
        let directory = tempfile::tempdir().unwrap();
        stamp(directory.path(), &[("a", "bc"), ("d", "e")]).write().unwrap();
        for other in
            [&[("a", "bd"), ("d", "e")][..], &[("ab", "c"), ("d", "e")], &[("a", "bc")], &[]]
        {
            assert!(!stamp(directory.path(), other).is_current(), "{other:?}");
        }
    }

    #[test]
    fn a_damaged_stamp_is_not_current() {
        let directory = tempfile::tempdir().unwrap();
        let stamp = stamp(directory.path(), &[]);
        stamp.write().unwrap();
        let whole = fs::read_to_string(directory.path().join("stamp")).unwrap();
        fs::write(directory.path().join("stamp"), &whole[..whole.len() / 2]).unwrap();
        assert!(!stamp.is_current());
    }

    #[test]
    fn a_fresh_partial_folder_holds_nothing_of_an_earlier_run() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("thing");
        let first = fresh_partial(&target).unwrap();
        fs::write(first.join("leftover"), "x").unwrap();
        let second = fresh_partial(&target).unwrap();
        assert_eq!(first, second);
        assert_eq!(fs::read_dir(second).unwrap().count(), 0);
    }

    #[test]
    fn a_dangling_link_is_removed_too() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        remove_if_there(&link).unwrap();
        assert!(fs::symlink_metadata(&link).is_err());
    }
}
