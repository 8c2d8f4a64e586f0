//! The layout of an entry's file. Pure: bytes in, bytes out.
//!
//! All numbers are little endian. Sections start at multiples of 16 KiB, and the zeros between two belong
//! to the one before, so that there is no byte which no checksum covers:
//!
//! ```text
//! header   "SLIPKV\r\n" | version u32 | 0 u32 | json bytes u64 | tokens u64 | checksum u128
//!          | json | tokens, u32 each | zeros
//! tensor   bytes | zeros                            as often as the json has tensors
//! trailer  checksum u128 of each tensor | file bytes u64 | checksum u128 | "whole\r\n\0"
//! ```
//!
//! Checksums are XXH3-128 with a seed made of the entry's id, so a section that belongs elsewhere does not pass,
//! nor a file under another name. The header's own field is left out of its checksum.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{Manifest, Origin, TensorSpec};
use crate::error::{Code, Error, Result};
use crate::limits::{DISK_ALIGNMENT_BYTES, DISK_HEADER_BYTES_MAX};

const MAGIC: [u8; 8] = *b"SLIPKV\r\n";
const END_MAGIC: [u8; 8] = *b"whole\r\n\0";
/// Grows with every change of the layout; files of other versions are dropped.
pub(super) const VERSION: u32 = 1;
/// The part of the header whose size is fixed.
pub(super) const PRELUDE_BYTES: usize = 48;
const CHECKSUM_BYTES: usize = 16;
const CHECKSUM_OFFSET: usize = PRELUDE_BYTES - CHECKSUM_BYTES;
const TRAILER_FIXED_BYTES: u64 = 8 + CHECKSUM_BYTES as u64 + 8;

/// Names an entry for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(Uuid);

impl DiskId {
    pub(in crate::prompt_cache) fn new() -> Self {
        Self(Uuid::new_v4())
    }

    /// Sorts before every other.
    pub(in crate::prompt_cache) const LEAST: Self = Self(Uuid::nil());
}

impl fmt::Display for DiskId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(formatter)
    }
}

impl FromStr for DiskId {
    type Err = Error;

    /// Reads what `Display` writes, and no other spelling.
    fn from_str(text: &str) -> Result<Self> {
        let id = Uuid::try_parse(text).ok().map(Self).filter(|id| id.to_string() == text);
        id.ok_or_else(|| Error::invalid("id", format!("`{text}` is no id of a cached prompt")))
    }
}

/// The sum of one section, fed in pieces.
pub(super) struct Checksum(Xxh3);

impl Checksum {
    /// Of a section of the file of the entry `id`.
    pub(super) fn of(id: DiskId) -> Self {
        Self(Xxh3::with_seed(xxh3_64(id.0.as_bytes())))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn value(&self) -> u128 {
        self.0.digest128()
    }
}

/// Where things are in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of the header with its zeros.
    pub header_bytes: u64,
    /// Where the trailer starts.
    pub trailer_start: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

impl Layout {
    /// The layout of a file for `manifest`; errors name what is too large.
    pub(super) fn of_manifest(manifest: &Manifest, identity: &str) -> Result<Self> {
        let json = description_json(manifest, identity, Duration::ZERO)?;
        Self::of_json(&json, manifest)
    }

    fn of_json(json: &[u8], manifest: &Manifest) -> Result<Self> {
        let tokens = manifest.tokens.len();
        let layout = Self::new(json.len() as u64, tokens as u64, &manifest.tensors);
        layout.ok_or_else(|| {
            Error::new(Code::Internal, format!("a prompt of {tokens} tokens is too large a file"))
        })
    }

