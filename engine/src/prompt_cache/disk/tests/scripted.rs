//! Files of the machine, with a script that hears of every operation first and may have it fail.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::prompt_cache::disk::files::{Files, MachineFiles, NewFile};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    CreateFolder,
    Create,
    SetLength,
    Write(usize),
    Sync,
    SetUsedAt,
    Rename,
    SyncFolder,
    Remove,
}

/// What comes of an operation.
pub(super) enum Fate {
    Done,
    /// It fails, a write after this many of its bytes.
    Fails(usize, io::ErrorKind),
    /// It stops after this many of its bytes, and the process says so and waits to be killed.
    Hangs(usize),
}

type Script = dyn FnMut(Kind, &Path) -> Fate + Send;

/// Scripted files; clones share the script.
#[derive(Clone)]
pub(super) struct ScriptedFiles(Arc<Mutex<Box<Script>>>);

impl ScriptedFiles {
    pub(super) fn new(script: impl FnMut(Kind, &Path) -> Fate + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Arc::new(Mutex::new(Box::new(script)))))
    }

    /// Asks the script; `partly` does some bytes of the operation.
    fn ask(
        &self,
        kind: Kind,
        path: &Path,
        partly: impl FnOnce(usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let fate = (self.0.lock())(kind, path);
        match fate {
            Fate::Done => Ok(()),
            Fate::Fails(bytes, kind) => partly(bytes).and(Err(kind.into())),
            Fate::Hangs(bytes) => {
                partly(bytes)?;
                super::children::say("hangs");
                loop {
                    std::thread::park();
                }
            }
        }
    }
}

impl std::fmt::Debug for ScriptedFiles {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ScriptedFiles")
    }
}

#[derive(Debug)]
struct ScriptedFile {
    files: ScriptedFiles,
    file: Box<dyn NewFile>,
    path: PathBuf,
}

fn nothing(_: usize) -> io::Result<()> {
    Ok(())
}

impl Files for ScriptedFiles {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.ask(Kind::CreateFolder, path, nothing)?;
        MachineFiles.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        self.ask(Kind::Create, path, nothing)?;
        let (files, file, path) = (self.clone(), MachineFiles.create(path)?, path.to_owned());
        Ok(Box::new(ScriptedFile { files, file, path }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.ask(Kind::Rename, from, nothing)?;
        MachineFiles.rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.ask(Kind::SyncFolder, path, nothing)?;
        MachineFiles.sync_folder(path)
    }

    fn set_used_at(&self, path: &Path, used_at: Duration) -> io::Result<()> {
        self.ask(Kind::SetUsedAt, path, nothing)?;
        MachineFiles.set_used_at(path, used_at)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.ask(Kind::Remove, path, nothing)?;
        MachineFiles.remove(path)
    }
}

impl NewFile for ScriptedFile {
    fn set_length(&mut self, bytes: u64) -> io::Result<()> {
        self.files.ask(Kind::SetLength, &self.path, nothing)?;
        self.file.set_length(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Self { files, file, path } = self;
        let partly = |count: usize| file.write(&bytes[..count.min(bytes.len())]);
        files.ask(Kind::Write(bytes.len()), path, partly)?;
        self.file.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files.ask(Kind::Sync, &self.path, nothing)?;
        self.file.sync()
    }

    fn set_used_at(&mut self, used_at: Duration) -> io::Result<()> {
        self.files.ask(Kind::SetUsedAt, &self.path, nothing)?;
        self.file.set_used_at(used_at)
    }
}
