//! What the file system says of an entry's files, so that one that stayed the same is not read again.

use std::fs::{self, Metadata};
use std::path::Path;
use std::time::SystemTime;

use crate::hub::manifest::{Manifest, OWN_FOLDER};

/// Files of a model at most that are looked at; more make no model.
const FILES_MAX: usize = 10_000;

/// The files of a directory as the file system has them, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) files: Vec<FileStamp>,
}

/// One file, or the folder of our own in a model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStamp {
    pub(super) name: String,
    /// `None` for a link that leads nowhere.
    pub(super) content: Option<Content>,
}

/// What changes when a file's content does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) bytes: u64,
    pub(super) is_file: bool,
    modified: Option<SystemTime>,
    /// Where there is one: the inode, and when it last changed in seconds and nanoseconds, which no program can
    /// set back.
    inode: (u64, i64, i64),
}

impl Stamp {
    /// The stamp of `directory`; `None` where it cannot be listed.
    pub(super) fn of(directory: &Path) -> Option<Self> {
        let entries = fs::read_dir(directory).ok()?.flatten().take(FILES_MAX);
        let mut files: Vec<_> = entries
            .filter_map(|entry| FileStamp::of(entry.file_name().into_string().ok()?, &entry.path()))
            .collect();
        let manifest = Manifest::path(directory);
        files
            .extend(FileStamp::of(format!("{OWN_FOLDER}/"), &manifest).filter(FileStamp::is_whole));
        files.sort_by(|left, right| left.name.cmp(&right.name));
        Some(Self { files })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files().map(|(_, content)| content.bytes).sum()
    }

    /// The files whose names lead somewhere.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &Content)> {
        let whole =
            self.files.iter().filter_map(|file| Some((file.name.as_str(), file.content.as_ref()?)));
        whole.filter(|(_, content)| content.is_file)
    }

    /// The file `name`, if its name leads somewhere.
    pub(super) fn file(&self, name: &str) -> Option<&Content> {
        self.files().find(|(known, _)| *known == name).map(|(_, content)| content)
    }

    /// Names that lead nowhere.
    pub(super) fn dangling(&self) -> impl Iterator<Item = &str> {
        let dangling = self.files.iter().filter(|file| file.content.is_none());
        dangling.map(|file| file.name.as_str())
    }
}

impl FileStamp {
    fn of(name: String, path: &Path) -> Option<Self> {
        let content = fs::metadata(path).ok().map(|metadata| Content::of(&metadata));
        // A folder says nothing of what a model is, and changes with what others keep in it.
        let folder = content.as_ref().is_some_and(|content| !content.is_file);
        (!folder).then_some(Self { name, content })
    }

    fn is_whole(&self) -> bool {
        self.content.is_some()
    }
}

impl Content {
    fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            is_file: metadata.is_file(),
            modified: metadata.modified().ok(),
            inode: inode(metadata),
        }
    }
}

#[cfg(unix)]
fn inode(metadata: &Metadata) -> (u64, i64, i64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> (u64, i64, i64) {
    (0, 0, 0)
}