    fn new(json_bytes: u64, tokens: u64, tensors: &[TensorSpec]) -> Option<Self> {
        let header_bytes = header_bytes(json_bytes, tokens)?;
        let mut end = header_bytes;
        for tensor in tensors {
            end = end.checked_add(tensor.bytes)?.checked_next_multiple_of(DISK_ALIGNMENT_BYTES)?;
        }
        let file_bytes = end.checked_add(trailer_bytes(tensors.len()))?;
        Some(Self { header_bytes, trailer_start: end, file_bytes })
    }
}

/// Zeros after `bytes` bytes of a section.
pub(super) fn padding(bytes: u64) -> usize {
    let over = bytes % DISK_ALIGNMENT_BYTES;
    if over == 0 { 0 } else { (DISK_ALIGNMENT_BYTES - over) as usize }
}

/// Zeros to pad with.
pub(super) const ZEROS: [u8; DISK_ALIGNMENT_BYTES as usize] = [0; DISK_ALIGNMENT_BYTES as usize];

pub(super) fn trailer_bytes(tensors: usize) -> u64 {
    (tensors * CHECKSUM_BYTES) as u64 + TRAILER_FIXED_BYTES
}

/// Bytes of the header with its zeros, if that is a size which headers have.
fn header_bytes(json_bytes: u64, tokens: u64) -> Option<u64> {
    let token_bytes = tokens.checked_mul(4)?;
    let bytes = (PRELUDE_BYTES as u64).checked_add(json_bytes)?.checked_add(token_bytes)?;
    let bytes = bytes.checked_next_multiple_of(DISK_ALIGNMENT_BYTES)?;
    (bytes <= DISK_HEADER_BYTES_MAX).then_some(bytes)
}

/// The json of the header.
#[derive(Serialize, Deserialize)]
struct Description {
    identity: String,
    /// Fixed in width, so that the size of a file is known before the time is.
    created_at_micros: String,
    can_trim: bool,
    origin: Origin,
    state: Value,
    tensors: Vec<TensorSpec>,
}

fn description_json(manifest: &Manifest, identity: &str, created_at: Duration) -> Result<Vec<u8>> {
    let micros = u64::try_from(created_at.as_micros()).unwrap_or(u64::MAX);
    let description = Description {
        identity: identity.to_owned(),
        created_at_micros: format!("{micros:020}"),
        can_trim: manifest.can_trim,
        origin: manifest.origin,
        state: manifest.state.clone(),
        tensors: manifest.tensors.clone(),
    };
    serde_json::to_vec(&description).map_err(|error| {
        Error::new(Code::Internal, format!("failed to describe a prompt: {error}"))
    })
}

/// What stands at the head of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Header {
    pub id: DiskId,
    pub identity: String,
    /// Since the Unix epoch, in whole microseconds.
    pub created_at: Duration,
    pub manifest: Manifest,
    pub layout: Layout,
}

/// A header as it is written.
pub(super) struct EncodedHeader {
    /// Its bytes, the zeros included.
    pub bytes: Vec<u8>,
    pub layout: Layout,
}

