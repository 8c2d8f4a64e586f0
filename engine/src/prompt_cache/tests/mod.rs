//! The cache against a naive model, and its promises one by one.

mod fuzz;
mod model;
mod promises;

use std::rc::Rc;

use super::Snapshot;
use crate::error::{Code, Error, Result};

/// A snapshot that remembers the tokens it was fed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fed {
    /// Shared until one of its owners writes.
    tokens: Rc<Vec<u32>>,
    bytes: u64,
    trims: Trims,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trims {
    Always,
    Never,
    /// It says that it can, and fails.
    Fails,
}

impl Fed {
    fn new(tokens: &[u32], bytes: u64, trims: Trims) -> Self {
        Self { tokens: Rc::new(tokens.to_vec()), bytes, trims }
    }

    /// Goes on as a row would.
    fn feed(&mut self, token: u32) {
        Rc::make_mut(&mut self.tokens).push(token);
    }
}

impl Snapshot for Fed {
    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn can_trim(&self) -> bool {
        self.trims != Trims::Never
    }

    fn share(&self) -> Self {
        self.clone()
    }

    fn trim(&mut self, tokens: usize) -> Result<()> {
        assert!(self.can_trim() && 0 < tokens && tokens < self.tokens.len());
        if self.trims == Trims::Fails {
            return Err(Error::new(Code::EngineFailed, "no memory"));
        }
        let kept = self.tokens.len() - tokens;
        Rc::make_mut(&mut self.tokens).truncate(kept);
        Ok(())
    }
}
