//! How many bytes a row's caches take, before it runs: plain arithmetic.

use crate::limits::KV_GRANULE_TOKENS;

/// What one layer keeps of a row, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerShape {
    /// Keys and values of every token.
    Full(TokenShape),
    /// Keys and values of the last `window_tokens` tokens.
    Rotating {
        /// One token's.
        token: TokenShape,
        /// Tokens that are kept at most.
        window_tokens: u64,
    },
    /// Something else than keys and values, which costs this whatever the scheme.
    Other(LayerBytes),
}

/// What one layer keeps of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenShape {
    /// Key and value heads.
    pub heads: u64,
    /// Width of one head's key.
    pub key_dimension: u64,
    /// Width of one head's value.
    pub value_dimension: u64,
}

impl LayerShape {
    /// What it keeps of one token, if it keeps keys and values.
    pub fn token(&self) -> Option<&TokenShape> {
        match self {
            Self::Full(token) | Self::Rotating { token, .. } => Some(token),
            Self::Other(_) => None,
        }
    }
}

impl TokenShape {
    /// Numbers in the keys and values of one token.
    pub fn values(&self) -> u64 {
        self.heads * (self.key_dimension + self.value_dimension)
    }
}

/// What one layer's cache costs per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerBytes {
    /// Every token is kept.
    Full {
        /// Bytes of one token's keys and values.
        token_bytes: u64,
    },
    /// The last `window_tokens` tokens are kept.
    Rotating {
        /// Bytes of one token's keys and values.
        token_bytes: u64,
        /// Tokens that are kept at most.
        window_tokens: u64,
    },
    /// The same whatever the row's length.
    Fixed {
        /// Bytes in all.
        bytes: u64,
    },
}

/// What a row's caches cost, layer by layer, in the scheme that serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvProfile {
    /// One entry per layer that has a cache.
    pub layers: Vec<LayerBytes>,
}

impl KvProfile {
    /// Bytes of a row of `tokens` tokens, prompt and answer: whole granules, windows capped.
    pub fn row_bytes(&self, tokens: usize) -> u64 {
        let granule = KV_GRANULE_TOKENS as u64;
        let columns = (tokens as u64).div_ceil(granule) * granule;
        let layer_bytes = |layer: &LayerBytes| match *layer {
            LayerBytes::Full { token_bytes } => token_bytes * columns,
            LayerBytes::Rotating { token_bytes, window_tokens } => {
                token_bytes * columns.min(window_tokens)
            }
            LayerBytes::Fixed { bytes } => bytes,
        };
        self.layers.iter().map(layer_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_layers_grow_by_granules_windows_are_capped_and_states_are_fixed() {
        let profile = KvProfile {
            layers: vec![
                LayerBytes::Full { token_bytes: 2 },
                LayerBytes::Rotating { token_bytes: 3, window_tokens: 300 },
                LayerBytes::Fixed { bytes: 5 },
            ],
        };
        assert_eq!(profile.row_bytes(1), 2 * 256 + 3 * 256 + 5);
        assert_eq!(profile.row_bytes(256), profile.row_bytes(1));
        assert_eq!(profile.row_bytes(257), 2 * 512 + 3 * 300 + 5);
    }
}
