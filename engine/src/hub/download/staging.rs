//! Where a download grows until it is whole, in the folder `.downloads` of the folder of models:
//!
//! ```text
//! owner--name.lock    locked by whoever fetches it
//! owner--name.json    the record: which files of which commit are being fetched
//! owner--name/        the staged files, each at its place in the repository
//!     config.json                             whole, checked and durable
//!     model.safetensors.<digest>.partial      its first bytes, of the content with that digest
//!     model.safetensors.<digest>.tag          what the server called that content
//!     .slipstream/manifest.json               once all files are whole: a model, that only lacks its place
//! ```
//!
//! A file is whole under its own name if the record has it; what no record has is removed. So whenever a process
//! ends, the next one knows what it can go on with. The record is changed only while the folder holds nothing that
//! the new one would lie about.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::hub::manifest::{Manifest, ManifestFile, OWN_FOLDER, StoredFile, replace};
use crate::hub::places::Places;
use crate::hub::repo::{Commit, RepoId, Revision};

/// What a file's first bytes are called behind its name and digest.
const PARTIAL: &str = "partial";
/// What the server's name for them is called.
const TAG: &str = "tag";
/// Digits of a digest in a name: enough that no two contents of one file share them.
const DIGITS: usize = 16;
/// Bytes of a server's name for a content.
const TAG_BYTES_MAX: u64 = 512;
/// The version of the record's format.
const VERSION: u32 = 1;

/// What is being fetched: it goes before everything that is staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) revision: Revision,
    pub(super) commit: Commit,
    pub(super) files: Vec<ManifestFile>,
}

/// The staged files of one repository, which nobody else touches while this is held.
#[derive(Debug)]
pub(super) struct Staging {
    folder: PathBuf,
    record: PathBuf,
    /// Locked for as long as it is open.
    _lock: File,
}

impl Staging {
    /// Takes the staging of `repo` for this process.
    ///
    /// # Errors
    /// `InvalidRequest` when another process or download has it, or when a link stands where a folder should be; `Io`.
    pub(super) fn open(places: &Places, repo: &RepoId) -> Result<Self> {
        let folder = places.staging(repo);
        fs::create_dir_all(places.downloads()).map_err(cannot("create", &places.downloads()))?;
        refuse_link(&places.downloads())?;
        let lock = lock(&folder.with_added_extension("lock"), repo)?;
        refuse_link(&folder)?;
        Ok(Self { record: record_path(&folder), folder, _lock: lock })
    }

    /// Where the staged files lie.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a whole file lies.
    pub(super) fn whole(&self, file: &ManifestFile) -> PathBuf {
        file.path.below(&self.folder)
    }

    /// Where the first bytes of a file lie.
    pub(super) fn partial(&self, file: &ManifestFile) -> PathBuf {
        self.beside(file, PARTIAL)
    }

    fn beside(&self, file: &ManifestFile, extension: &str) -> PathBuf {
        let digits = file.digest.digits();
        self.whole(file).with_added_extension(&digits[..DIGITS]).with_added_extension(extension)
    }

