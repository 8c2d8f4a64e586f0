//! What the cache must know of what it stores.

use crate::error::Result;

/// The solo caches of a row after exactly the tokens of its entry.
pub trait Snapshot: Sized {
    /// How many tokens they hold.
    fn tokens(&self) -> usize;

    /// Bytes of their buffers. Constant while it is stored.
    fn bytes(&self) -> u64;

    /// Whether its last tokens can be taken back, in every layer. Constant while it is stored, and the same
    /// for its shares.
    fn can_trim(&self) -> bool;

    /// A second owner of the same buffers: free, and written by copy, so what becomes of one is never seen by
    /// the other.
    #[must_use]
    fn share(&self) -> Self;

    /// Takes the last `tokens` tokens back: at least one, and fewer than it has. Called on shares only, and
    /// only where [`Snapshot::can_trim`].
    ///
    /// # Errors
    /// `Internal` when it cannot; `EngineFailed` with MLX's text.
    fn trim(&mut self, tokens: usize) -> Result<()>;
}

/// The snapshot of rows that leave none behind.
#[derive(Debug)]
pub enum Unkept {}

impl Snapshot for Unkept {
    fn tokens(&self) -> usize {
        match *self {}
    }

    fn bytes(&self) -> u64 {
        match *self {}
    }

    fn can_trim(&self) -> bool {
        match *self {}
    }

    fn share(&self) -> Self {
        match *self {}
    }

    fn trim(&mut self, _: usize) -> Result<()> {
        match *self {}
    }
}
