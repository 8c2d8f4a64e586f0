//! What a stream sends while its answer is silent.

use std::str::FromStr;

use crate::error::{Code, Error, Result};

/// What a stream sends while its answer is silent, so that nobody takes it for dead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeepAlive {
    /// What the dialect's clients need: events for Anthropic's and for responses, comments for the rest.
    #[default]
    Auto,
    /// Comments, which all clients skip, and which some take for silence.
    Comment,
    /// Events that add nothing to the answer.
    Delta,
    /// Nothing.
    Off,
}

impl KeepAlive {
    const NAMES: [(&str, Self); 4] = [
        ("auto", Self::Auto),
        ("comment", Self::Comment),
        ("delta", Self::Delta),
        ("off", Self::Off),
    ];
}

impl FromStr for KeepAlive {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let named = Self::NAMES.into_iter().find(|(known, _)| *known == name);
        named.map(|(_, keep_alive)| keep_alive).ok_or_else(|| {
            let known = Self::NAMES.map(|(name, _)| format!("`{name}`")).join(", ");
            Error::new(Code::InvalidRequest, format!("must be one of {known}, got `{name}`"))
        })
    }
}
