//! The edge to the machine's files: all that the tier changes on a disk goes through [`Files`], so that a
//! test can have it fail, stop or be recorded at any operation.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// A file that is being written. It is locked for as long as it is open.
pub(super) trait NewFile: Send + fmt::Debug {
    /// Has the file be of `bytes` bytes, none of which are written.
    fn set_length(&mut self, bytes: u64) -> io::Result<()>;
    /// Writes all of `bytes`, after what was written before.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Sets the time of its last use.
    fn set_used_at(&mut self, used_at: Duration) -> io::Result<()>;
}

/// What the tier does to a disk. Errors are the machine's own.
pub(super) trait Files: Send + Sync + fmt::Debug {
    /// Makes a folder, and those around it, for the user alone.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes a file which must not be there yet, for the user alone.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>>;
    /// Renames a file in one step; what was at `to` is gone.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Sets the time of a file's last use.
    fn set_used_at(&self, path: &Path, used_at: Duration) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The files of the machine.
#[derive(Debug)]
pub(super) struct MachineFiles;

impl Files for MachineFiles {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        // Where files cannot be locked, nobody can take the lock of this one either: see `is_orphan`.
        let _ = file.try_lock();
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        // Only Unix can open a folder.
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn set_used_at(&self, path: &Path, used_at: Duration) -> io::Result<()> {
        NewFile::set_used_at(&mut OpenOptions::new().write(true).open(path)?, used_at)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

impl NewFile for File {
    fn set_length(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }

    fn set_used_at(&mut self, used_at: Duration) -> io::Result<()> {
        self.set_modified(UNIX_EPOCH + used_at)
    }
}

/// Whether nobody is writing the unfinished file at `path` any more: a writer's lock ends with its
/// process, however that ends.
pub(super) fn is_orphan(path: &Path) -> bool {
    OpenOptions::new().write(true).open(path).is_ok_and(|file| file.try_lock().is_ok())
}

/// Waits for the lock at `path`. Where files cannot be locked there is none, and processes that share a
/// folder may count each other's bytes wrongly.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => file.lock()?,
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    Ok(file)
}

/// Whether a write that failed so says that the disk as such takes no more, rather than this one file.
pub(super) fn is_final(error: &io::Error) -> bool {
    !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge)
}