    /// Makes the staging one of `record`, and removes what is there of anything else.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub(super) fn begin(&self, record: &Record) -> Result<()> {
        let before = read_record(&self.record)?;
        if self.holds_a_model_that_is_not(record, before.as_ref()) {
            remove_tree(&self.folder)?;
        }
        remove_tree(&self.folder.join(OWN_FOLDER))?;
        fs::create_dir_all(&self.folder).map_err(cannot("create", &self.folder))?;
        self.remove_others(&self.folder, record, before.as_ref())?;
        replace(&self.record, record_json(record).as_bytes()).map_err(cannot("write", &self.record))
    }

    /// A model that was swapped for a newer one may lie here, when a process ended before it could remove it. Its
    /// files have the same names, so they would pass for those of the record.
    fn holds_a_model_that_is_not(&self, record: &Record, before: Option<&Record>) -> bool {
        match Manifest::read(&self.folder) {
            Ok(None) => false,
            Ok(Some(manifest)) => {
                let is = |record: &Record| {
                    record.commit == manifest.commit && record.files == manifest.files
                };
                !before.is_some_and(is) && !is(record)
            }
            Err(_) => true,
        }
    }

    /// Removes all files in `folder` but those of `record` that the record before had too, and the first bytes of its
    /// others.
    fn remove_others(&self, folder: &Path, record: &Record, before: Option<&Record>) -> Result<()> {
        for path in entries(folder)? {
            let metadata = fs::symlink_metadata(&path).map_err(cannot("look at", &path))?;
            if metadata.is_dir() {
                self.remove_others(&path, record, before)?;
                continue;
            }
            let known =
                |file: &&ManifestFile| before.is_some_and(|before| before.files.contains(file));
            let whole = record.files.iter().filter(known).any(|file| self.whole(file) == path);
            let first =
                |file: &ManifestFile| self.partial(file) == path || self.beside(file, TAG) == path;
            if !metadata.is_file() || !(whole || record.files.iter().any(first)) {
                fs::remove_file(&path).map_err(cannot("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Bytes of `file` that are there, and whether it is whole.
    ///
    /// # Errors
    /// `Io` when that cannot be seen.
    pub(super) fn staged(&self, file: &ManifestFile) -> Result<Staged> {
        if length(&self.whole(file))? == Some(file.bytes) {
            return Ok(Staged::Whole);
        }
        let bytes = length(&self.partial(file))?.unwrap_or(0);
        Ok(Staged::First { bytes: if bytes > file.bytes { 0 } else { bytes } })
    }

    /// Opens the first bytes of `file`, to be gone on with; a link is not followed.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub(super) fn open_partial(&self, file: &ManifestFile) -> Result<File> {
        let path = self.partial(file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(cannot("create", folder))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(
            &mut options,
            rustix::fs::OFlags::NOFOLLOW.bits() as i32,
        );
        options.open(&path).map_err(cannot("open", &path))
    }

    /// Removes what is called as the whole file would be.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub(super) fn clear_whole(&self, file: &ManifestFile) -> Result<()> {
        let path = self.whole(file);
        ignore_missing(fs::remove_file(&path)).map_err(cannot("remove", &path))
    }

    /// What the server called the content that the first bytes of `file` are of.
    pub(super) fn tag(&self, file: &ManifestFile) -> Option<String> {
        let mut text = String::new();
        let tag = File::open(self.beside(file, TAG)).ok()?;
        tag.take(TAG_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text).filter(|text| !text.is_empty())
    }

    /// Notes what the server calls that content, before any of it is written.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub(super) fn set_tag(&self, file: &ManifestFile, tag: Option<&str>) -> Result<()> {
        let path = self.beside(file, TAG);
        let written = match tag {
            Some(tag) if tag.len() as u64 <= TAG_BYTES_MAX => fs::write(&path, tag),
            _ => ignore_missing(fs::remove_file(&path)),
        };
        written.map_err(cannot("write", &path))
    }

    /// Gives a file that was found whole, and is durable, its own name.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub(super) fn finish(&self, file: &ManifestFile) -> Result<()> {
        let (partial, whole) = (self.partial(file), self.whole(file));
        fs::rename(&partial, &whole).map_err(cannot("rename", &partial))?;
        let tag = self.beside(file, TAG);
        ignore_missing(fs::remove_file(&tag)).map_err(cannot("remove", &tag))
    }

    /// Removes everything that is staged.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub(super) fn remove(&self) -> Result<()> {
        remove_tree(&self.folder)?;
        remove_tree(&replaced_path(&self.folder))?;
        ignore_missing(fs::remove_file(&self.record)).map_err(cannot("remove", &self.record))
    }
}

/// What is staged of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Staged {
    /// All of it, checked.
    Whole,
    /// Its first bytes.
    First {
        /// How many.
        bytes: u64,
    },
}

