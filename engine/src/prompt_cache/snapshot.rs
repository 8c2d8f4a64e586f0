//! What the cache must know of what it stores.

use std::fmt;

use serde_json::Value;

use super::disk::{Tensor, TensorSpec};
use crate::error::{Code, Error, Result};

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

    /// What has to be stored so that it can be put together again. Nothing is read from the device yet.
    ///
    /// # Errors
    /// `Internal` when it cannot be stored; `EngineFailed` with MLX's text.
    fn write_down(&self) -> Result<Written> {
        Err(Error::new(Code::Internal, "nothing here is ever stored"))
    }
}

/// A snapshot in the form in which it is stored.
#[derive(Debug)]
pub struct Written {
    /// What it says of itself.
    pub state: Value,
    /// Its tensors, in their order.
    pub tensors: Vec<UnreadTensor>,
}

/// A tensor that is still on the device.
pub struct UnreadTensor {
    /// What it will be.
    pub spec: TensorSpec,
    /// Reads it, which waits for the device.
    pub read: Box<dyn FnOnce() -> Result<Tensor>>,
}

impl fmt::Debug for UnreadTensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("UnreadTensor").field("spec", &self.spec).finish_non_exhaustive()
    }
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
