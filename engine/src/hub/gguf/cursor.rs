//! The bounds-checked cursor over a header.
//!
//! It knows how many bytes are left and refuses a length before anything is allocated for it.

use std::fmt::Arguments;
use std::io::{BufReader, Read};

use super::bad_import;
use crate::error::{Error, Result};

/// Reads little-endian values from the start of a file of known length.
#[derive(Debug)]
pub(super) struct Cursor<R> {
    reader: BufReader<R>,
    position: u64,
    end: u64,
}

impl<R: Read> Cursor<R> {
    /// A cursor at the start of `reader`, which holds `end` bytes that may be read.
    pub(super) fn new(reader: R, end: u64) -> Self {
        Self { reader: BufReader::with_capacity(1 << 16, reader), position: 0, end }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Reads exactly `N` bytes of `what`.
    pub(super) fn bytes<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// Reads a `u32`.
    pub(super) fn u32(&mut self, what: Arguments<'_>) -> Result<u32> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    /// Reads a `u64`.
    pub(super) fn u64(&mut self, what: Arguments<'_>) -> Result<u64> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// Reads a count of items that take at least `item_bytes_min` each, and checks that so many
    /// can still follow.
    pub(super) fn count(&mut self, item_bytes_min: u64, what: Arguments<'_>) -> Result<usize> {
        let at = self.position;
        let count = self.u64(what)?;
        let fits = count.checked_mul(item_bytes_min).is_some_and(|bytes| bytes <= self.left());
        match usize::try_from(count) {
            Ok(count) if fits => Ok(count),
            _ => Err(self.too_long(what, at, count, "items")),
        }
    }

    /// Reads a length-prefixed UTF-8 string.
    pub(super) fn string(&mut self, what: Arguments<'_>) -> Result<String> {
        let at = self.position;
        let length = self.u64(what)?;
        let Some(length) = usize::try_from(length).ok().filter(|_| length <= self.left()) else {
            return Err(self.too_long(what, at, length, "bytes"));
        };
        let mut bytes = vec![0; length];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes)
            .map_err(|error| bad_import(format!("{what} at byte {at} is not UTF-8: {error}")))
    }

    fn left(&self) -> u64 {
        self.end - self.position
    }

    fn fill(&mut self, bytes: &mut [u8], what: Arguments<'_>) -> Result<()> {
        let length = bytes.len() as u64;
        if length > self.left() {
            return Err(bad_import(format!(
                "the header ends inside {what}: {length} bytes wanted at byte {}, {} left",
                self.position,
                self.left()
            )));
        }
        self.reader
            .read_exact(bytes)
            .map_err(|error| Error::from(error).while_doing(format_args!("reading {what}")))?;
        self.position += length;
        Ok(())
    }

    fn too_long(&self, what: Arguments<'_>, at: u64, count: u64, unit: &str) -> Error {
        bad_import(format!(
            "{what} at byte {at} claims {count} {unit}, but only {} bytes are left",
            self.left()
        ))
    }
}
