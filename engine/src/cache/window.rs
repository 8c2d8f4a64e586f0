//! How far sliding layers see: plain data.

use crate::error::{Code, Error, Result};

/// How far a sliding layer sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    pub(super) tokens: i32,
    pub(super) keep: i32,
}

impl Window {
    /// The last `tokens` tokens, and the first `keep` ones for good.
    ///
    /// # Errors
    /// `BadModel` unless `0 <= keep < tokens`.
    pub fn new(tokens: i32, keep: i32) -> Result<Self> {
        if (0..tokens).contains(&keep) {
            return Ok(Self { tokens, keep });
        }
        let message = format!("a window of {tokens} tokens cannot keep the first {keep}");
        Err(Error::new(Code::BadModel, message))
    }

    /// Tokens seen at most.
    pub fn tokens(self) -> i32 {
        self.tokens
    }

    /// First tokens that stay.
    pub fn keep(self) -> i32 {
        self.keep
    }
}