/// The downloads that lie in `places` unfinished, by their records.
///
/// # Errors
/// `Io` when the folder cannot be listed.
pub(super) fn unfinished(places: &Places) -> Result<Vec<(RepoId, Record)>> {
    let mut found = Vec::new();
    for path in entries(&places.downloads())? {
        let is_record = path.extension().is_some_and(|extension| extension == "json");
        let name = path.file_stem().and_then(|name| name.to_str());
        let repo = name.filter(|_| is_record).and_then(RepoId::from_flat_name);
        // A record that cannot be read is no download that could go on; a new one replaces it.
        if let Some(repo) = repo
            && let Ok(Some(record)) = read_record(&path)
        {
            found.push((repo, record));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Bytes of the files of `record` that lie staged in `places`, in the record's order.
pub(super) fn staged_bytes(places: &Places, repo: &RepoId, record: &Record) -> Vec<u64> {
    let folder = places.staging(repo);
    let look = |file: &ManifestFile| {
        let whole = file.path.below(&folder);
        let digits = file.digest.digits();
        let partial = whole.with_added_extension(&digits[..DIGITS]).with_added_extension(PARTIAL);
        let bytes = |path: &Path| length(path).ok().flatten();
        bytes(&whole).or_else(|| bytes(&partial)).unwrap_or(0).min(file.bytes)
    };
    record.files.iter().map(look).collect()
}

/// Where a model lies for a moment that another one replaces, where two folders cannot be exchanged.
pub(super) fn replaced_path(folder: &Path) -> PathBuf {
    folder.with_added_extension("replaced")
}

fn record_path(folder: &Path) -> PathBuf {
    folder.with_added_extension("json")
}

/// Locks the file at `path` and writes who did.
fn lock(path: &Path, repo: &RepoId) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path).map_err(cannot("open", path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(taken(&mut file, repo)),
        Err(TryLockError::Error(error)) => return Err(cannot("lock", path)(error)),
    }
    // Who has it is told for people alone, so nothing depends on it.
    let _ = file.set_len(0);
    let _ = write!(file, "{}", std::process::id());
    Ok(file)
}

fn taken(file: &mut File, repo: &RepoId) -> Error {
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(16).read_to_string(&mut text));
    let holder = match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(id)) if id == std::process::id() => {
            "another download of this process".to_owned()
        }
        (Ok(_), Ok(id)) => format!("process {id}"),
        _ => "another process".to_owned(),
    };
    Error::invalid("repo", format!("`{repo}` is being fetched by {holder}"))
        .with_hint("wait for it, or end it: what it has is kept")
}

/// Refuses a link where a folder of ours should be: what is written there would land elsewhere.
pub(super) fn refuse_link(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::invalid(
            "models",
            format!("`{}` is no folder, or a link to one", path.display()),
        )
        .with_hint("remove it, or choose another folder by `--models`")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(cannot("look at", path)(error)),
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.path()).map_err(cannot("list", folder)))
            .collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(cannot("list", folder)(error)),
    }
}

/// The length of a plain file; `None` where there is none.
fn length(path: &Path) -> Result<Option<u64>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot("look at", path)(error)),
    }
}

/// Removes a folder and all in it, without following links.
pub(super) fn remove_tree(path: &Path) -> Result<()> {
    ignore_missing(fs::remove_dir_all(path)).map_err(cannot("remove", path))
}

fn ignore_missing(outcome: std::io::Result<()>) -> std::io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// That `verb` failed at `path`.
pub(super) fn cannot<'a>(
    verb: &'a str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> Error + use<'a> {
    move |error| {
        let attempt = format!("failed to {verb} `{}`", path.display());
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Error::new(Code::DiskFull, error.to_string())
                    .with_hint("make room and start it again: what is there is kept")
            }
            _ => Error::from(error),
        }
        .while_doing(attempt)
    }
}

/// The record at `path`; `None` where there is none, or none that this version wrote.
fn read_record(path: &Path) -> Result<Option<Record>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot("read", path)(error)),
    };
    let stored = serde_json::from_slice::<StoredRecord>(&text).ok();
    Ok(stored.filter(|stored| stored.version == VERSION).and_then(|stored| stored.read().ok()))
}

fn record_json(record: &Record) -> String {
    let stored = StoredRecord {
        version: VERSION,
        revision: record.revision.to_string(),
        commit: record.commit.to_string(),
        files: record.files.iter().map(StoredFile::from).collect(),
    };
    serde_json::to_string_pretty(&stored).expect("strings and numbers become JSON") + "\n"
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredRecord {
    version: u32,
    revision: String,
    commit: String,
    files: Vec<StoredFile>,
}

impl StoredRecord {
    fn read(&self) -> Result<Record> {
        Ok(Record {
            revision: self.revision.parse()?,
            commit: self.commit.parse()?,
            files: self.files.iter().map(StoredFile::read).collect::<Result<_>>()?,
        })
    }
}