/// Writes the header of an entry.
pub(super) fn encode_header(
    manifest: &Manifest,
    identity: &str,
    id: DiskId,
    created_at: Duration,
) -> Result<EncodedHeader> {
    let json = description_json(manifest, identity, created_at)?;
    let layout = Layout::of_json(&json, manifest)?;
    let size = layout.header_bytes as usize;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend((json.len() as u64).to_le_bytes());
    bytes.extend((manifest.tokens.len() as u64).to_le_bytes());
    bytes.extend([0; CHECKSUM_BYTES]);
    bytes.extend(json);
    bytes.extend(manifest.tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes.resize(size, 0);
    let checksum = header_checksum(id, &bytes);
    bytes[CHECKSUM_OFFSET..PRELUDE_BYTES].copy_from_slice(&checksum.to_le_bytes());
    Ok(EncodedHeader { bytes, layout })
}

fn header_checksum(id: DiskId, bytes: &[u8]) -> u128 {
    let mut checksum = Checksum::of(id);
    checksum.update(&bytes[..CHECKSUM_OFFSET]);
    checksum.update(&bytes[PRELUDE_BYTES..]);
    checksum.value()
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    #[error("it is no cached prompt")]
    Foreign,
    #[error("it has version {0} of the format, and this program writes version {VERSION}")]
    Stale(u32),
    #[error("its header {0}")]
    Header(&'static str),
    #[error("it belongs to another model or setting")]
    OtherIdentity,
    #[error("it has {found} bytes instead of {expected}")]
    Length { found: u64, expected: u64 },
    #[error("tensor {0} does not match its checksum")]
    Tensor(usize),
    #[error("its trailer does not match its checksum")]
    Trailer,
    #[error("it ended early")]
    Torn,
}

/// How many bytes the header of a file has that starts with `prelude`, at most `file_bytes`.
pub(super) fn header_size(prelude: &[u8; PRELUDE_BYTES], file_bytes: u64) -> Result<usize, Damage> {
    if prelude[..8] != MAGIC {
        return Err(Damage::Foreign);
    }
    let version = u32::from_le_bytes(array(prelude, 8));
    if version != VERSION {
        return Err(Damage::Stale(version));
    }
    let bytes = header_bytes(number(prelude, 16), number(prelude, 24));
    let bytes = bytes.ok_or(Damage::Header("is too large"))?;
    if bytes > file_bytes { Err(Damage::Torn) } else { Ok(bytes as usize) }
}

/// Reads a header, given all its bytes, of the entry `id` in a file of `file_bytes`.
pub(super) fn decode_header(bytes: &[u8], id: DiskId, file_bytes: u64) -> Result<Header, Damage> {
    let checksum = header_checksum(id, bytes);
    if checksum.to_le_bytes() != bytes[CHECKSUM_OFFSET..PRELUDE_BYTES] {
        return Err(Damage::Header("does not match its checksum"));
    }
    let (json_bytes, tokens) = (number(bytes, 16), number(bytes, 24));
    let (json, rest) = bytes[PRELUDE_BYTES..].split_at(json_bytes as usize);
    let unreadable = Damage::Header("cannot be read");
    let description: Description = serde_json::from_slice(json).map_err(|_| unreadable.clone())?;
    let micros: u64 = description.created_at_micros.parse().map_err(|_| unreadable.clone())?;
    let layout = Layout::new(json_bytes, tokens, &description.tensors).ok_or(unreadable)?;
    if layout.file_bytes != file_bytes {
        return Err(Damage::Length { found: file_bytes, expected: layout.file_bytes });
    }
    let manifest = Manifest {
        tokens: rest[..tokens as usize * 4].chunks_exact(4).map(token).collect(),
        state: description.state,
        can_trim: description.can_trim,
        origin: description.origin,
        tensors: description.tensors,
    };
    let created_at = Duration::from_micros(micros);
    Ok(Header { id, identity: description.identity, created_at, manifest, layout })
}

fn token(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(array(bytes, 0))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}

/// The bytes of a trailer.
pub(super) fn encode_trailer(id: DiskId, tensors: &[u128], file_bytes: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = tensors.iter().flat_map(|checksum| checksum.to_le_bytes()).collect();
    bytes.extend(file_bytes.to_le_bytes());
    let checksum = trailer_checksum(id, &bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(END_MAGIC);
    bytes
}

/// The checksums of the tensors, given all bytes of the trailer.
pub(super) fn decode_trailer(bytes: &[u8], header: &Header) -> Result<Vec<u128>, Damage> {
    let sums = header.manifest.tensors.len() * CHECKSUM_BYTES;
    let checksums = bytes[..sums].chunks_exact(CHECKSUM_BYTES);
    let checksums: Vec<u128> = checksums.map(|sum| u128::from_le_bytes(array(sum, 0))).collect();
    let expected = encode_trailer(header.id, &checksums, header.layout.file_bytes);
    if bytes == expected { Ok(checksums) } else { Err(Damage::Trailer) }
}

fn trailer_checksum(id: DiskId, bytes: &[u8]) -> u128 {
    let mut checksum = Checksum::of(id);
    checksum.update(bytes);
    checksum.value()
}
