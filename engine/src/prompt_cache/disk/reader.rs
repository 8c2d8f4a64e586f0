//! Reading an entry back, one tensor at a time, and never handing out a byte that was not written.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::board::{Board, Lost, Outcome};
use super::format::{self, Checksum, Damage, DiskId, Header, PRELUDE_BYTES};
use super::{Manifest, Tensor};
use crate::error::{Code, Error, Result};

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Damage(#[from] Damage),
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Damage(Damage::Torn),
            _ => Self::Io(error),
        }
    }
}

/// Reads and checks the header of an entry's file, and nothing else of it.
pub(super) fn read_header(
    file: &mut File,
    id: DiskId,
    identity: &str,
) -> Result<Header, Unreadable> {
    let file_bytes = file.metadata()?.len();
    let mut prelude = [0; PRELUDE_BYTES];
    file.read_exact(&mut prelude)?;
    let size = format::header_size(&prelude, file_bytes)?;
    let mut bytes = prelude.to_vec();
    bytes.resize(size, 0);
    file.read_exact(&mut bytes[PRELUDE_BYTES..])?;
    let header = format::decode_header(&bytes, id, file_bytes)?;
    if header.identity == identity { Ok(header) } else { Err(Damage::OtherIdentity.into()) }
}

/// An open entry. The file may be removed meanwhile; what is open can still be read.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    header: Header,
    /// Of the tensors.
    checksums: Vec<u128>,
    /// The index of the tensor that comes next.
    next: usize,
    board: Arc<Board>,
    failed: Option<Error>,
}

impl Reader {
    /// Opens the file of the entry `id` and checks both of its ends.
    pub(super) fn open(
        path: PathBuf,
        id: DiskId,
        identity: &str,
        board: &Arc<Board>,
    ) -> Result<Self> {
        match open_checked(&path, id, identity) {
            Ok((file, header, checksums)) => {
                let board = Arc::clone(board);
                Ok(Self { path, file, header, checksums, next: 0, board, failed: None })
            }
            Err(unreadable) => Err(drop_entry(&path, id, &unreadable, board)),
        }
    }

    /// Which entry this is.
    pub fn id(&self) -> DiskId {
        self.header.id
    }

    /// What the entry is.
    pub fn manifest(&self) -> &Manifest {
        &self.header.manifest
    }

    /// Reads the next tensor and holds it against its checksum; none after the last one.
    ///
    /// # Errors
    /// `Io` if it is not what was written. The entry is dropped, and every later call fails alike.
    pub fn next_tensor(&mut self) -> Result<Option<Tensor>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let read = self.read_tensor();
        read.map_err(|unreadable| {
            let error = drop_entry(&self.path, self.header.id, &unreadable, &self.board);
            self.failed = Some(error.clone());
            error
        })
    }

    fn read_tensor(&mut self) -> Result<Option<Tensor>, Unreadable> {
        let Some(spec) = self.header.manifest.tensors.get(self.next) else {
            return Ok(None);
        };
        // Its size is bounded: the header was checked, and agrees with the length of the file.
        let mut bytes = Vec::with_capacity(spec.bytes as usize);
        self.file.by_ref().take(spec.bytes).read_to_end(&mut bytes)?;
        let mut zeros = format::ZEROS;
        let zeros = &mut zeros[..format::padding(spec.bytes)];
        self.file.read_exact(zeros)?;
        let mut checksum = Checksum::of(self.header.id);
        checksum.update(&bytes);
        checksum.update(zeros);
        if bytes.len() as u64 != spec.bytes || checksum.value() != self.checksums[self.next] {
            return Err(Damage::Tensor(self.next).into());
        }
        self.next += 1;
        Ok(Some(Tensor { dtype: spec.dtype.clone(), shape: spec.shape.clone(), bytes }))
    }
}

fn open_checked(
    path: &Path,
    id: DiskId,
    identity: &str,
) -> Result<(File, Header, Vec<u128>), Unreadable> {
    let mut file = File::open(path)?;
    let header = read_header(&mut file, id, identity)?;
    let tensors = header.manifest.tensors.len();
    let mut trailer = vec![0; format::trailer_bytes(tensors) as usize];
    file.seek(SeekFrom::Start(header.layout.trailer_start))?;
    file.read_exact(&mut trailer)?;
    let checksums = format::decode_trailer(&trailer, &header)?;
    file.seek(SeekFrom::Start(header.layout.header_bytes))?;
    Ok((file, header, checksums))
}

/// Has the entry forgotten, and its file removed if that is what is wrong.
fn drop_entry(path: &Path, id: DiskId, unreadable: &Unreadable, board: &Board) -> Error {
    let lost = match unreadable {
        Unreadable::Io(error) if error.kind() == ErrorKind::NotFound => Lost::Vanished,
        Unreadable::Damage(_) | Unreadable::Io(_) => Lost::Bad,
    };
    // Where reading failed the file may be sound, and a restart finds it again.
    if matches!(unreadable, Unreadable::Damage(_)) {
        board.doom(id);
    }
    tracing::warn!(path = %path.display(), reason = %unreadable, "a cached prompt was dropped");
    board.report(Outcome::Lost { id, lost });
    let message =
        format!("failed to restore `{}`, which was dropped: {unreadable}", path.display());
    Error::new(Code::Io, message)
}
