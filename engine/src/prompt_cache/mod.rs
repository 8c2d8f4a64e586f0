//! Prompts that were read, kept for later ones that begin alike. Generic over what is kept: no arrays here.
//!
//! Words: a **snapshot** is what the caches of one row hold after some tokens; an **entry** is a snapshot under
//! its tokens; the **usable prefix** of a prompt is what an entry spares it, at most all tokens but the last,
//! which always runs. An entry that is longer than that serves only if its snapshot can be **trimmed**.
//!
//! Invariants: [`PromptCache::take`] lends a share and consumes nothing; the entry with the longest usable
//! prefix serves; entries together never take more bytes than the cap; what was used last goes last, and what
//! is pinned after all that is not.

pub mod disk;
mod entries;
#[cfg(test)]
mod tests;
mod trie;

pub use entries::{Divergence, Entry, EntryId, Origin, PromptCache, Taken};

use crate::error::Result;

/// What is kept where nothing can be.
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

/// What the cache must know of the caches of one row.
pub trait Snapshot: Sized {
    /// How many tokens they hold.
    fn tokens(&self) -> usize;

    /// Bytes of their buffers.
    fn bytes(&self) -> u64;

    /// Whether tokens can be taken back. It stays so, or not, for as long as the snapshot is kept.
    fn can_trim(&self) -> bool;

    /// The same under another handle, without a copy: whoever goes on first copies.
    #[must_use]
    fn share(&self) -> Self;

    /// Takes the last `tokens` tokens back.
    ///
    /// # Errors
    /// `Internal` when it cannot; `EngineFailed` with MLX's text.
    fn trim(&mut self, tokens: usize) -> Result<()>;
}
