//! The bytes of one file on their way to the disk, hashed as they are written.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use bytes::Bytes;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::error::{Code, Error, Result};
use crate::hub::download::staging::{Staging, cannot};
use crate::hub::manifest::{Digest, ManifestFile};

/// Bytes that are read at once of what is there already.
const READ_BYTES: usize = 1 << 20;

/// A file of which the first bytes are written and hashed.
#[derive(Debug)]
pub(super) struct Content {
    file: File,
    hash: Hash,
    bytes: u64,
    wanted: ManifestFile,
}

impl Content {
    /// Opens what is staged of `wanted` and hashes it, which is the only time that those bytes are read; `goes_on` is
    /// asked between two pieces. `None` when it said no.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub(super) fn open(
        staging: &Staging,
        wanted: &ManifestFile,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Result<Option<Self>> {
        let path = staging.partial(wanted);
        let file = staging.open_partial(wanted)?;
        let mut content = Self { file, hash: Hash::new(wanted), bytes: 0, wanted: wanted.clone() };
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let read = content.file.read(&mut buffer).map_err(cannot("read", &path))?;
            content.hash.update(&buffer[..read]);
            content.bytes += read as u64;
            if read == 0 {
                break;
            }
            if !goes_on(content.bytes) {
                return Ok(None);
            }
        }
        if content.bytes > wanted.bytes {
            content.restart().map_err(cannot("empty", &path))?;
        }
        Ok(Some(content))
    }

    /// Bytes that are there.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all bytes are there, right or wrong.
    pub(super) fn is_full(&self) -> bool {
        self.bytes == self.wanted.bytes
    }

    /// Forgets what is there.
    pub(super) fn restart(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hash = Hash::new(&self.wanted);
        self.bytes = 0;
        Ok(())
    }

    /// Writes and hashes what arrives until there is no more of it.
    ///
    /// # Errors
    /// The machine's own. What was written before is kept, and counted.
    pub(super) fn take(&mut self, mut pieces: mpsc::Receiver<Bytes>) -> std::io::Result<()> {
        while let Some(piece) = pieces.blocking_recv() {
            if let Err(error) = self.file.write_all(&piece) {
                // How much of the piece was written is not known, and it is not hashed.
                self.file.set_len(self.bytes)?;
                self.file.seek(SeekFrom::Start(self.bytes))?;
                return Err(error);
            }
            self.hash.update(&piece);
            self.bytes += piece.len() as u64;
        }
        Ok(())
    }

    /// Whether what is there is what was wanted.
    pub(super) fn is_right(&self) -> bool {
        self.is_full() && self.hash.clone().digest() == self.wanted.digest
    }

    /// Makes what is there durable.
    ///
    /// # Errors
    /// The machine's own.
    pub(super) fn sync(&self) -> std::io::Result<()> {
        self.file.sync_all()
    }
}

/// A digest that is being computed.
#[derive(Debug, Clone)]
enum Hash {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hash {
    fn new(wanted: &ManifestFile) -> Self {
        match wanted.digest {
            Digest::Sha256(_) => Self::Sha256(Sha256::new()),
            // What git hashes: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects, "Object Storage".
            Digest::GitBlob(_) => {
                Self::GitBlob(Sha1::new_with_prefix(format!("blob {}\0", wanted.bytes)))
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    fn digest(self) -> Digest {
        match self {
            Self::Sha256(hash) => Digest::Sha256(hash.finalize().into()),
            Self::GitBlob(hash) => Digest::GitBlob(hash.finalize().into()),
        }
    }
}

/// Whether the file at `path` has the content that is wanted. It is read whole.
pub(super) fn is_content(path: &Path, wanted: &ManifestFile) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    let mut hash = Hash::new(wanted);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.digest() == wanted.digest),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// That a file arrived whole and wrong, and again when it was fetched anew.
pub(super) fn spoiled(wanted: &ManifestFile) -> Error {
    let message = format!(
        "`{}` arrived with another content than the hub lists: its {} differs",
        wanted.path, wanted.digest
    );
    Error::new(Code::HubUnreachable, message)
        .with_hint("a proxy or mirror may change files on their way; the model was not installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digests_are_those_of_sha256sum_and_git_hash_object() {
        for (digits, bytes) in [
            ("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", &b"abc"[..]),
            ("ce013625030ba8dba906f756967f9e9ca394464a", b"hello\n"),
            ("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", b""),
        ] {
            let digest = Digest::from_digits(digits).unwrap();
            let wanted =
                ManifestFile { path: "x".parse().unwrap(), bytes: bytes.len() as u64, digest };
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            assert!(is_content(file.path(), &wanted).unwrap());
            std::fs::write(file.path(), b"other").unwrap();
            assert!(!is_content(file.path(), &wanted).unwrap());
        }
    }
}
