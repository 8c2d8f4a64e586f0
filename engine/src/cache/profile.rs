//! How many bytes a row's caches take, before it runs: plain arithmetic.

use crate::limits::KV_GRANULE_TOKENS;

/// What an attention layer keeps of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenShape {
    /// Key and value heads.
    pub heads: u64,
    /// Width of one head's key.
    pub key_dimension: u64,
    /// Width of one head's value.
    pub value_dimension: u64,
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
    /// One entry per layer that has a cache, and what comes beside them.
    pub layers: Vec<LayerBytes>,
}

impl KvProfile {
    /// Bytes of a row of `tokens` tokens, prompt and answer, while it decodes alone: whole granules,
    /// windows capped.
    pub fn row_bytes(&self, tokens: usize) -> u64 {
        let columns = granules(tokens);
        self.sum(columns, |window_tokens| columns.min(window_tokens))
    }

    /// Bytes at most of a batch of `rows` rows while it decodes, the longest of them `longest_tokens`
    /// long. Rows share their columns, so each is as wide as the longest; and a window's columns
    /// outlive the rows that wrote them, so windows count as full.
    pub fn batch_bytes(&self, rows: usize, longest_tokens: usize) -> u64 {
        rows as u64 * self.sum(granules(longest_tokens), |window_tokens| window_tokens)
    }

    /// Bytes of a lone row of `tokens` prompt tokens that prefills in chunks of `chunk_tokens`, where
    /// windows hold a chunk beside what its first token sees.
    pub fn prefill_bytes(&self, tokens: usize, chunk_tokens: usize) -> u64 {
        let chunk = chunk_tokens.min(tokens) as u64;
        let spare = |layer: &LayerBytes| match *layer {
            LayerBytes::Rotating { token_bytes, window_tokens } => {
                let held = (window_tokens - 1 + chunk).min(tokens as u64);
                token_bytes * held.saturating_sub(window_tokens)
            }
            LayerBytes::Full { .. } | LayerBytes::Fixed { .. } => 0,
        };
        self.row_bytes(tokens) + self.layers.iter().map(spare).sum::<u64>()
    }

    /// The same where each layer holds `tokens` more, which a window does not scroll out.
    #[must_use]
    pub fn with_spare_tokens(mut self, tokens: usize) -> Self {
        let spare = |layer: &LayerBytes| match *layer {
            LayerBytes::Full { token_bytes } | LayerBytes::Rotating { token_bytes, .. } => {
                token_bytes * tokens as u64
            }
            LayerBytes::Fixed { .. } => 0,
        };
        let bytes = self.layers.iter().map(spare).sum();
        self.layers.push(LayerBytes::Fixed { bytes });
        self
    }

    fn sum(&self, columns: u64, window_columns: impl Fn(u64) -> u64) -> u64 {
        let layer_bytes = |layer: &LayerBytes| match *layer {
            LayerBytes::Full { token_bytes } => token_bytes * columns,
            LayerBytes::Rotating { token_bytes, window_tokens } => {
                token_bytes * window_columns(window_tokens)
            }
            LayerBytes::Fixed { bytes } => bytes,
        };
        self.layers.iter().map(layer_bytes).sum()
    }
}

fn granules(tokens: usize) -> u64 {
    let granule = KV_GRANULE_TOKENS as u64;
    (tokens as u64).div_ceil(granule) * granule
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
        assert_eq!(profile.batch_bytes(4, 200), 4 * (2 * 256 + 3 * 300 + 5));
    }

    #[test]
    fn spare_tokens_cost_the_same_in_windows_and_full_layers_whatever_the_length() {
        let profile = KvProfile {
            layers: vec![
                LayerBytes::Full { token_bytes: 2 },
                LayerBytes::Rotating { token_bytes: 3, window_tokens: 8 },
                LayerBytes::Fixed { bytes: 5 },
            ],
        };
        let wider = profile.clone().with_spare_tokens(16);
        for tokens in [1, 8, 300] {
            assert_eq!(wider.row_bytes(tokens), profile.row_bytes(tokens) + 16 * (2 + 3));
        }
    }

    #[test]
    fn a_window_holds_a_prefill_chunk_beside_itself() {
        let layer = LayerBytes::Rotating { token_bytes: 2, window_tokens: 8 };
        let profile = KvProfile { layers: vec![layer] };
        assert_eq!(profile.prefill_bytes(6, 4), 2 * 8);
        assert_eq!(profile.prefill_bytes(9, 4), 2 * 9);
        assert_eq!(profile.prefill_bytes(99, 4), 2 * 11);
        assert_eq!(profile.prefill_bytes(99, 2048), 2 * 99);
    }
}
