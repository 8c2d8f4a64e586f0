//! Putting a model in place: all of it at once, in one rename.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Code, Error, Result};
use crate::hub::download::content::is_content;
use crate::hub::download::staging::{Staging, cannot, refuse_link, remove_tree, replaced_path};
use crate::hub::manifest::{Manifest, ManifestFile, OWN_FOLDER, sync_folder};
use crate::hub::places::Places;
use crate::hub::repo::RepoId;

/// Folders in folders that are looked into for what the user put beside a model.
const DEPTH_MAX: usize = 16;

/// The model of `repo` that is in place already; `None` where there is none.
///
/// # Errors
/// `InvalidRequest` when something else is in its place, which a download would have to overwrite.
pub(super) fn installed(places: &Places, repo: &RepoId) -> Result<Option<Manifest>> {
    let folder = places.model(repo);
    refuse_link(folder.parent().unwrap_or(&places.models))?;
    refuse_link(&folder)?;
    let taken = |why: &str| {
        Error::invalid("repo", format!("`{}` {why}; it is not overwritten", folder.display()))
            .with_hint("move it away, or choose another folder by `--models`")
    };
    match Manifest::read(&folder) {
        Ok(Some(manifest)) => Ok(Some(manifest)),
        Ok(None) if is_empty(&folder)? => Ok(None),
        Ok(None) => Err(taken("was not downloaded by this program")),
        Err(error) => Err(taken(&format!("is not known: {}", error.message()))),
    }
}

fn is_empty(folder: &Path) -> Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(cannot("list", folder)(error)),
    }
}

/// Whether `file` of the model in `folder` is still what `manifest` says. What was changed since it was checked is
/// read again; the rest is taken for what it was.
pub(super) fn is_kept(folder: &Path, manifest: &Manifest, file: &ManifestFile) -> bool {
    if !manifest.files.contains(file) {
        return false;
    }
    let path = file.path.below(folder);
    let Ok(metadata) = fs::symlink_metadata(&path) else {
        return false;
    };
    if !metadata.is_file() || metadata.len() != file.bytes {
        return false;
    }
    let changed =
        metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let untouched = changed.is_some_and(|time| time.as_secs() <= manifest.finished_at_unix_seconds);
    untouched || is_content(&path, file).unwrap_or(false)
}

/// Has `to` be the same file as `from`, or a copy where the file system knows no links. What is at `to` stays.
pub(super) fn link(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(cannot("create", folder))?;
    }
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(_) => copy(from, to).map_err(cannot("copy", from)),
    }
}

/// Nothing is called `to` before it is a whole copy.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let aside = to.with_added_extension("copy");
    fs::copy(from, &aside)?;
    File::open(&aside)?.sync_all()?;
    fs::rename(aside, to)
}

/// Makes a model of what is staged and puts it in place. Whoever looks sees what was there before, or all of this.
///
/// # Errors
/// `Io` and `DiskFull`; what is staged is kept then.
pub(super) fn install(places: &Places, staging: &Staging, manifest: &Manifest) -> Result<PathBuf> {
    let folder = places.model(&manifest.repo);
    let before = installed(places, &manifest.repo)?;
    check_whole(staging, manifest)?;
    if let Some(before) = &before {
        carry_over(&folder, staging.folder(), before, Path::new(""), 0)?;
    }
    manifest.write(staging.folder())?;
    sync_folders(staging.folder(), 0)?;
    let owner = folder.parent().unwrap_or(&places.models);
    fs::create_dir_all(owner).map_err(cannot("create", owner))?;
    swap(staging.folder(), &folder)?;
    sync_folder(owner).map_err(cannot("flush", owner))?;
    // What is left here is the model that was there before.
    staging.remove()?;
    Ok(folder)
}

fn check_whole(staging: &Staging, manifest: &Manifest) -> Result<()> {
    let whole = |file: &ManifestFile| {
        let metadata = fs::symlink_metadata(staging.whole(file));
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
    };
    match manifest.files.iter().find(|file| !whole(file)) {
        None => Ok(()),
        Some(file) => Err(Error::new(
            Code::Io,
            format!("`{}` was changed while the rest was fetched", staging.whole(file).display()),
        )
        .with_hint("start the download again")),
    }
}

