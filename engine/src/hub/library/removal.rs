//! Taking an entry off the disk: what is going is renamed first, so that it is never listed in half.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::candidates;
use super::entry::{Entry, Origin};
use crate::error::{Code, Error, Result};
use crate::hub::places::Places;

/// Where what is going lies in our folder of models, or in a repository of a cache. What a removal left there
/// when it was killed goes with the next one.
const GOING: &str = ".removed";

/// What a removal gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Bytes of the files that are gone.
    pub freed_bytes: u64,
}

/// Removes the directory of `entry`, which must lie in its place.
pub(super) fn remove(entry: &Entry, places: &Places) -> Result<Removed> {
    let attempt = format!("failed to remove `{}`", entry.id);
    let removed = match entry.origin {
        Origin::Own => remove_own(entry, &places.models),
        Origin::HuggingFace => remove_snapshot(entry, &places.hugging_face),
    };
    removed.map_err(|error| error.while_doing(attempt))
}

fn remove_own(entry: &Entry, models: &Path) -> Result<Removed> {
    if is_link(&entry.directory) {
        // Only the name is ours.
        fs::remove_file(&entry.directory)?;
        return Ok(Removed { freed_bytes: 0 });
    }
    check_inside(&entry.directory, models)?;
    set_aside(&entry.directory, models)?;
    // The owner's folder goes with its last model.
    if let Some(owner) = entry.directory.parent().filter(|owner| *owner != models) {
        let _ = fs::remove_dir(owner);
    }
    clear(models)?;
    Ok(Removed { freed_bytes: entry.disk_bytes })
}

/// Renames `directory` into the folder of what is going in `root`.
fn set_aside(directory: &Path, root: &Path) -> Result<()> {
    let going = root.join(GOING);
    fs::create_dir_all(&going)?;
    let name = directory.file_name().unwrap_or_default();
    let free = (0u32..).map(|number| {
        let mut name = OsString::from(name);
        name.push(format!("-{number}"));
        going.join(name)
    });
    let mut free = free.filter(|path| fs::symlink_metadata(path).is_err());
    let Some(aside) = free.next() else { return Ok(()) };
    Ok(fs::rename(directory, aside)?)
}

/// Deletes what is going in `root`.
fn clear(root: &Path) -> Result<()> {
    Ok(fs::remove_dir_all(root.join(GOING))?)
}

/// A snapshot, those of its blobs that no other one links to, and the references to it. With its last snapshot the
/// repository's folder goes, unless something is being fetched into it.
fn remove_snapshot(entry: &Entry, caches: &[PathBuf]) -> Result<Removed> {
    let snapshots = entry.directory.parent();
    let Some(repository) = snapshots.and_then(Path::parent) else {
        return Err(outside(&entry.directory));
    };
    let cache = caches.iter().find(|cache| repository.parent() == Some(cache));
    check_inside(&entry.directory, cache.ok_or_else(|| outside(&entry.directory))?)?;
    let own = blobs_of(&entry.directory, repository)?;
    set_aside(&entry.directory, repository)?;
    let kept = kept_blobs(repository)?;
    let mut freed_bytes = 0;
    for blob in own.difference(&kept) {
        freed_bytes += fs::symlink_metadata(blob).map_or(0, |blob| blob.len());
        fs::remove_file(blob)?;
    }
    remove_references(repository, entry.commit.as_deref())?;
    freed_bytes += plain_bytes(&repository.join(GOING));
    clear(repository)?;
    remove_if_empty(repository);
    Ok(Removed { freed_bytes })
}

/// The blobs of `repository` that the links in `snapshot` lead to, folders included.
fn blobs_of(snapshot: &Path, repository: &Path) -> Result<BTreeSet<PathBuf>> {
    let blobs = repository.join("blobs").canonicalize().ok();
    let mut found = BTreeSet::new();
    let Some(blobs) = blobs else { return Ok(found) };
    for path in files_below(snapshot)? {
        let target = path.canonicalize().ok();
        found.extend(target.filter(|target| target.parent() == Some(&blobs)));
    }
    Ok(found)
}

/// The blobs that the snapshots link to that stay.
fn kept_blobs(repository: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut kept = BTreeSet::new();
    for snapshot in fs::read_dir(repository.join("snapshots"))? {
        kept.extend(blobs_of(&snapshot?.path(), repository)?);
    }
    Ok(kept)
}

/// Files and links below `folder`; no link is followed.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let list = if entry.file_type()?.is_dir() { &mut folders } else { &mut files };
            list.push(entry.path());
        }
    }
    Ok(files)
}

/// Bytes of the files below `folder` that are no links: systems without links hold copies.
fn plain_bytes(folder: &Path) -> u64 {
    let files = files_below(folder).unwrap_or_default();
    let metadata = files.iter().filter_map(|file| fs::symlink_metadata(file).ok());
    metadata.filter(fs::Metadata::is_file).map(|metadata| metadata.len()).sum()
}

fn remove_references(repository: &Path, commit: Option<&str>) -> Result<()> {
    let references = repository.join("refs");
    if !references.is_dir() {
        return Ok(());
    }
    for path in files_below(&references)? {
        if candidates::read_ref(&path).as_deref() == commit {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Removes the folder of a repository without snapshots and blobs; what is still there is somebody's.
fn remove_if_empty(repository: &Path) {
    let emptied = ["snapshots", "blobs"].map(|name| fs::remove_dir(repository.join(name)).is_ok());
    if emptied == [true, true] {
        for name in ["refs", ".no_exist"] {
            let _ = fs::remove_dir_all(repository.join(name));
        }
        let _ = fs::remove_dir(repository);
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

/// # Errors
/// `InvalidRequest` when `directory` lies outside `root` once links are followed.
fn check_inside(directory: &Path, root: &Path) -> Result<()> {
    let (real, root) = (directory.canonicalize()?, root.canonicalize()?);
    match real.strip_prefix(&root) {
        Ok(rest) if !rest.as_os_str().is_empty() => Ok(()),
        _ => Err(outside(directory)),
    }
}

fn outside(directory: &Path) -> Error {
    let message = format!("`{}` lies outside the folders of models", directory.display());
    Error::new(Code::InvalidRequest, message).with_hint("a link leads there: remove it by hand")
}
