//! A model directory that is made: written aside as `<out>.partial`, flushed, then put in place in one
//! rename. So `<out>` is either absent, what it was before, or complete; and what a killed process left
//! aside is cleared by the next one that writes there.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::io_error;
use super::manifest::sync_folder;
use crate::error::{Code, Error, Result};

/// Held in `<out>.partial` while it is written, so that two never share one.
const LOCK_FILE: &str = ".lock";

/// Refuses a directory that must not be replaced; one that is not there never is.
pub(super) type Check = fn(&Path) -> Result<()>;

/// The names in a directory.
pub(super) fn entries(directory: &Path) -> Result<Vec<String>> {
    let attempt = || format!("failed to list `{}`", directory.display());
    fs::read_dir(directory)
        .map_err(|error| io_error(&error, attempt()))?
        .map(|entry| match entry {
            Ok(entry) => Ok(entry.file_name().to_string_lossy().into_owned()),
            Err(error) => Err(io_error(&error, attempt())),
        })
        .collect()
}

/// `<out>.partial` while it is being filled; dropped before [`Staging::commit`], it is removed.
#[derive(Debug)]
pub(super) struct Staging {
    out: PathBuf,
    partial: PathBuf,
    check: Check,
    /// Locked until the directory is in place or gone.
    lock: File,
    committed: bool,
}

impl Staging {
    /// Creates the directory, or clears the one that a killed process left. `check` is asked once more before
    /// `out` is put in place.
    pub(super) fn create(out: &Path, check: Check) -> Result<Self> {
        let partial = sibling(out, "partial")?;
        fs::create_dir_all(&partial).map_err(|error| cannot("create", &partial, &error))?;
        check_ours(&partial)?;
        let lock = lock(&partial)?;
        let staging = Self { out: out.to_owned(), partial, check, lock, committed: false };
        for name in entries(&staging.partial)?.iter().filter(|name| *name != LOCK_FILE) {
            let path = staging.path(name);
            fs::remove_file(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
        Ok(staging)
    }

    /// Where file `name` is written.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.partial.join(name)
    }

    /// Writes a whole file.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.path(name);
        File::create(&path)
            .and_then(|mut file| file.write_all(content))
            .map_err(|error| cannot("write", &path, &error))
    }

    /// Writes `value` as indented JSON.
    pub(super) fn write_json(&self, name: &str, value: &Value) -> Result<()> {
        self.write(name, format!("{value:#}\n").as_bytes())
    }

    /// Bytes for which its disk has room.
    #[cfg(feature = "mlx")]
    pub(super) fn free_bytes(&self) -> Result<u64> {
        crate::hub::download::free_bytes(&self.partial)
            .map_err(|error| cannot("ask for the room at", &self.partial, &error))
    }

    /// Flushes every file and puts the directory in place.
    pub(super) fn commit(mut self) -> Result<()> {
        for name in entries(&self.partial)? {
            let path = self.path(&name);
            sync(&path).map_err(|error| cannot("flush", &path, &error))?;
        }
        let lock_path = self.path(LOCK_FILE);
        fs::remove_file(&lock_path).map_err(|error| cannot("remove", &lock_path, &error))?;
        sync_directory(&self.partial)?;
        self.put_in_place()?;
        self.committed = true;
        sync_directory(parent(&self.out))
    }

    /// Swaps directories. What is there is checked again, since writing may have taken minutes.
    fn put_in_place(&self) -> Result<()> {
        (self.check)(&self.out)?;
        let replaced = sibling(&self.out, "replaced")?;
        let had_old = self.out.exists();
        if had_old {
            rename(&self.out, &replaced)?;
        }
        if let Err(error) = rename(&self.partial, &self.out) {
            if had_old {
                rename(&replaced, &self.out)?;
            }
            return Err(error);
        }
        if had_old {
            fs::remove_dir_all(&replaced).map_err(|error| cannot("remove", &replaced, &error))?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing more can be done about a directory that cannot be removed; whoever next writes to
            // the same place clears it.
            let _ = fs::remove_dir_all(&self.partial);
        }
        let _ = self.lock.unlock();
    }
}

/// Refuses a directory in which somebody keeps other things, which would be cleared.
fn check_ours(partial: &Path) -> Result<()> {
    let names = entries(partial)?;
    if names.is_empty() || names.iter().any(|name| name == LOCK_FILE) {
        return Ok(());
    }
    let message = format!("`{}` has files that are not ours", partial.display());
    Err(Error::new(Code::Io, message).with_hint("move them, or choose another output directory"))
}

fn lock(partial: &Path) -> Result<File> {
    let path = partial.join(LOCK_FILE);
    let file = File::create(&path).map_err(|error| cannot("create", &path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(Code::Io, format!("another process is writing `{}`", partial.display()))
                .with_hint("wait for it to end"))
        }
        Err(TryLockError::Error(error)) => Err(cannot("lock", &path, &error)),
    }
}

fn sibling(out: &Path, suffix: &str) -> Result<PathBuf> {
    let Some(name) = out.file_name() else {
        return Err(Error::invalid(
            "out",
            format!("`{}` does not name a directory", out.display()),
        ));
    };
    let mut name = name.to_owned();
    name.push(".");
    name.push(suffix);
    Ok(out.with_file_name(name))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| {
        io_error(
            &error,
            format_args!("failed to rename `{}` to `{}`", from.display(), to.display()),
        )
    })
}

fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

fn sync_directory(path: &Path) -> Result<()> {
    sync_folder(path).map_err(|error| cannot("flush", path, &error))
}

fn cannot(verb: &str, path: &Path, error: &std::io::Error) -> Error {
    io_error(error, format_args!("failed to {verb} `{}`", path.display()))
}