/// Links what the user put into the model's folder, such as settings of his own, into the one that replaces it:
/// everything that no download wrote and that the new model does not bring.
fn carry_over(
    from: &Path,
    to: &Path,
    before: &Manifest,
    inside: &Path,
    depth: usize,
) -> Result<()> {
    let folder = from.join(inside);
    for entry in fs::read_dir(&folder).map_err(cannot("list", &folder))? {
        let entry = entry.map_err(cannot("list", &folder))?;
        let path = inside.join(entry.file_name());
        let kind = entry.file_type().map_err(cannot("look at", &folder))?;
        let brought = before.files.iter().any(|file| file.path.below(Path::new("")) == path);
        if kind.is_dir() && depth < DEPTH_MAX {
            carry_over(from, to, before, &path, depth + 1)?;
        } else if kind.is_file() && !brought && path != Manifest::path(Path::new("")) {
            link(&from.join(&path), &to.join(&path))?;
        }
    }
    Ok(())
}

/// Makes the names of all files durable; their contents are.
fn sync_folders(folder: &Path, depth: usize) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(cannot("list", folder))? {
        let entry = entry.map_err(cannot("list", folder))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && depth < DEPTH_MAX {
            sync_folders(&entry.path(), depth + 1)?;
        }
    }
    sync_folder(folder).map_err(cannot("flush", folder))
}

/// Has `staged` be `folder`, in one step, and what was there before be `staged`.
fn swap(staged: &Path, folder: &Path) -> Result<()> {
    match fs::rename(staged, folder) {
        Ok(()) => return Ok(()),
        Err(error)
            if error.kind() == ErrorKind::DirectoryNotEmpty
                || error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
        Err(error) => return Err(cannot("rename", staged)(error)),
    }
    match renameat_with(CWD, staged, CWD, folder, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => swap_in_steps(staged, folder),
        Err(error) => Err(cannot("rename", staged)(error.into())),
    }
}

/// The same where the file system cannot exchange two folders. A model is in place again as soon as the next download
/// of it runs, if this is interrupted.
fn swap_in_steps(staged: &Path, folder: &Path) -> Result<()> {
    let aside = replaced_path(staged);
    remove_tree(&aside)?;
    fs::rename(folder, &aside).map_err(cannot("rename", folder))?;
    if let Err(error) = fs::rename(staged, folder) {
        fs::rename(&aside, folder).map_err(cannot("rename", &aside))?;
        return Err(cannot("rename", staged)(error));
    }
    remove_tree(&aside)
}

/// The folder of ours in a model's folder is never the repository's: no listed path begins so.
const _: () = assert!(matches!(OWN_FOLDER.as_bytes(), [b'.', ..]));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_exchanged_in_one_step_or_in_several() {
        for swap in [swap, swap_in_steps] {
            let folder = tempfile::tempdir().unwrap();
            let (staged, place) = (folder.path().join("staged"), folder.path().join("place"));
            for (path, text) in [(&staged, "new"), (&place, "old")] {
                fs::create_dir(path).unwrap();
                fs::write(path.join("file"), text).unwrap();
            }
            swap(&staged, &place).unwrap();
            assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "new");
        }
    }

    #[test]
    fn a_copy_has_its_name_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&from, "text").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "text");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_is_not_there_or_empty_is_simply_renamed_to() {
        let folder = tempfile::tempdir().unwrap();
        let (staged, place) = (folder.path().join("staged"), folder.path().join("place"));
        for made in [false, true] {
            fs::create_dir(&staged).unwrap();
            if made {
                fs::remove_dir_all(&place).unwrap();
                fs::create_dir(&place).unwrap();
            }
            swap(&staged, &place).unwrap();
            assert!(place.exists() && !staged.exists());
        }
    }
}
